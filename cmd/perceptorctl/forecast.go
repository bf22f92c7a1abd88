package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) forecastCommand() *cobra.Command {
	var all bool
	var tenant, by string
	cmd := &cobra.Command{
		Use: "forecast", Short: "Show how many instants fall due when", Args: cobra.NoArgs,
		Long: "Show how many instants of the tenant of the token fall due in each span of time. NEXT counts the next instant of each\n" +
			"task, exactly; PROJECTED are the later instants of recurring tasks. With --all or --tenant, which need an admin's token,\n" +
			"those of all tenants or of another one. Spans without instants are left out.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				api := perceptorv1.NewMonitoringServiceClient(conn)
				var f *perceptorv1.Forecast
				var err error
				if all || tenant != "" {
					f, err = api.GetInstallationForecast(ctx, &perceptorv1.GetInstallationForecastRequest{Tenant: tenant})
				} else {
					f, err = api.GetForecast(ctx, &perceptorv1.GetForecastRequest{})
				}
				if err != nil {
					return err
				}
				spans, ok := map[string][]*perceptorv1.ForecastSpan{"minute": f.Minutes, "hour": f.Hours, "day": f.Days}[by]
				if !ok {
					return cli.Usagef("--by: %q is none of minute, hour, day", by)
				}
				return c.show(cmd, f, func() *table { return forecastTable(f, spans) })
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all tenants")
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this tenant")
	cmd.Flags().StringVar(&by, "by", "hour", "minute (of the next hour), hour (of the next week) or day (of the next 90 days)")
	completes(cmd, "by", "minute", "hour", "day")
	return watchable(c.completesTenants(cmd, "tenant"))
}

func forecastTable(f *perceptorv1.Forecast, spans []*perceptorv1.ForecastSpan) *table {
	t := &table{head: []string{"FROM", "NEXT", "PROJECTED"}}
	t.add("due", strconv.FormatInt(f.Due, 10), "")
	for _, s := range spans {
		if s.Next+s.Projected > 0 {
			t.add(s.StartTime.AsTime().Format(time.RFC3339), strconv.FormatInt(s.Next, 10), strconv.FormatInt(s.Projected, 10))
		}
	}
	t.add("later", strconv.FormatInt(f.Later, 10), "")
	t.add(fmt.Sprintf("counted %s", f.MeasureTime.AsTime().Format(time.RFC3339)), "", "")
	return t
}
