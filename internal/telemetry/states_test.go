package telemetry

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/task"
)

// values gathers the values of gauges and counters and the counts of histograms, by name and
// labels.
func values(t testing.TB, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			all[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

func TestWhatIsMeasuredOfTenantsIsSummedByTheirNames(t *testing.T) {
	r := prometheus.NewRegistry()
	names := tenantsOf(r)
	for i := range maxNames - 1 {
		names.label(fmt.Sprint("t", i), 1)
	}
	RegisterStates(r, names, States{
		Due: func() []Due {
			return []Due{
				{"acme", task.OneShot, 3, time.Second}, {"acme", task.OneShot, 4, time.Minute}, {"acme", task.Blocking, 1, time.Hour},
				{"x", task.OneShot, 5, time.Second}, {"y", task.OneShot, 6, 2 * time.Second},
			}
		},
		Listeners: func() []Listeners { return []Listeners{{"acme", 2, 7}, {"x", 0, 8}, {"y", 0, -1}} },
		Stored: func() []Stored {
			return []Stored{
				{"acme", task.OneShot, task.Counts{Scheduled: 1, Failed: 2, Dead: 3}}, {"acme", task.OneShot, task.Counts{Scheduled: 4}},
				{"", task.OneShot, task.Counts{Running: 5}},
			}
		},
	})
	got := values(t, r)
	for key, want := range map[string]float64{
		"tasks_due acme ONE_SHOT": 7, "tasks_due acme BLOCKING": 1, "tasks_due (other) ONE_SHOT": 11,
		"tasks_due_oldest_seconds acme ONE_SHOT": 60, "tasks_due_oldest_seconds (other) ONE_SHOT": 2,
		"listeners acme": 2, "listeners (other)": 0, "listener_lag_records acme": 7, "listener_lag_records (other)": 8, "tenants_without_listener": 2,
		"tasks SCHEDULED acme ONE_SHOT": 5, "tasks FAILED acme ONE_SHOT": 2, "tasks RUNNING (other) ONE_SHOT": 5, "dead_runs acme ONE_SHOT": 3,
	} {
		if value, has := got[prefix+key]; !has || value != want {
			t.Errorf("%s = %v (%t), want %v", key, value, has, want)
		}
	}
}

func TestTheUseOfQuotasIsToldByTenant(t *testing.T) {
	r := prometheus.NewRegistry()
	api := NewAPI(r)
	for i := range maxNames - 1 {
		api.Added(fmt.Sprint("t", i), "ONE_SHOT", 1)
	}
	api.Quotas(func() int { return 1 }, func() []QuotaUse {
		return []QuotaUse{
			{"acme", 50, map[task.Quota]float64{task.QuotaAdds: .5}}, {"x", 70, map[task.Quota]float64{task.QuotaAdds: .7}},
			{"y", 0, map[task.Quota]float64{task.QuotaAdds: .6}},
		}
	})
	got := values(t, r)
	adds := task.QuotaAdds.String()
	for key, want := range map[string]float64{
		"quota_use_ratio " + adds: .7, "tenant_quota_use_ratio " + adds + " acme": .5, "tenant_quota_use_ratio " + adds + " (other)": .7,
		"dispatch_rate_limit acme": 50,
	} {
		if got[prefix+key] != want {
			t.Errorf("%s = %v, want %v", key, got[prefix+key], want)
		}
	}
}

// fire counts a delivery and a result of each of n tenants and each type.
func fire(d *Dispatch, a *API, n int) {
	for i := range n {
		name := fmt.Sprint("tenant-", i)
		for _, t := range []task.Type{task.OneShot, task.NonBlocking, task.Blocking} {
			d.Published(name, t, true, time.Duration(i)*time.Second)
			d.Published(name, t, false, time.Second)
			d.Died(name, t, task.Silent)
			d.Missed(name, t, task.Skip, 1)
			for _, o := range []task.Outcome{task.Success, task.Fail, task.Snooze} {
				a.Reported(name, t, o, time.Duration(i)*time.Millisecond)
			}
		}
	}
}

func TestTheSeriesOfManyTenantsAreBounded(t *testing.T) {
	r := prometheus.NewRegistry()
	d, a := NewDispatch(r, func() Figures { return Figures{} }), NewAPI(r)
	fire(d, a, maxNames)
	few := len(values(t, r))
	fire(d, a, 10*maxNames)
	many := values(t, r)
	if allowed := few + few/maxNames + 10; len(many) > allowed {
		t.Errorf("%d series with %d tenants, want at most %d", len(many), 10*maxNames, allowed)
	}
	if got := many[prefix+"lateness_seconds (other) BLOCKING"]; got != 9*maxNames {
		t.Errorf("the others were late %v times, want %d", got, 9*maxNames)
	}
}

// BenchmarkAThousandTenants measures one delivery and one result, of tenants with and without a
// name, and what a scrape takes.
func BenchmarkAThousandTenants(b *testing.B) {
	r := prometheus.NewRegistry()
	d, a := NewDispatch(r, func() Figures { return Figures{} }), NewAPI(r)
	fire(d, a, 1000)
	for name, tenant := range map[string]string{"published/named": "tenant-7", "published/other": "tenant-777"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d.Published(tenant, task.OneShot, true, 20*time.Millisecond)
			}
		})
	}
	b.Run("reported", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			a.Reported("tenant-7", task.OneShot, task.Success, 20*time.Millisecond)
		}
	})
	b.Run("scrape", func(b *testing.B) {
		series := 0
		for b.Loop() {
			families, err := r.Gather()
			if err != nil {
				b.Fatal(err)
			}
			series = 0
			for _, f := range families {
				for _, m := range f.Metric {
					series += max(1, len(m.GetHistogram().GetBucket())+3*min(1, len(m.GetHistogram().GetBucket())))
				}
			}
		}
		b.ReportMetric(float64(series), "series")
	})
}
