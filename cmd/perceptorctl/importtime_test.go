package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer"
)

func TestTheBarOfAnImportCountsWhatIsStored(t *testing.T) {
	for name, c := range map[string]struct {
		plan                   *transfer.Plan
		on                     *perceptorv1.Import
		bytes, lines, answered int64
		done, total            int64
	}{
		"nothing is stored":       {&transfer.Plan{Bytes: 8e6, Lines: 400_000}, nil, 8e6, 400_000, 0, 0, 8e6},
		"a third is stored":       {&transfer.Plan{Bytes: 8e6, Lines: 390_000}, nil, 8e6, 393_216, 131_072, 2_666_666, 8e6},
		"half is read":            {&transfer.Plan{Bytes: 8e6, Lines: 390_000}, nil, 4e6, 200_000, 100_000, 2e6, 8e6},
		"nothing is read":         {&transfer.Plan{Bytes: 8e6, Lines: 390_000}, nil, 0, 0, 0, 0, 8e6},
		"all is stored":           {&transfer.Plan{Bytes: 8e6, Lines: 390_000}, nil, 8e6, 400_000, 400_000, 8e6 - 1, 8e6},
		"lines were counted":      {&transfer.Plan{Bytes: 8e6, Lines: 1000, Exact: true}, nil, 8e6, 1000, 250, 250, 1000},
		"an import is resumed":    {&transfer.Plan{Bytes: 8e6, Lines: 1000, Exact: true}, &perceptorv1.Import{LineCount: 500}, 8e6, 1000, 250, 750, 1000},
		"nobody knows how many":   {nil, nil, 8e6, 1000, 250, 250, 0},
		"a file without any line": {&transfer.Plan{Bytes: 8, Exact: true}, nil, 8, 0, 0, 0, 0},
	} {
		i := &importing{plan: c.plan, on: c.on}
		i.bytes.Store(c.bytes)
		i.lines.Store(c.lines)
		i.answered.Store(c.answered)
		if done, total := i.stored(); done != c.done || total != c.total {
			t.Errorf("%s: %d of %d, want %d of %d", name, done, total, c.done, c.total)
		}
	}
}

// figures is an API that knows one quota.
type figures struct {
	perceptorv1.UnimplementedMonitoringServiceServer
	quotas []*perceptorv1.QuotaUse
	err    error
}

func (f *figures) GetTenantFigures(context.Context, *perceptorv1.GetTenantFiguresRequest) (*perceptorv1.TenantFigures, error) {
	return &perceptorv1.TenantFigures{Quotas: f.quotas}, f.err
}

func TestThePlanOfAnImportAllowsForTheQuotaOfTheTenant(t *testing.T) {
	f := &figures{}
	api(t, func(s *grpc.Server) { perceptorv1.RegisterMonitoringServiceServer(s, f) })
	root := newCommand()
	conn, err := grpc.NewClient("dns:///"+root.PersistentFlags().Lookup("address").DefValue, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing depends on it
	for name, c := range map[string]struct {
		limit int64
		err   error
		rate  int32
		keys  bool
		want  string
	}{
		"a quota":               {20_000, nil, 0, false, "time about 30s at 20000 lines per second, which is the tenant's quota add_rate"},
		"a quota above --rate":  {20_000, nil, 10_000, false, "time about 1m0s at 10000 lines per second, which is --rate"},
		"a quota below --rate":  {20_000, nil, 30_000, false, "time about 30s at 20000 lines per second, which is the tenant's quota add_rate"},
		"a quota that is large": {1_000_000, nil, 0, false, "time about 2s at 300000 lines per second\n"},
		"no quota":              {0, nil, 0, true, "time about 12s at 50000 lines per second\n"},
		"a token that may only add": {0, status.Error(codes.PermissionDenied, "needs READ"), 0, false,
			"time about 2s at 300000 lines per second; a quota of the tenant (add_rate) may slow it"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			f.quotas, f.err = []*perceptorv1.QuotaUse{{Quota: "read_rate", Limit: 7}, {Quota: "add_rate", Limit: c.limit}}, c.err
			i := &importing{
				importOptions: &importOptions{rate: c.rate}, conn: conn, plan: &transfer.Plan{Lines: 600_000, Keys: c.keys},
				screen: screen{w: &out, bar: cli.NewProgress(&out, "importing")},
			}
			i.sayTime(t.Context())
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("got %q, want %q", out.String(), c.want)
			}
		})
	}
}

func TestAnImportSaysWhatItWaitsFor(t *testing.T) {
	quota, err := status.New(codes.ResourceExhausted, "add_rate: at most 20000 tasks can be added per second; try again in 5s").WithDetails(
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{Description: "add_rate: at most 20000 tasks can be added per second"}}})
	if err != nil {
		t.Fatal(err)
	}
	i := &importing{c: &ctl{address: "localhost:7070", timeout: time.Second}}
	for want, err := range map[string]error{
		"the import waits for a quota of the tenant: add_rate: at most 20000 tasks can be added per second": quota.Err(),
		"the service has too much to do: chunks":                                                            status.Error(codes.ResourceExhausted, "chunks"),
		"the service does not answer: away":                                                                 errors.New("away"),
	} {
		if got := i.away(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
