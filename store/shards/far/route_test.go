package far

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// TestCutKeepsTheMultisetOfTasks checks that routing loses and duplicates no row.
func TestCutKeepsTheMultisetOfTasks(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		const now = task.Instant(1_700_000_000_000)
		var all []*task.Row
		route := newRouting(now.Add(10 * time.Minute))
		for range 1 + r.IntN(5) {
			span := []int64{1, 60, 3600, 86400, 86400 * 100}[r.IntN(5)] * 1000
			from := source{level: pack.Level(r.IntN(5)), whole: r.IntN(4) == 0}
			if r.IntN(5) == 0 {
				from = source{keep: pack.Bucket{Level: pack.Day, At: 0}}
			}
			var rows []*task.Row
			for range r.IntN(400) {
				due := now + task.Instant(r.Int64N(span*3)) - task.Instant(span/3)
				rows = append(rows, &task.Row{
					Tenant: r.Int32N(3) + 1, ID: task.NewID(int64(len(all)+len(rows)+2), task.Shard(r.IntN(32))), Type: task.OneShot, State: task.Scheduled,
					DueAt: due, ScheduledAt: due, Anchor: due, Terms: task.Terms{Begin: due, End: task.Never, Kind: "k"}, Version: 1, Params: make([]byte, r.IntN(50)),
				})
			}
			all = append(all, rows...)
			route.add(rows, from)
		}
		route.settle()
		packs, err := route.packs()
		if err != nil {
			t.Fatal(err)
		}
		out := slices.Clone(route.near)
		for _, p := range packs {
			rows, err := pack.Decode(p.Keys, p.Params)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				if p.At != 0 && pack.BucketOf(row.DueAt, p.Level) != p.Bucket {
					t.Fatalf("seed %d: due %s in %v", seed, row.DueAt, p.Bucket)
				}
				if p.At != 0 && p.Level == pack.Hour && p.At < route.border-hourWidth {
					t.Fatalf("seed %d: bucket %v has passed", seed, p.Bucket)
				}
			}
			out = append(out, rows...)
		}
		byID := func(a, b *task.Row) int { return int(a.ID - b.ID) }
		slices.SortFunc(all, byID)
		slices.SortFunc(out, byID)
		if diff := cmp.Diff(ids(all), ids(out)); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

const hourWidth = task.Instant(3600_000)

func ids(rows []*task.Row) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = fmt.Sprint(r.Tenant, r.ID, r.DueAt, len(r.Params))
	}
	return out
}
