package sizing

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// typical is a demand without anything special.
func typical(rate float64, backlog int64) Demand {
	return Demand{Rate: rate, Backlog: backlog, Retention: time.Hour, PayloadBytes: 100, Tenants: 1}
}

// within fails unless got differs from want by at most this share.
func within(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s: %.4g, want %.4g within %.0f %%", what, got, want, 100*share)
	}
}

func program(t *testing.T, p Plan, name string) Program {
	t.Helper()
	for _, g := range p.Programs {
		if g.Name == name {
			return g
		}
	}
	t.Fatalf("the plan has no %s", name)
	return Program{}
}

func bytesOf(t *testing.T, p Plan, what string) float64 {
	t.Helper()
	for _, s := range p.Disk {
		if s.What == what {
			return s.Bytes
		}
	}
	t.Fatalf("the plan has no %s", what)
	return 0
}

// The figures are those of docs/performance.md and docs/scaling.md.
func TestThePlanIsCloseToWhatRunsHaveUsed(t *testing.T) {
	t.Parallel()
	// Full cycles, one dispatcher: the plan has a second one for availability, 20 ms/s.
	for rate, usPerCycle := range map[float64]float64{1000: 673, 5000: 147, 20_000: 85, 24_000: 80} {
		p := typical(rate, int64(3*rate)).Plan()
		within(t, "cores at "+plain(rate)+"/s", p.CoresUsed-0.02, rate*usPerCycle/1e6, 0.35)
	}
	kept := typical(20_000, 60_000)
	kept.Retention = 0
	p := kept.Plan()
	within(t, "log at 20,000/s", p.WALBytesPerS, 20_000*1007, 0.05)
	within(t, "log at 1,000/s, all tasks kept", typical(1000, 3000).Plan().WALBytesPerS, 1000*1444, 0.05)
	kilobyte := typical(1000, 3000)
	kilobyte.PayloadBytes = 1000
	within(t, "log at 1,000/s, 1,000 bytes", kilobyte.Plan().WALBytesPerS, 1000*3840, 0.1)
	within(t, "a finished task of 1,000 bytes", bytesOf(t, kilobyte.Plan(), "finished tasks")/3600e3, 1440, 0.2)
	within(t, "PostgreSQL at 20,000/s", program(t, p, Postgres).CoresUsed, 0.8, 0.15)

	billion := typical(0, 1e9)
	billion.PackedShare = 0.16
	within(t, "a billion waiting tasks", bytesOf(t, billion.Plan(), "waiting tasks in packs"), 30e9, 0.2)

	// 200 tenants at 1,000/s: 991 µs where one has 453.
	many := typical(1000, 3000)
	many.Tenants = 200
	within(t, "200 tenants", many.Plan().CoresUsed-typical(1000, 3000).Plan().CoresUsed, 0.538, 0.05)

	// 600/s with 10,000 bytes: 88 µs a cycle more.
	large := typical(600, 1800)
	large.PayloadBytes = 10_000
	within(t, "large payloads", large.Plan().CoresUsed-typical(600, 1800).Plan().CoresUsed, 600*88e-6, 0.1)
}

func TestServersAndProcessesFollowTheRate(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64][3]int{1000: {1, 2, 2}, 20_000: {1, 2, 2}, 100_000: {4, 3, 3}, 1_000_000: {16, 21, 21}} {
		p := typical(rate, int64(rate*300)).Plan()
		if got := [3]int{program(t, p, Postgres).Count, program(t, p, Taskd).Count, program(t, p, Dispatcher).Count}; got != want {
			t.Errorf("%s/s: servers, taskds, dispatchers %v, want %v", plain(rate), got, want)
		}
	}
	given := typical(100, 100)
	given.Servers = 8
	if p := given.Plan(); program(t, p, Postgres).Count != 8 || p.Demand.Servers != 8 {
		t.Errorf("--servers is not kept: %+v", p.Programs)
	}
}

// A server has 16 / servers databases, to each of which every process has up to 4 connections.
func TestConnectionsCountEveryProcessAndDatabase(t *testing.T) {
	t.Parallel()
	p := typical(1000, 3000).Plan()
	if p.ConnectionsPerServer != 4*4*16+2+20 || p.SessionsPerServer != 141 {
		t.Errorf("one server, four processes: %d allowed, %d in use", p.ConnectionsPerServer, p.SessionsPerServer)
	}
	d := typical(1000, 3000)
	d.Servers = 16
	if p := d.Plan(); p.ConnectionsPerServer != 4*4+2+20 {
		t.Errorf("16 servers: %d", p.ConnectionsPerServer)
	}
}

func TestRecurringTasksNeedNoAddsAndLeaveNothing(t *testing.T) {
	t.Parallel()
	once, again := typical(1000, 1e6), typical(1000, 1e6)
	again.Recurring, again.Retention, once.Retention = 1, 30*24*time.Hour, 30*24*time.Hour
	a, b := once.Plan(), again.Plan()
	if kept := bytesOf(t, b, "finished tasks"); kept != 0 {
		t.Errorf("recurring tasks leave %v bytes", kept)
	}
	if keys := bytesOf(t, b, "keys and request ids"); keys != 0 {
		t.Errorf("runs without an add leave %v bytes of request ids", keys)
	}
	if a.DiskBytes < 100*b.DiskBytes/2 && bytesOf(t, a, "finished tasks") < 500e9 {
		t.Errorf("a month of a thousand finished tasks a second takes %.0f GB", a.DiskBytes/1e9)
	}
	if program(t, b, Taskd).CoresUsed >= program(t, a, Taskd).CoresUsed {
		t.Error("adds cost taskd nothing")
	}
}

func TestTheFarTierIsForTasksThatWaitLongerThanTheHorizon(t *testing.T) {
	t.Parallel()
	soon, late := typical(1000, 599_000).Plan(), typical(1000, 10_000_000).Plan()
	if soon.FarTier || !late.FarTier || late.MeanWaitS != 10_000 {
		t.Errorf("far tier %v and %v, mean wait %v s", soon.FarTier, late.FarTier, late.MeanWaitS)
	}
	if n := bytesOf(t, late, "tasks due within the horizon") / (nearRowBytes + 100); n != 600_000 {
		t.Errorf("%.0f rows within the horizon", n)
	}
	if late.WALBytesPerS <= soon.WALBytesPerS {
		t.Error("promotions write no log")
	}
}

func TestMoreLoadNeverNeedsLess(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		d := Demand{
			Rate: math.Exp(r.Float64() * 14), Backlog: int64(math.Exp(r.Float64() * 21)), Retention: time.Duration(r.IntN(1000)) * time.Hour,
			Recurring: r.Float64(), Keyed: r.Float64(), PayloadBytes: 100 + r.IntN(1800), Tenants: 1 + r.IntN(5000),
		}
		p := d.Plan()
		for what, more := range map[string]Demand{
			"rate":      func(d Demand) Demand { d.Backlog, d.Rate = d.Backlog*2, d.Rate*2; return d }(d),
			"backlog":   func(d Demand) Demand { d.Backlog *= 2; return d }(d),
			"retention": func(d Demand) Demand { d.Retention += time.Hour; return d }(d),
			"payload":   func(d Demand) Demand { d.PayloadBytes += 90; return d }(d),
			"tenants":   func(d Demand) Demand { d.Tenants *= 2; return d }(d),
		} {
			q := more.Plan()
			if q.CoresUsed < p.CoresUsed*(1-1e-9) || q.WALBytesPerS < p.WALBytesPerS*(1-1e-9) || q.KafkaDiskBytes < p.KafkaDiskBytes*(1-1e-9) ||
				q.DiskBytes < p.DiskBytes*0.999 && what != "backlog" {
				t.Fatalf("seed %d: more %s needs less:\n%+v\n%+v", seed, what, p, q)
			}
		}
		sum := 0.0
		for _, part := range p.Disk {
			sum += part.Bytes
		}
		if math.Abs(sum-p.DiskBytes) > 1e-6*sum || math.IsNaN(p.Cores) || math.IsInf(p.Cores, 0) || p.Cores <= 0 {
			t.Fatalf("seed %d: %+v", seed, p)
		}
	}
}

func TestFaultsNameFieldAndValue(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Demand){
		"rate: -1 is not 0 to 10000000":                   func(d *Demand) { d.Rate = -1 },
		"rate: NaN is not 0 to 10000000":                  func(d *Demand) { d.Rate = math.NaN() },
		"rate: +Inf is not 0 to 10000000":                 func(d *Demand) { d.Rate = math.Inf(1) },
		"rate: 0, and --backlog is 0":                     func(d *Demand) { d.Rate, d.Backlog = 0, 0 },
		"backlog: -5 is not 0 to 1000000000000":           func(d *Demand) { d.Backlog = -5 },
		"retention: -1s is not 0s to 87600h0m0s":          func(d *Demand) { d.Retention = -time.Second },
		"recurring: 1.5 is not 0 to 1":                    func(d *Demand) { d.Recurring = 1.5 },
		"keyed: -0.1 is not 0 to 1":                       func(d *Demand) { d.Keyed = -0.1 },
		"payload: 2000000 is not 0 to 1048576":            func(d *Demand) { d.PayloadBytes = 2_000_000 },
		"packed-share: 2 is not 0 to 1":                   func(d *Demand) { d.PackedShare = 2 },
		"tenants: 0 is not 1 to 1000000":                  func(d *Demand) { d.Tenants = 0 },
		"servers: 17 is not 0 to 16":                      func(d *Demand) { d.Servers = 17 },
		"horizon: 48h0m0s is not 0s to 24h0m0s":           func(d *Demand) { d.Horizon = 48 * time.Hour },
		"kafka-retention: -1h0m0s is not 0s to 8760h0m0s": func(d *Demand) { d.KafkaRetention = -time.Hour },
		"kafka-replicas: 11 is not 0 to 10":               func(d *Demand) { d.KafkaReplicas = 11 },
		"listeners: -1 is not 0 to 1000000":               func(d *Demand) { d.Listeners = -1 },
	} {
		d := typical(1000, 1000)
		change(&d)
		faults := d.Faults()
		if len(faults) != 1 || !strings.HasPrefix(faults[0].Field+": "+faults[0].Message, want) {
			t.Errorf("%v, want %s", faults, want)
		}
	}
	d := typical(-1, -1)
	if len(d.Faults()) != 2 {
		t.Error("not all faults are named at once")
	}
	if d = typical(1000, 1000); len(d.Faults()) != 0 {
		t.Errorf("%v", d.Faults())
	}
}
