package shards

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// BenchmarkFar prints the cost of calls on the far tier: adds of far tasks in groups, and
// Get and Cancel of tasks in packs of n tasks. pg-µs and go-µs are CPU time for each
// task; the other figure is the duration of a call.
func BenchmarkFar(b *testing.B) {
	const groups = 100
	for _, size := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("add=%d", size), func(b *testing.B) {
			t := setup(b)
			spec := t.spec(task.OneShot, t.inHours(5), func(s *task.Spec) { s.ParamsWire = make([]byte, 100) })
			var prepared [][]*adding
			for range groups {
				prepared = append(prepared, t.requests(size, spec))
			}
			t.measure(b, size, groups, func(i int) error {
				for _, err := range t.dbs[t.d].doAdds(b.Context(), prepared[i]) {
					if err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	for _, size := range []int{1, 1024, 2048} {
		for name, call := range map[string]func(*bundle, task.ID) error{
			"get":    func(t *bundle, id task.ID) error { _, err := t.Get(b.Context(), t.tenant, id); return err },
			"cancel": func(t *bundle, id task.ID) error { _, err := t.Cancel(b.Context(), t.tenant, id); return err },
		} {
			b.Run(fmt.Sprintf("%s=%d", name, size), func(b *testing.B) {
				t := setup(b, nearOnly)
				var ids []task.ID
				for len(ids) < 300 {
					ids = append(ids, t.packed(size)...)
				}
				t.measure(b, 1, 300, func(i int) error { return call(t, ids[i*len(ids)/300]) })
			})
		}
	}
	b.Run("get=near", func(b *testing.B) {
		t := setup(b, nearOnly)
		ids := t.addMany(300, func(int) task.Instant { return t.now })
		t.measure(b, 1, 300, func(i int) error { _, err := t.Get(b.Context(), t.tenant, ids[i]); return err })
	})
}

// measure makes n calls about so many tasks each. The first fifth of them warms
// up.
func (b *bundle) measure(bench *testing.B, tasks, n int, call func(i int) error) {
	var took []time.Duration
	var pg, own time.Duration
	for i := range n {
		if i == n/5 {
			pg, own = b.backendCPU(), ownTime()
		}
		at := time.Now()
		if err := call(i); err != nil {
			bench.Fatal(err)
		}
		took = append(took, time.Since(at))
	}
	pg, own = b.backendCPU()-pg, ownTime()-own
	took = took[n/5:]
	slices.Sort(took)
	of := float64(len(took) * tasks)
	bench.ReportMetric(float64(pg.Microseconds())/of, "pg-µs")
	bench.ReportMetric(float64(own.Microseconds())/of, "go-µs")
	bench.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	bench.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// packed makes one pack of n tasks, due within an hour.
func (b *bundle) packed(size int) []task.ID {
	b.t.Helper()
	ids := b.addMany(size, func(i int) task.Instant { return b.now.Add(5*time.Hour) + task.Instant(i*7919%3_000_000) })
	b.put(inPack, pack.Day, ids...)
	return ids
}

func ownTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// backendCPU returns the CPU time that the sessions of this test's database have used.
// The server must run on this machine.
func (b *bundle) backendCPU() (sum time.Duration) {
	rows, err := b.db.Pool(b.d).Query(b.t.Context(), `SELECT pid FROM pg_stat_activity WHERE datname = current_database()`)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			b.t.Fatal(err)
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if err != nil {
			continue
		}
		ns, _ := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}
