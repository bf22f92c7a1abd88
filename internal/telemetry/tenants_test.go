package telemetry

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestTheBusiestTenantsHaveNames: a tenant keeps its name for an hour, then a busier one takes its
// place; no counter falls, and the number of series is bounded.
func TestTheBusiestTenantsHaveNames(t *testing.T) {
	now := time.Unix(1000, 0)
	names := newTenants(func() time.Time { return now })
	done := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "done"}, []string{"tenant"})
	names.series = []deleter{done}
	registry := prometheus.NewRegistry()
	registry.MustRegister(done)
	series := func() map[string]float64 {
		all := map[string]float64{}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range families[0].Metric {
			all[m.Label[0].GetValue()] = m.Counter.GetValue()
		}
		return all
	}
	count := func(name string, n int) { done.WithLabelValues(names.label(name, n)).Add(float64(n)) }
	review := func() {
		now = now.Add(window)
		names.mu.Lock()
		names.review()
		names.mu.Unlock()
	}
	for i := range 1000 {
		count(fmt.Sprint("t", i), 1)
	}
	count("", 5)
	others := series()[otherName]
	if others != 905 || len(series()) != maxNames+1 {
		t.Errorf("others have %v, %d series", others, len(series()))
	}
	for range 5 { // 50 min
		count("busy", 100)
		review()
	}
	if (*names.named.Load())["busy"] != nil || (*names.named.Load())["t0"] == nil {
		t.Error("a tenant lost its name within the hour")
	}
	for i := range maxNames - 1 {
		count(fmt.Sprint("t", i), 80) // all but t99
	}
	count("busy", 100)
	review()
	if named := *names.named.Load(); named["busy"] == nil || named["t99"] != nil || len(named) != maxNames {
		t.Errorf("after an hour the busier tenant has no name")
	}
	count("busy", 7)
	if got := series()["busy"]; got != 7 {
		t.Errorf("the name begins with %v", got)
	}
	if got := series()[otherName]; got != others+600 {
		t.Errorf("others have %v, want %v", got, others+600)
	}
	if len(series()) != maxNames+2 {
		t.Errorf("%d series", len(series()))
	}
	review()
	if len(series()) != maxNames+1 {
		t.Errorf("%d series: those of the retired tenant are left", len(series()))
	}
}

func BenchmarkTenantLabel(b *testing.B) {
	names := newTenants(time.Now)
	for range b.N {
		names.label("acme", 1)
	}
}
