//go:build planted

package shards

import (
	"strings"

	"github.com/perceptor/perceptor/internal/mutation"
	"github.com/perceptor/perceptor/store/statement"
)

// planted spoils statements in the ways that have been gotten wrong before; see
// package plant.
func planted(set statement.Set) statement.Set {
	for _, bug := range []struct{ name, statement, right, wrong string }{
		{"epoch-without-lock", "AssertOwned", "FOR SHARE OF o", ""},
		{"report-without-seq", "ReportGoOn", "t.seq = u.seq AND", "true AND"},
		{"report-without-holder-and-attempt", "ReportGoOn", "t.attempt = u.attempt AND t.out AND t.holder = u.holder", "true"},
		{"start-without-holder", "StartRuns", "(t.holder IS NULL OR t.holder = u.holder)", "true"},
		{"outbox-list-written-back", "OutboxTakeOff", "s <> ALL (p.shards)", "true"},
		{"no-key-row", "KeyInsert", "ON CONFLICT DO NOTHING", "ON CONFLICT (shard, tenant_id, key) DO UPDATE SET first_id = excluded.first_id"},
		{"open-bit-ends-task", "ReportEnd", "AND t.open_runs & ~(1::int8 << (t.seq - u.seq)::int4) = 0", ""},
	} {
		if !mutation.Bug(bug.name) {
			continue
		}
		text := set.Get(bug.statement)
		if !strings.Contains(text, bug.right) {
			panic("bug " + bug.name + " has nowhere to be planted")
		}
		set[bug.statement] = strings.ReplaceAll(text, bug.right, bug.wrong)
	}
	return set
}
