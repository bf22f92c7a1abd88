package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// rateSettings are the flags of what says how much a tenant may use.
type rateSettings struct {
	dispatch, burst, weight, add int32
	backlog                      int64
	caps                         string
}

func (s *rateSettings) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Int32Var(&s.dispatch, "dispatch-rate", 0, "most runs per second; 0 for no limit")
	f.Int32Var(&s.burst, "dispatch-burst", 0, "most runs at once after a pause (default: those of one second)")
	f.Int32Var(&s.weight, "weight", 1, "share relative to other backlogged tenants, 1 to 1000")
	f.Int32Var(&s.add, "add-rate", 0, "most tasks added per second; 0 for no limit")
	f.Int64Var(&s.backlog, "max-backlog", 0, "most living tasks; 0 for no limit")
	f.StringVar(&s.caps, "kind-caps", "", "most open runs of each kind, such as mail=10,report=2; replaces all caps; \"\" for none")
}

// read puts the flags that were given into a tenant and names their fields.
func (s *rateSettings) read(cmd *cobra.Command, t *perceptorv1.Tenant) (fields []string, err error) {
	caps, err := kindCaps(s.caps)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		put  func()
	}{
		{"dispatch-rate", func() { t.DispatchRate = s.dispatch }},
		{"dispatch-burst", func() { t.DispatchBurst = s.burst }},
		{"weight", func() { t.Weight = s.weight }},
		{"add-rate", func() { t.AddRate = s.add }},
		{"max-backlog", func() { t.MaxBacklog = s.backlog }},
		{"kind-caps", func() { t.KindCaps = caps }},
	} {
		if cmd.Flags().Changed(f.name) {
			f.put()
			fields = append(fields, strings.ReplaceAll(f.name, "-", "_"))
		}
	}
	return fields, nil
}

// kindCaps reads mail=10,report=2.
func kindCaps(text string) (map[string]int32, error) {
	caps := map[string]int32{}
	if text == "" {
		return caps, nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		i := strings.LastIndexByte(pair, '=')
		if i < 0 {
			return nil, cli.Usagef("--kind-caps: %q is not KIND=NUMBER", pair)
		}
		n, err := strconv.ParseInt(pair[i+1:], 10, 32)
		if err != nil {
			return nil, cli.Usagef("--kind-caps: %q is not a number of runs of the kind %q", pair[i+1:], pair[:i])
		}
		caps[pair[:i]] = int32(n)
	}
	return caps, nil
}

// tenantPause makes "pause" and "resume".
func (c *ctl) tenantPause(pause bool) *cobra.Command {
	use, short := "pause NAME", "Pause a tenant: claim no new run of its tasks"
	if !pause {
		use, short = "resume NAME", "Resume a paused tenant"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				api := perceptorv1.NewAdminServiceClient(conn)
				call := func() (*perceptorv1.Tenant, error) {
					return api.ResumeTenant(ctx, &perceptorv1.ResumeTenantRequest{Name: args[0]})
				}
				if pause {
					call = func() (*perceptorv1.Tenant, error) {
						return api.PauseTenant(ctx, &perceptorv1.PauseTenantRequest{Name: args[0]})
					}
				}
				t, err := call()
				if err != nil {
					return err
				}
				return c.show(cmd, t, func() *table { return tenantTable(t) })
			})
		},
	}
}

// ratesCell says what is not as it is for everybody.
func ratesCell(t *perceptorv1.Tenant) string {
	var said []string
	say := func(when bool, format string, args ...any) {
		if when {
			said = append(said, fmt.Sprintf(format, args...))
		}
	}
	say(t.Paused, "paused")
	say(t.DispatchRate > 0, "dispatch %d/s", t.DispatchRate)
	say(t.DispatchBurst > 0, "burst %d", t.DispatchBurst)
	say(t.Weight > 1, "weight %d", t.Weight)
	say(t.AddRate > 0, "add %d/s", t.AddRate)
	say(t.MaxBacklog > 0, "backlog %d", t.MaxBacklog)
	for _, k := range t.PausedKinds {
		say(true, "%s paused", k)
	}
	for _, k := range slices.Sorted(maps.Keys(t.KindCaps)) {
		say(true, "%s at most %d", k, t.KindCaps[k])
	}
	if len(said) == 0 {
		return "-"
	}
	return strings.Join(said, ", ")
}
