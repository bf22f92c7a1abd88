package shards

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/task"
)

func tagged(tags ...string) func(*task.Spec) {
	return func(s *task.Spec) { s.Tags = task.SortTags(tags) }
}

func kept(s *task.Spec) { s.Retention = time.Hour }

// spread adds 36 tasks over all places, due in 1 to 12 hours, and returns them by their
// properties.
func (b *bundle) spread() (all map[task.ID]task.Spec) {
	b.t.Helper()
	all = map[task.ID]task.Spec{}
	for i := range 12 {
		var specs []task.Spec
		for _, tags := range [][]string{nil, {"red"}, {"blue", "red"}} {
			specs = append(specs, b.spec(task.OneShot, b.inHours(1+i), tagged(tags...), kept))
		}
		ids := b.add(specs...)
		for j, id := range ids {
			all[id] = specs[j]
		}
		b.put(everyPlace[i%3], pack.Hour, ids...)
	}
	return all
}

func TestAListingByTagsAndDueInstantsMeetsEachWantedTaskOnce(t *testing.T) {
	b := setup(t, nearOnly)
	all := b.spread()
	for _, f := range []task.Filter{
		{Tags: []string{"red"}},
		{Tags: []string{"blue", "red"}},
		{Tags: []string{"blue", "green"}},
		{DueFrom: b.now.Add(3 * time.Hour), DueUntil: b.now.Add(7 * time.Hour)},
		{DueFrom: b.now.Add(3*time.Hour + 1)},
		{DueUntil: b.now.Add(5 * time.Hour), Tags: []string{"red"}},
		{DueFrom: b.now.Add(3 * time.Hour), DueUntil: b.now.Add(3*time.Hour + 1), Tags: []string{"blue"}},
		{AddedUntil: b.now},
		{AddedFrom: b.now},
	} {
		want := map[task.ID]bool{}
		for id, s := range all {
			r := task.NewRow(b.tenant, id, &s, b.now)
			if f.Matches(r) {
				want[id] = true
			}
		}
		for _, limit := range []int{1, 5, 1000} {
			seen := b.listAll(task.ListQuery{Tenant: b.tenant, Limit: limit, Filter: f}, func() {})
			for id, n := range seen {
				if n != 1 || !want[id] {
					t.Errorf("%+v by %d: task %d was met %d times; wanted: %t", f, limit, id, n, want[id])
				}
			}
			if len(seen) != len(want) {
				t.Errorf("%+v by %d: met %d tasks, want %d", f, limit, len(seen), len(want))
			}
		}
	}
}

// large gives a task params of size bytes.
func large(size int) func(*task.Spec) {
	return func(s *task.Spec) { s.ParamsWire = bytes.Repeat([]byte{'x'}, size) }
}

func TestAPageOfLargeTasksIsBoundedInBytesAndTheOthersFollow(t *testing.T) {
	const size, n = 60_000, 150
	for name, change := range map[string]func(*Config){"as rows": nearOnly, "in packs": func(*Config) {}} {
		b := setup(t, change)
		for range n / 10 {
			var specs []task.Spec
			for range 10 {
				specs = append(specs, b.spec(task.OneShot, b.inHours(3), large(size)))
			}
			b.add(specs...)
		}
		for filter, f := range map[string]task.Filter{"all": {}, "due": {DueFrom: b.now, DueUntil: b.now.Add(9 * time.Hour)}} {
			q := task.ListQuery{Tenant: b.tenant, Limit: n, Filter: f}
			seen := map[task.ID]int{}
			for {
				page, err := b.List(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				if got := len(page.Tasks) * size; got > 4<<20+size {
					t.Errorf("%s, %s: a page has %d bytes of params", name, filter, got)
				}
				for _, s := range page.Tasks {
					seen[s.ID]++
				}
				if q.After = page.Next; q.After == nil {
					break
				}
			}
			if len(seen) != n {
				t.Errorf("%s, %s: %d of %d tasks are listed", name, filter, len(seen), n)
			}
		}
	}
}

func TestAListingByDueInstantsReadsNoPackOfAnotherBucket(t *testing.T) {
	b := setup(t, nearOnly)
	for i := range 6 {
		b.put(inPack, pack.Hour, b.add(b.spec(task.OneShot, b.inHours(1+i)))...)
	}
	l := &listing{store: b.Store, at: task.ListCursor{Database: b.d, Stage: task.ListPacks}, rows: 100, packs: listPacks, windows: listWindows}
	l.q = task.ListQuery{Tenant: b.tenant, Limit: 100, Filter: task.Filter{DueFrom: b.now.Add(3 * time.Hour), DueUntil: b.now.Add(4 * time.Hour)}}
	if end, err := l.window(t.Context()); err != nil || !end {
		t.Fatal(end, err)
	}
	if read := listPacks - l.packs; len(l.page.Tasks) != 1 || read > 2 {
		t.Errorf("%d tasks out of %d packs, want 1 out of 1 or 2", len(l.page.Tasks), read)
	}
}

func TestAListingByDueInstantsMeetsItsTasksHoweverManyPacksTheRangeHas(t *testing.T) {
	b := setup(t, nearOnly)
	first := b.add(b.spec(task.OneShot, b.inHours(3)))
	b.put(inPack, pack.Hour, first...)
	// Packs of another tenant in the same bucket: they are looked at by name only.
	copies := func(n int) {
		b.exec(fmt.Sprintf(`INSERT INTO far_pack (bucket_at, level, n, min_tenant, max_tenant, min_id, max_id, keys, params)
			SELECT bucket_at, level, n, 9999, 9999, min_id, max_id, keys, params
			  FROM (SELECT * FROM far_pack ORDER BY id LIMIT 1) p, generate_series(1, %d)`, n))
	}
	copies(far.DuePacks / 2)
	second := b.add(b.spec(task.OneShot, b.inHours(3)))
	b.put(inPack, pack.Hour, second...)
	for _, more := range []int{0, far.DuePacks / 2, far.WindowPacks} {
		copies(more)
		f := task.Filter{DueFrom: b.now.Add(2 * time.Hour), DueUntil: b.now.Add(4 * time.Hour)}
		seen := b.listAll(task.ListQuery{Tenant: b.tenant, Limit: 1, Filter: f}, func() {})
		if len(seen) != 2 || seen[first[0]] != 1 || seen[second[0]] != 1 {
			t.Errorf("after %d more packs: met %v, want %v and %v once", more, seen, first, second)
		}
	}
}

func TestADueRangeCostsWhatLiesInIt(t *testing.T) {
	b := setup(t, nearOnly)
	b.tenant += int32(b.d)
	for i := range 4 {
		b.put(inPack, pack.Hour, b.add(b.spec(task.OneShot, b.inHours(2+i)), b.spec(task.OneShot, b.inHours(2+i)))...)
	}
	due := func(from, until time.Duration) task.Filter {
		return task.Filter{DueFrom: b.now.Add(from), DueUntil: b.now.Add(until)}
	}
	for name, test := range map[string]struct {
		filter task.Filter
		living int64
		want   int64
	}{
		"all":                         {due(-time.Hour, 48*time.Hour), 8, 8},
		"an hour":                     {due(2*time.Hour, 2*time.Hour+time.Second), 8, 2},
		"behind all":                  {due(48*time.Hour, 50*time.Hour), 108, 0},
		"with the near tier":          {due(0, 48*time.Hour), 108, 108},
		"half of the near tier":       {due(0, b.Horizon()/2), 108, 50},
		"what has been due long":      {due(-2*time.Hour, -time.Hour), 108, 0},
		"RUNNING, which is near":      {task.Filter{State: task.Running}, 108, 100},
		"RUNNING, and due much later": {task.Filter{State: task.Running, DueFrom: b.now.Add(time.Hour)}, 108, 0},
	} {
		q := &task.ListQuery{Tenant: b.tenant, Filter: test.filter}
		if got, err := b.ListCost(t.Context(), q, test.living); err != nil || got != test.want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, test.want)
		}
	}
}

func TestManyTasksDueAtOneInstantArePagedThrough(t *testing.T) {
	b := setup(t, nearOnly)
	var want []task.ID
	for range 3 {
		specs := slices.Repeat([]task.Spec{b.spec(task.OneShot, b.inHours(1))}, 50)
		want = append(want, b.add(specs...)...)
	}
	seen := b.listAll(task.ListQuery{Tenant: b.tenant, Limit: 7, Filter: task.Filter{DueFrom: 1}}, func() {})
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("met %d of %d tasks", len(got), len(want))
	}
}
