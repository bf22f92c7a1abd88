package shards

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// BenchmarkCycle moves ONE_SHOT tasks all the way round in one database: add,
// claim, report, in groups of the size that its name says. It prints rows/s and
// the share of each step.
func BenchmarkCycle(b *testing.B) {
	for _, size := range []int{32, 256, 1000} {
		b.Run(fmt.Sprintf("group=%d", size), func(b *testing.B) {
			t := setup(b)
			t.exec(realClock)
			b.Cleanup(func() { t.exec(testClock) })
			spec := t.spec(task.OneShot)
			spec.ParamsWire = make([]byte, 150)
			var add, claim, report time.Duration
			b.ResetTimer()
			for range b.N {
				at := time.Now()
				group := t.requests(size, spec)
				for _, err := range t.dbs[t.d].doAdds(context.Background(), group) {
					if err != nil {
						b.Fatal(err)
					}
				}
				add += time.Since(at)
				at = time.Now()
				c := t.claim(task.RangeForm)
				claim += time.Since(at)
				at = time.Now()
				results := make([]task.Report, len(c.Publications))
				for i, p := range c.Publications {
					results[i] = success(p.Task, p.Seq, p.Attempt, 1)
				}
				for i, code := range t.report(results...) {
					if code != task.Accepted {
						b.Fatalf("result %d: %s", i, code)
					}
				}
				report += time.Since(at)
				if len(c.Publications) != size {
					b.Fatalf("claimed %d of %d", len(c.Publications), size)
				}
			}
			rows := float64(b.N * size)
			b.ReportMetric(rows/b.Elapsed().Seconds(), "cycles/s")
			b.ReportMetric(float64(add.Microseconds())/rows, "add-µs")
			b.ReportMetric(float64(claim.Microseconds())/rows, "claim-µs")
			b.ReportMetric(float64(report.Microseconds())/rows, "report-µs")
		})
	}
}

// realClock puts the clock of installations back.
const realClock = `CREATE OR REPLACE FUNCTION now_ms() RETURNS int8 LANGUAGE sql STABLE PARALLEL SAFE
	AS 'SELECT floor(date_part(''epoch'', statement_timestamp()) * 1000)::int8'`

// requests makes a group of requests with size tasks in all, 25 in each.
func (b *bundle) requests(size int, spec task.Spec) []*adding {
	var group []*adding
	for left := size; left > 0; left -= 25 {
		specs := make([]task.Spec, min(25, left))
		for i := range specs {
			specs[i] = spec
		}
		key := b.requestID()
		group = append(group, &adding{req: task.AddRequest{Tenant: b.tenant, RequestID: key, Specs: specs}, key: key, home: task.ShardOf(key)})
	}
	return group
}

// BenchmarkClaim claims 5,000 due ONE_SHOT tasks of one database, a thousand at a time, by each form.
func BenchmarkClaim(b *testing.B) {
	const groups, size = 5, 1000
	for name, claim := range map[string]func(t *bundle) task.Claim{
		"range":  func(t *bundle) task.Claim { return t.claim(task.RangeForm) },
		"capped": func(t *bundle) task.Claim { return t.claim(task.CappedForm) },
		"flows":  func(t *bundle) task.Claim { return t.claimReq(task.ClaimRequest{Flows: []task.Flow{t.flow("", size)}}) },
		"flow": func(t *bundle) task.Claim {
			return t.claimReq(task.ClaimRequest{Form: task.RangeForm, Flows: []task.Flow{t.flow("", size)}})
		},
		"together": func(t *bundle) task.Claim {
			return t.claimReq(task.ClaimRequest{Flows: []task.Flow{t.flow("", size)}, Together: true, MaxRows: size})
		},
	} {
		b.Run(name, func(b *testing.B) {
			t := setup(b)
			var took time.Duration
			rows := 0
			for b.Loop() {
				for i := range groups {
					spec := t.spec(task.OneShot, begin(t.now.Add(time.Duration(i+1)*time.Second)))
					spec.ParamsWire = make([]byte, 150)
					for _, err := range t.dbs[t.d].doAdds(context.Background(), t.requests(size, spec)) {
						if err != nil {
							b.Fatal(err)
						}
					}
				}
				if name != "range" {
					t.advance(groups * time.Second)
				}
				var results []task.Report
				for range groups {
					if name == "range" {
						t.advance(time.Second)
					}
					at := time.Now()
					c := claim(t)
					took += time.Since(at)
					rows += len(c.Publications)
					for _, p := range c.Publications {
						results = append(results, success(p.Task, p.Seq, p.Attempt, 1))
					}
				}
				t.report(results...)
			}
			b.ReportMetric(float64(took.Microseconds())/float64(rows), "µs/row")
			b.ReportMetric(float64(rows)/float64(b.N*groups), "rows/claim")
		})
	}
}
