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
	"github.com/perceptor/perceptor/task"
)

// rateSettings are the flags of what says how much a tenant may use.
type rateSettings struct {
	dispatch, burst, weight, add int32
	backlog                      int64
	caps                         string
	quotas                       []quotaFlag
}

// A quotaFlag is the flag of one quota of the calls of a tenant.
type quotaFlag struct {
	name, usage string
	put         func(t *perceptorv1.Tenant, n int64)
	get         func(t *perceptorv1.Tenant) int64
	value       int64
}

// quotaFlags returns the flags of the quotas besides --add-rate and --max-backlog.
func quotaFlags() []quotaFlag {
	type tenant = perceptorv1.Tenant
	return []quotaFlag{
		{name: "read-rate", usage: "most tasks, events and dead runs read per second", put: func(t *tenant, n int64) { t.ReadRate = int32(n) }, get: func(t *tenant) int64 { return int64(t.ReadRate) }},
		{name: "update-rate", usage: "most changes of tasks, kinds and operations per second", put: func(t *tenant, n int64) { t.UpdateRate = int32(n) }, get: func(t *tenant) int64 { return int64(t.UpdateRate) }},
		{name: "preview-rate", usage: "most instants previewed per second", put: func(t *tenant, n int64) { t.PreviewRate = int32(n) }, get: func(t *tenant) int64 { return int64(t.PreviewRate) }},
		{name: "run-rate", usage: "most starts, heartbeats and results of runs per second", put: func(t *tenant, n int64) { t.RunRate = int32(n) }, get: func(t *tenant) int64 { return int64(t.RunRate) }},
		{name: "byte-rate", usage: "most bytes of requests and answers per second", put: func(t *tenant, n int64) { t.ByteRate = n }, get: func(t *tenant) int64 { return t.ByteRate }},
		{name: "max-calls", usage: "most calls in progress at one taskd", put: func(t *tenant, n int64) { t.MaxCalls = int32(n) }, get: func(t *tenant) int64 { return int64(t.MaxCalls) }},
		{name: "max-connections", usage: "most connections to one taskd", put: func(t *tenant, n int64) { t.MaxConnections = int32(n) }, get: func(t *tenant) int64 { return int64(t.MaxConnections) }},
	}
}

// quotaValues are the special values of quotas.
const quotaValues = "; 0 for the default of the installation, -1 for no limit"

func (s *rateSettings) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Int32Var(&s.dispatch, "dispatch-rate", 0, "most runs per second; 0 for no limit")
	f.Int32Var(&s.burst, "dispatch-burst", 0, "most runs at once after a pause (default: those of one second)")
	f.Int32Var(&s.weight, "weight", 1, fmt.Sprintf("share relative to other backlogged tenants, 1 to %d", task.MaxWeight))
	f.Int32Var(&s.add, "add-rate", 0, "most tasks added, replayed and triggered per second"+quotaValues)
	f.Int64Var(&s.backlog, "max-backlog", 0, "most unfinished tasks"+quotaValues)
	s.quotas = quotaFlags()
	for i := range s.quotas {
		f.Int64Var(&s.quotas[i].value, s.quotas[i].name, 0, s.quotas[i].usage+quotaValues)
	}
	f.StringVar(&s.caps, "kind-caps", "", "most open runs of each kind, such as mail=10,report=2; replaces all caps; \"\" for none")
}

// read puts the flags that were given into a tenant and names their fields.
func (s *rateSettings) read(cmd *cobra.Command, t *perceptorv1.Tenant) (fields []string, err error) {
	caps, err := kindCaps(s.caps)
	if err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("weight") && s.weight == 0 { // which the API takes for a weight that was not given
		return nil, cli.Usagef("--weight: 0 is not between 1 and %d", task.MaxWeight)
	}
	type flag struct {
		name string
		put  func()
	}
	all := []flag{
		{"dispatch-rate", func() { t.DispatchRate = s.dispatch }},
		{"dispatch-burst", func() { t.DispatchBurst = s.burst }},
		{"weight", func() { t.Weight = s.weight }},
		{"add-rate", func() { t.AddRate = s.add }},
		{"max-backlog", func() { t.MaxBacklog = s.backlog }},
		{"kind-caps", func() { t.KindCaps = caps }},
	}
	for _, q := range s.quotas {
		if q.value != int64(int32(q.value)) && q.name != "byte-rate" {
			return nil, cli.Usagef("--%s: %d is too large", q.name, q.value)
		}
		all = append(all, flag{q.name, func() { q.put(t, q.value) }})
	}
	for _, f := range all {
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
	return c.completesTenants(&cobra.Command{
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
	}, "")
}

// quotaTable shows the quotas that apply to a tenant, and what it uses of them.
func quotaTable(t *perceptorv1.Tenant) *table {
	out := &table{head: []string{"QUOTA", "LIMIT", "USED"}}
	for _, q := range t.QuotaUse {
		limit := "-"
		if q.Limit > 0 {
			limit = strconv.FormatInt(q.Limit, 10)
		}
		out.add(q.Quota, limit, strconv.FormatInt(q.Used, 10))
	}
	return out
}

// ratesCell says what is not as it is for everybody.
func ratesCell(t *perceptorv1.Tenant) string {
	var said []string
	say := func(when bool, format string, args ...any) {
		if when {
			said = append(said, fmt.Sprintf(format, args...))
		}
	}
	say(t.Deleting, "being deleted")
	say(t.Paused && !t.Deleting, "paused")
	say(t.DispatchRate > 0, "dispatch %d/s", t.DispatchRate)
	say(t.DispatchBurst > 0, "burst %d", t.DispatchBurst)
	say(t.Weight > 1, "weight %d", t.Weight)
	quota := func(name string, n int64) {
		say(n > 0, "%s %d", name, n)
		say(n < 0, "%s unlimited", name)
	}
	quota("add-rate", int64(t.AddRate))
	quota("max-backlog", t.MaxBacklog)
	for _, q := range quotaFlags() {
		quota(q.name, q.get(t))
	}
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
