package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// topOrders are the orders of tenants, by the name of the flag's value.
var topOrders = map[string]perceptorv1.ListTenantFiguresRequest_Order{
	"lateness": perceptorv1.ListTenantFiguresRequest_LATENESS, "backlog": perceptorv1.ListTenantFiguresRequest_BACKLOG,
	"rate": perceptorv1.ListTenantFiguresRequest_RATE, "name": perceptorv1.ListTenantFiguresRequest_NAME,
}

// topOptions are the flags of top.
type topOptions struct {
	sort  string
	limit int32
	every time.Duration
	once  bool
}

func (c *ctl) topCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use: "top", Short: "Show rates, lateness and backlog by tenant, live", Args: cobra.NoArgs,
		Long: "Show the rates, the lateness and the backlog of each tenant over the last minute, again and again until Ctrl-C. The\n" +
			"programs store their figures every 10 s. A token of a tenant shows that tenant only. LATE is the time from the\n" +
			"scheduled instant to Kafka's confirmation; DUE are tasks that have been due for more than a second and are not\n" +
			"claimed, and OLDEST is how long the oldest of them has been; LAG are records that the listeners have not read.",
		RunE: func(cmd *cobra.Command, _ []string) error { return c.top(cmd, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.sort, "sort", "lateness", "order of the tenants: lateness, backlog, rate or name")
	f.Int32Var(&o.limit, "limit", 20, "most tenants to show, 1 to 1000")
	duration.Var(f, &o.every, "every", 2*time.Second, "time between two looks")
	f.BoolVar(&o.once, "once", false, "look once")
	completes(cmd, "sort", "lateness", "backlog", "rate", "name")
	return cmd
}

func (c *ctl) top(cmd *cobra.Command, o *topOptions) error {
	order, ok := topOrders[o.sort]
	switch {
	case !ok:
		return cli.Usagef("--sort: %q is none of lateness, backlog, rate, name", o.sort)
	case o.limit < 1 || o.limit > 1000:
		return cli.Usagef("--limit: %d is not between 1 and 1000", o.limit)
	case o.every < time.Second:
		return cli.Usagef("--every: %v is below 1s: the figures change every 10 s", o.every)
	}
	request := &perceptorv1.ListTenantFiguresRequest{OrderBy: order, PageSize: o.limit}
	first := true
	return watch(cmd.Context(), o.every, func() (done bool, err error) {
		list, err := c.figures(cmd, request)
		if err != nil || cmd.Context().Err() != nil {
			return first || o.once, err // the first look tells of a wrong address at once
		}
		err = c.showTop(cmd, list, first)
		first = false
		return o.once, err
	})
}

// figures returns the figures of all tenants, or of that of the token.
func (c *ctl) figures(cmd *cobra.Command, request *perceptorv1.ListTenantFiguresRequest) (list *perceptorv1.ListTenantFiguresResponse, err error) {
	err = c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
		who, err := perceptorv1.NewIdentityServiceClient(conn).GetIdentity(ctx, &perceptorv1.GetIdentityRequest{})
		if err != nil {
			return err
		}
		api := perceptorv1.NewMonitoringServiceClient(conn)
		if who.Tenant == "" && c.inspect == "" {
			list, err = api.ListTenantFigures(ctx, request)
			return err
		}
		own, err := api.GetTenantFigures(ctx, &perceptorv1.GetTenantFiguresRequest{OmitPoints: true})
		list = &perceptorv1.ListTenantFiguresResponse{Tenants: []*perceptorv1.TenantFigures{own}}
		return err
	})
	return list, err
}

// showTop prints a look: on a terminal in place of the one before.
func (c *ctl) showTop(cmd *cobra.Command, list *perceptorv1.ListTenantFiguresResponse, first bool) error {
	out := cmd.OutOrStdout()
	if c.structured() {
		return c.show(cmd, list, nil)
	}
	if err := nextFrame(out, first); err != nil {
		return err
	}
	return topTable(list).write(out)
}

func topTable(list *perceptorv1.ListTenantFiguresResponse) *table {
	t := &table{head: []string{"TENANT", "FIRES/S", "ADDS/S", "LATE P50", "LATE P99", "DUE", "OLDEST", "FAILED/S", "DEAD", "LISTENERS", "LAG"}}
	for _, f := range list.Tenants {
		t.add(topRow(f.Tenant, f)...)
	}
	if list.Total != nil {
		name := fmt.Sprintf("(all %d)", list.TenantCount)
		if list.TenantCount == 1 {
			name = "(all)"
		}
		t.add(topRow(name, list.Total)...)
	}
	return t
}

func topRow(name string, f *perceptorv1.TenantFigures) []string {
	p, backlog := f.GetLastMinute(), f.GetBacklog()
	var fired, added int64
	for _, x := range p.GetTypes() {
		fired, added = fired+x.Fired, added+x.Added
	}
	listeners, lag := "-", "-"
	if l := f.GetListeners(); l != nil {
		listeners, lag = strconv.Itoa(int(l.Members)), strconv.FormatInt(l.Lag, 10)
	}
	due := strconv.FormatInt(backlog.GetTasks(), 10)
	if backlog.GetAtLeast() {
		due += "+"
	}
	oldest := "-"
	if backlog.GetTasks() > 0 {
		oldest = backlog.GetOldestAge().AsDuration().Round(time.Second).String()
	}
	late := p.GetLateness()
	return []string{
		textCell(name), rateCell(fired, p), rateCell(added, p), lateCell(late, late.GetP50().AsDuration()), lateCell(late, late.GetP99().AsDuration()),
		due, oldest, rateCell(p.GetResults().GetFailed(), p), strconv.FormatInt(p.GetDead(), 10), listeners, lag,
	}
}

// rateCell is n of a point per second.
func rateCell(n int64, p *perceptorv1.FigurePoint) string {
	if p.GetSeconds() == 0 {
		return "0"
	}
	rate := float64(n) / float64(p.GetSeconds())
	if rate >= 10 || rate == 0 {
		return strconv.FormatFloat(rate, 'f', 0, 64)
	}
	return strconv.FormatFloat(rate, 'f', 1, 64)
}

// lateCell is a quantile of a distribution with two or three digits.
func lateCell(d *perceptorv1.Distribution, q time.Duration) string {
	switch {
	case d.GetCount() == 0:
		return "-"
	case q < time.Second:
		return q.Round(time.Millisecond).String()
	}
	return q.Round(100 * time.Millisecond).String()
}
