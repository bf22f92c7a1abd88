package shards

import (
	"regexp"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// TestPackedTasksAreFoundByIndexes: no statement of the request side reads a
// table of the far tier from end to end, or an index without a condition unless
// it stops after a limit, whatever the tables hold when its plan is made.
func TestPackedTasksAreFoundByIndexes(t *testing.T) {
	b := setup(t, nearOnly)
	statements := map[string]struct {
		args string
		// want are conditions that the plan must have.
		want []string
	}{
		"TaskRead":     {`0, 1, 512`, append([]string{"One-Time Filter: (NOT $"}, farConditions...)},
		"FarCopies":    {`1, 512`, farConditions},
		"FarWhere":     {`'{0}', '{1}', '{512}'`, append([]string{"task_done_pkey", "(id = u"}, farConditions...)},
		"FarKeys":      {`'{1,-2}'`, []string{"far_pack_pkey", "far_level0_pkey", "far_tombstone_pkey"}},
		"PackParams":   {`1`, []string{"far_pack_pkey"}},
		"Level0Params": {`1`, []string{"far_level0_pkey"}},
		"PackHold":     {`1`, []string{"far_pack_pkey"}},
		"Level0Hold":   {`1`, []string{"far_level0_pkey"}},
		"PackWindow":   {`1, 0, 100, 0, 9`, []string{"far_pack_pkey", "(id > $2)"}},
		"PackDue":      {`1, 0, 100, 0, 9`, []string{"far_pack_bucket", ") AND (bucket_at > ", ") AND (bucket_at < "}},
		"Level0Window": {`1, 0, 100`, []string{"far_level0_pkey", "(first > $2)"}},
		"FarDamaged":   {`10`, []string{"far_pack_quarantine", "far_level0_quarantine"}},
	}
	for filled, fill := range []func(){
		func() { b.exec(`TRUNCATE far_pack, far_level0, far_locator, far_tombstone`) }, // nothing, and never vacuumed
		func() {
			for i := range 6 {
				b.put(everyPlace[1+i%2], pack.Hour, b.add(b.spec(task.OneShot, b.inHours(2+i)))...)
			}
		},
		func() {
			b.exec(`VACUUM ANALYZE far_pack, far_level0, far_locator, far_tombstone`)
		},
		func() { // few packs, and analyzed when there were many in few buckets
			b.exec(`INSERT INTO far_pack (bucket_at, level, n, min_tenant, max_tenant, min_id, max_id, keys, params)
				SELECT i % 2, 1 + i / 2 % 2, 1, 1, 1, 1, 1, '', '' FROM generate_series(1, 300) i`)
			b.exec(`ANALYZE far_pack`)
			b.exec(`TRUNCATE far_pack`)
		},
	} {
		fill()
		for name, s := range statements {
			plan := b.explain(name, s.args)
			if whole.MatchString(plan) {
				t.Errorf("%s (state %d) reads a table whole:\n%s", name, filled, plan)
			}
			for _, w := range s.want {
				if !strings.Contains(plan, w) {
					t.Errorf("%s (state %d) has no %s:\n%s", name, filled, w, plan)
				}
			}
		}
	}
}

var farConditions = []string{"far_level0_pkey", "far_locator_pkey", "far_pack_bucket", "far_tombstone_pkey", ") AND (bucket_at = ", "(first <= "}

var whole = regexp.MustCompile(`Seq Scan on (far_|task)`)
