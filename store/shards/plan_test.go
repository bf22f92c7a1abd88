package shards

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// TestListsAreLookedUpByKeyEvenWhenPlannedOnEmptyTables: a generic plan that was
// made on empty tables is kept while they grow. One that reads all rows for each
// entry of a list was measured at 1.7 ms a row. To a planner, tables that have never
// been vacuumed are not empty.
func TestListsAreLookedUpByKeyEvenWhenPlannedOnEmptyTables(t *testing.T) {
	b := setup(t)
	for _, state := range tableStates {
		if state.sql != "" {
			b.exec(state.sql)
		}
		for name, args := range map[string]string{
			"ReportEnd":     `'{0}', '{1}', '{512}', '{1}', '{1}', '{7}', '{null}', '{f}'`,
			"ReportGoOn":    `'{0}', '{1}', '{512}', '{1}', '{1}', '{7}', '{null}', '{f}'`,
			"StartRuns":     `'{0}', '{1}', '{512}', '{1}', '{1}', '{7}'`,
			"RowsUpdate":    `'{0}', '{1}', '{512}', '{0}', '{1}', '{1}', '{1}', '{0}', '{0}', '{1}', '{1}', '{f}', '{0}', '{0}', '{1}', '{0}', '{null}', '{null}', '{null}', '{null}', '{f}'`,
			"MachineLock":   `'{0}', '{1}', '{512}', '{0}'`,
			"MachineRead":   `'{0}', '{1}', '{512}', '{0}'`,
			"DoneStates":    `'{1}', '{512}'`,
			"ClaimCapped":   fmt.Sprintf(`%d::int2, 0::int8, '{}', '{}', 1000::int8, '{}', 10, 0, 0`, b.owned[0].Shard),
			"ClaimFlows":    flowPlanArgs,
			"ClaimTogether": flowPlanArgs + `, 10::int8, 0::int8`,
			"CapForget":     `1, 'k'`,
			"CapOpen":       `1, 'k'`,
			"Demote":        `1000::int8, 10`,
			"CheckRuns":     `'{0}', '{1}', '{512}', '{1}', '{1}'`,
		} {
			plan := b.explain(name, args)
			tables := task.ShardsPerDatabase
			switch name {
			case "DoneStates":
				tables = 1
			case "CheckRuns":
				tables *= 2 // the task and its run
			}
			if strings.Count(plan, "_pkey on task_") != tables || strings.Count(plan, "(id = u.id)")+strings.Count(plan, "(id = c.id)") != tables {
				t.Errorf("%s (tables %s) does not look rows up by key:\n%s", name, state.name, plan)
			}
		}
	}
}

// tableStates are what a plan may be made on, one after the other.
var tableStates = []struct{ name, sql string }{
	{"new", ``},
	{"analyzed", `VACUUM ANALYZE task`},
	{"analyzed with those that are done", `VACUUM ANALYZE task_done`},
	{"vacuumed", `VACUUM (TRUNCATE true) task`},
	{"filled", `INSERT INTO task (shard, tenant_id, id, run, due_at, scheduled_at, anchor, begin_at, give_up_after_ms, retention_ms,
		created_at, ack_timeout_ms, type, state, kind, params)
		SELECT item, 9, 512 * n + item, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 'k', ''
		  FROM owner, generate_series(1, 1000) n WHERE item < 512`},
	{"filled and analyzed", `ANALYZE task`},
	{"emptied", `DELETE FROM task`},
	{"emptied and vacuumed", `VACUUM (TRUNCATE false) task`},
	{"emptied and analyzed", `ANALYZE task`},
}

// TestOneTaskIsEditedAndExplainedByItsKeyAlone: both read rows of one shard, by its
// key, and an explanation the first row of its due index.
func TestOneTaskIsEditedAndExplainedByItsKeyAlone(t *testing.T) {
	b := setup(t)
	shard := b.owned[0].Shard
	for _, state := range tableStates {
		if state.sql != "" {
			b.exec(state.sql)
		}
		for name, test := range map[string]struct {
			args string
			due  int
		}{
			"RowEdit": {fmt.Sprintf(`%d::int2, 9, %d, 1, 1, 1, 1, 1, 1, 1, 'k', NULL, false, 2, NULL`,
				shard, task.NewID(1, shard)), 0},
			"Circumstances": {fmt.Sprintf(`%d::int2, 9, %d, 60000`, shard, task.NewID(1, shard)), 1},
		} {
			plan := b.explain(name, test.args)
			keys, due := strings.Count(plan, "_pkey on task_"), strings.Count(plan, "_due_at_idx on task_")
			if keys != 1 || due != test.due || whole.MatchString(plan) || !oneKey.MatchString(plan) {
				t.Errorf("%s (tables %s) looks at %d keys and %d due indexes:\n%s", name, state.name, keys, due, plan)
			}
		}
	}
}

// oneKey is a look-up of one task in the key of its shard.
var oneKey = regexp.MustCompile(`Index Cond: \(\(tenant_id = \$2[^)]*\) AND \(shard = \$1[^)]*\) AND \(id = \$3`)

// TestUnpublishedDeadRunsAreFoundByTheirIndex: of a tenant whose topic is broken, or
// whose dead runs are all published, no more rows are looked at than are wanted.
func TestUnpublishedDeadRunsAreFoundByTheirIndex(t *testing.T) {
	b := setup(t)
	// An autovacuum that has seen the table empty makes both indexes equal, until there are rows enough to matter.
	b.exec(`ALTER TABLE dead_run SET (autovacuum_enabled = off)`)
	t.Cleanup(func() { b.exec(`ALTER TABLE dead_run RESET (autovacuum_enabled)`) })
	b.exec(`TRUNCATE dead_run`)
	b.exec(`DELETE FROM pg_statistic WHERE starelid = 'dead_run'::regclass`) // what one before this test has seen
	for _, state := range []struct{ name, sql string }{
		{"new", ``},
		{"filled", `INSERT INTO dead_run (tenant_id, id, seq, scheduled_at, died_at, attempt, reason, kind, error, params, type,
			give_up_after_ms, retention_ms, ack_timeout_ms, published)
			SELECT n % 7, n, 1, 1, n, 1, 1, 'k', '', '', 1, 1, 1, 1, n % 3 > 0 FROM generate_series(1, 5000) n`},
		{"analyzed", `ANALYZE dead_run`},
		{"vacuumed", `VACUUM ANALYZE dead_run`},
	} {
		if state.sql != "" {
			b.exec(state.sql)
		}
		for name, test := range map[string]struct {
			args  string
			looks int
		}{"DeadTenants": {`3, 10`, 2}, "DeadUnpublished": {`'{3,4}', 10`, 1}} {
			plan := b.explain(name, test.args)
			if n := strings.Count(plan, "using dead_run_unpublished"); n != test.looks || strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort Key: d") {
				t.Errorf("%s (table %s) uses the index %d times, want %d, and nothing else:\n%s", name, state.name, n, test.looks, plan)
			}
		}
	}
	b.exec(`DELETE FROM dead_run`)
}

// TestWhatIsDueIsFoundByTheDueIndex: shards are chosen by pruning, and never by an
// index, which would read each of them whole.
func TestWhatIsDueIsFoundByTheDueIndex(t *testing.T) {
	b := setup(t)
	var specs []task.Spec
	for range 100 {
		specs = append(specs, b.spec(task.OneShot))
	}
	for filled, fill := range []func(){func() {}, func() { b.add(specs...) }, func() { b.exec(`VACUUM ANALYZE task`) }} {
		fill()
		for name, test := range map[string]struct {
			args   string
			tables int
		}{
			"ClaimRange":    {`'{0}', 0::int8, '{}', '{}', 1000::int8, '{}', 0, 0`, task.ShardsPerDatabase},
			"ClaimCapped":   {fmt.Sprintf(`%d::int2, 0::int8, '{}', '{}', 1000::int8, '{}', 10, 0, 0`, b.owned[0].Shard), 1},
			"ClaimFlows":    {flowPlanArgs, task.ShardsPerDatabase},
			"ClaimFlow":     {`'{0}', 1000::int8, '{}', '{}', 1, 10::int8, 0::int8, 0::int8`, 2 * task.ShardsPerDatabase},
			"ClaimTogether": {flowPlanArgs + `, 10::int8, 0::int8`, task.ShardsPerDatabase},
			"Peek":          {`'{0}', 0::int8, 1000::int8, 10, 64, 0::int8`, 2 * task.ShardsPerDatabase},
			"DueShard":      {fmt.Sprintf(`%d, 0, 1000`, b.owned[0].Shard), task.ShardsPerDatabase},
			"TaskListDue":   {fmt.Sprintf(`1, %d::int2, 0, '', 0::int2, 0::int2, 10, 0, 1000, 1000000`, b.owned[0].Shard), 1},
			"PeekFew":       {`'{0}', 0::int8, 64`, task.ShardsPerDatabase},
			"PeekExcluded":  {`'{0}', 0::int8, 1000::int8, 10, 64, 0::int8, '{1}', 1000`, 2 * task.ShardsPerDatabase},
		} {
			plan := b.explain(name, test.args)
			if n := strings.Count(plan, "_due_at_idx on task_"); n != test.tables {
				t.Errorf("%s (state %d) uses the due index %d times, want %d:\n%s", name, filled, n, test.tables, plan)
			}
			if strings.HasPrefix(name, "Peek") {
				continue
			}
			if n := len(dueRange.FindAllString(plan, -1)); n != test.tables {
				t.Errorf("%s (state %d) looks for a range %d times, want %d:\n%s", name, filled, n, test.tables, plan)
			}
		}
	}
}

// TestAPageOfRowsBeginsWhereTheLastOneEnded: the rows before a position are not read
// and left out, which would make deep pages cost more than the first.
func TestAPageOfRowsBeginsWhereTheLastOneEnded(t *testing.T) {
	b := setup(t)
	var specs []task.Spec
	for range 100 {
		specs = append(specs, b.spec(task.OneShot))
	}
	for filled, fill := range []func(){func() {}, func() { b.add(specs...) }, func() { b.exec(`VACUUM ANALYZE task`) }} {
		fill()
		plan := b.explain("TaskList", fmt.Sprintf(`1, %d::int2, 7, '', 0::int2, 0::int2, 10, 1000000`, b.owned[0].Shard))
		if n := len(pairRange.FindAllString(plan, -1)); n == 0 || n != strings.Count(plan, " on task_") || strings.Contains(plan, "Sort") {
			t.Errorf("state %d: %d tables are entered at the position:\n%s", filled, n, plan)
		}
	}
}

// pairRange is an index range that begins at a pair.
var pairRange = regexp.MustCompile(`Index Cond: \(\(tenant_id = \$1\) AND .*\(ROW\(shard, id\) > ROW\(`)

// flowPlanArgs are arguments of ClaimFlows.
const flowPlanArgs = `'{0}', 1000::int8, '{}', '{}', '{1}', '{""}', '{10}', '{0}', '{0}', '{1}', '{k}'`

// dueRange is an index range with both ends: what is beyond them is not visited.
var dueRange = regexp.MustCompile(`Index Cond: \(\(due_at [<>]=? [^)]*\) AND \(due_at [<>]`)

// explain returns the generic plan of a statement.
func (b *bundle) explain(name, args string) string {
	b.t.Helper()
	conn, err := b.db.Pool(b.d).Acquire(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Release()
	simple := pgx.QueryExecModeSimpleProtocol
	if _, err := conn.Exec(context.Background(), `PREPARE planned AS `+sql.Get(name).Text(), simple); err != nil {
		b.t.Fatal(err)
	}
	rows, err := conn.Query(context.Background(), `EXPLAIN (VERBOSE false) EXECUTE planned (`+args+`)`, simple)
	if err != nil {
		b.t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	if _, err := conn.Exec(context.Background(), `DEALLOCATE planned`, simple); err != nil {
		b.t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
