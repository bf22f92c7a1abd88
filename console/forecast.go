package console

import (
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var forecastPages = []page{{path: "forecast", name: "forecast", title: "Forecast", section: "forecast", live: 60, charts: true, show: (*view).forecast}}

// forecastData is the data of the page Forecast.
type forecastData struct {
	*perceptorv1.Forecast
	// All says that it is about all tenants.
	All bool
}

func (v *view) forecast() (any, error) {
	d := &forecastData{All: v.session.of("").has(scopeAdminRead) && v.r.FormValue("tenant") == ""}
	own := v.session.of(v.Tenant)
	if !d.All && own != nil && own.Tenant != "" {
		ctx, err := v.asTenant()
		if err != nil {
			return nil, err
		}
		d.Forecast, err = v.monitoring.GetForecast(ctx, &perceptorv1.GetForecastRequest{})
		return dataOr(d, err)
	}
	ctx, err := v.asOperator()
	if err != nil {
		return nil, err
	}
	r := &perceptorv1.GetInstallationForecastRequest{}
	if !d.All {
		r.Tenant = v.Tenant
	}
	d.Forecast, err = v.monitoring.GetInstallationForecast(ctx, r)
	return dataOr(d, err)
}

// dataOr returns data unless there is an error.
func dataOr(d *forecastData, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// SpanChart is the picture of spans: exact instants, and projected ones on top.
func SpanChart(spans []*perceptorv1.ForecastSpan) chart {
	c := chart{Series: []series{{Label: "With later runs of recurring tasks (projected)", Kind: "bars"}, {Label: "Next run of each task (exact)", Kind: "bars"}}}
	for _, s := range spans {
		next, all := float64(s.Next), float64(s.Next+s.Projected)
		c.X = append(c.X, s.StartTime.GetSeconds())
		c.Series[0].Values = append(c.Series[0].Values, &all)
		c.Series[1].Values = append(c.Series[1].Values, &next)
	}
	return c
}

// Peak returns the span with the most instants; nil if there are none.
func Peak(spans []*perceptorv1.ForecastSpan) (top *perceptorv1.ForecastSpan) {
	for _, s := range spans {
		if n := s.Next + s.Projected; n > 0 && (top == nil || n > top.Next+top.Projected) {
			top = s
		}
	}
	return top
}
