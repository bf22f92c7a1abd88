package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc/metadata"

	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// ForecastFigures has the figures of the load calendar of the large tenant.
type ForecastFigures struct {
	// CountedS is how long after the last task was stored the calendar had all tasks.
	CountedS float64 `json:"counted_after_s"`
	// AgeS is the greatest age of an answer from then on.
	AgeS float64           `json:"age_s"`
	Ms   harness.Quantiles `json:"ms"`
	// Next is the sum of the next instants, Want the number of tasks.
	Next int64 `json:"next"`
	Want int64 `json:"want"`
}

const (
	// forecastLimit bounds the time until everything is counted.
	forecastLimit = 30 * time.Minute
	forecastEvery = time.Second
	// The bounds of the verdict.
	forecastAge = 2 * time.Minute
	forecastMs  = 1000
)

// forecast waits until the calendar has counted all stored tasks, and measures answers.
func (r *runner) forecast(ctx context.Context) error {
	f, stored := &ForecastFigures{}, time.Now()
	for g := range kinds {
		f.Want += r.books.groups[g].Count
	}
	r.Say("waiting until the calendar has %d tasks", f.Want)
	for {
		c, _, err := r.calendar(ctx)
		if err != nil {
			return err
		}
		if f.Next = nextOf(c); f.Next == f.Want && len(c.MissingDatabases) == 0 {
			break
		}
		if time.Since(stored) > forecastLimit {
			r.fault("forecast: %d of %d tasks after %v, databases %v are missing", f.Next, f.Want, forecastLimit, c.MissingDatabases)
			break
		}
		if err := harness.Sleep(ctx, forecastEvery); err != nil {
			return err
		}
	}
	f.CountedS = harness.Round(time.Since(stored).Seconds())
	took := hdrhistogram.New(1, int64(callLimit/time.Microsecond), 3)
	for range r.Pages {
		c, d, err := r.calendar(ctx)
		if err != nil {
			return err
		}
		took.RecordValue(d.Microseconds()) //nolint:errcheck // a call takes at most callLimit
		f.AgeS = max(f.AgeS, harness.Round(time.Since(c.MeasureTime.AsTime()).Seconds()))
	}
	f.Ms, r.report.Forecast = harness.QuantilesOf(took), f
	if r.PageLimit > 0 && (f.Ms.Max > forecastMs || f.AgeS > forecastAge.Seconds()) {
		r.fault("forecast: an answer took up to %.0f ms and was up to %.0f s old, want %d ms and %v", f.Ms.Max, f.AgeS, forecastMs, forecastAge)
	}
	return nil
}

// calendar returns the load calendar of the large tenant, and how long the answer took.
func (r *runner) calendar(ctx context.Context) (*perceptorv1.Forecast, time.Duration, error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.large.token), callLimit)
	defer cancel()
	began := time.Now()
	c, err := perceptorv1.NewMonitoringServiceClient(r.large.conn).GetForecast(ctx, &perceptorv1.GetForecastRequest{})
	if err != nil {
		return nil, 0, fmt.Errorf("forecast: %w", err)
	}
	return c, time.Since(began), nil
}

// nextOf returns the number of tasks of a calendar.
func nextOf(c *perceptorv1.Forecast) int64 {
	n := c.Later + c.Due
	for _, day := range c.Days {
		n += day.Next
	}
	return n
}
