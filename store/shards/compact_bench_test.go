package shards

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// BenchmarkCut moves tasks through the far tier: a compaction of level 0 into days and
// hours, a split of an hour into minutes, its promotion, and a demotion. For each it
// reports the cost of a task in this process and in the PostgreSQL session, the duration
// of the longest transaction, and the duration of claims during promotions.
func BenchmarkCut(b *testing.B) {
	for range b.N {
		c := &cutBench{bundle: setup(b), b: b, r: rand.New(rand.NewPCG(1, 2))}
		c.run()
	}
}

const benchTasks = 131072

type cutBench struct {
	*bundle
	b *testing.B
	r *rand.Rand
}

func (c *cutBench) run() {
	own := c.chores()
	hour := pack.BucketOf(c.now.Add(5*time.Hour), pack.Hour)
	c.arrivals(benchTasks, func() task.Instant { return c.now.Add(time.Hour + time.Duration(c.r.Int64N(int64(30*24*time.Hour)))) })
	c.measure("recut-30d", func() task.Compaction { return c.step(own, task.CompactLevel0) })
	c.exec(`DELETE FROM far_pack`)
	c.arrivals(benchTasks, func() task.Instant { return hour.At + task.Instant(c.r.Int64N(int64(hour.End()-hour.At))) })
	c.measure("recut-1h", func() task.Compaction { return c.step(own, task.CompactLevel0) })
	c.setClock(hour.At.Add(-25 * time.Minute))
	c.measure("split", func() task.Compaction { return c.step(own, task.CompactSplit) })
	c.setClock(hour.End())
	c.measure("promote", func() task.Compaction { return c.step(own, task.CompactPromote) })
	c.setClock(hour.At.Add(-24 * time.Hour))
	c.measure("demote", func() task.Compaction {
		out, err := c.Demote(context.Background(), c.d, own, 0)
		if err != nil {
			c.b.Fatal(err)
		}
		return out
	})
	c.claimsBeside(own, hour)
}

func (c *cutBench) step(own task.Ownership, kind task.CompactionKind) task.Compaction {
	out, err := c.Compact(context.Background(), task.CompactionRequest{Database: c.d, Own: own, Kind: kind})
	if err != nil {
		c.b.Fatal(err)
	}
	return out
}

// arrivals stores n tasks as groups of 250 adds leave them, with params of about
// 100 bytes of JSON.
func (c *cutBench) arrivals(n int, due func() task.Instant) {
	for left := n; left > 0; left -= 250 {
		a := c.requests(min(250, left), c.spec(task.OneShot))
		for _, add := range a {
			for i := range add.req.Specs {
				add.req.Specs[i].Begin = due()
				add.req.Specs[i].ParamsWire = fmt.Appendf(nil, `{"order":"%08x","customer":%d,"amount":"%d.99 EUR","template":"reminder-%d","lang":"en"}`, c.r.Uint32(), c.r.IntN(1e6), c.r.IntN(500), c.r.IntN(8))
			}
		}
		for _, err := range c.dbs[c.d].doAdds(context.Background(), a) {
			if err != nil {
				c.b.Fatal(err)
			}
		}
	}
}

// measure compacts until nothing is left to do.
func (c *cutBench) measure(name string, step func() task.Compaction) {
	tasks, longest := 0, time.Duration(0)
	goBefore, pgBefore := ownTime(), c.backendCPU()
	for {
		at := time.Now()
		out := step()
		longest = max(longest, time.Since(at))
		tasks += out.Near + out.Packed
		if !out.More {
			break
		}
	}
	if tasks == 0 {
		c.b.Fatalf("%s moved nothing", name)
	}
	per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(tasks) }
	c.b.ReportMetric(per(ownTime()-goBefore), name+"-go-µs")
	c.b.ReportMetric(per(c.backendCPU()-pgBefore), name+"-pg-µs")
	c.b.ReportMetric(float64(longest.Milliseconds()), name+"-longest-ms")
	c.b.Logf("%s: %d tasks", name, tasks)
}

// claimsBeside promotes the demoted tasks again, while due rows are claimed.
func (c *cutBench) claimsBeside(own task.Ownership, hour pack.Bucket) {
	claims := func(stop <-chan struct{}) []time.Duration {
		var took []time.Duration
		for {
			at := time.Now()
			cl := c.claim(task.CappedForm)
			took = append(took, time.Since(at))
			results := make([]task.Report, len(cl.Publications))
			for i, p := range cl.Publications {
				results[i] = success(p.Task, p.Seq, p.Attempt, 1)
			}
			c.report(results...)
			select {
			case <-stop:
				slices.Sort(took)
				return took
			default:
			}
		}
	}
	c.addMany(40000, func(int) task.Instant { return c.now })
	alone := make(chan struct{})
	time.AfterFunc(time.Second, func() { close(alone) })
	before := claims(alone)
	c.setClock(hour.End())
	stop, done := make(chan struct{}), make(chan []time.Duration)
	go func() { done <- claims(stop) }()
	for c.step(own, task.CompactPromote).More {
	}
	close(stop)
	beside := <-done
	for name, took := range map[string][]time.Duration{"alone": before, "beside": beside} {
		c.b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "claim-"+name+"-p50-ms")
		c.b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "claim-"+name+"-max-ms")
	}
}
