package harness

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Statements declares --statements: the experiment asks pg_stat_statements what PostgreSQL spent
// its time on.
func (f *Flags) Statements() {
	f.Switch(&f.common.Statements, "statements", "count PostgreSQL's statements and their time; costs some percent itself")
}

// countStatements makes the server of the stack count statements.
func (s *Setup) countStatements() {
	settings := maps.Clone(s.Real.Postgres)
	if settings == nil {
		settings = map[string]string{}
	}
	settings["shared_preload_libraries"], settings["pg_stat_statements.track_planning"] = "pg_stat_statements", "on"
	s.Real.Postgres = settings
}

// Statement is what PostgreSQL did for one statement, of all databases together.
type Statement struct {
	Text string  `json:"text"` // the begin
	PerS float64 `json:"per_s"`
	// PlansPerS is how often it was planned in a second: by a session that executes it first, or again
	// because a table has changed.
	PlansPerS float64 `json:"plans_per_s"`
	// PlanUs and MeanUs are the elapsed time of one execution: for its plan, and in all.
	PlanUs float64 `json:"plan_us"`
	MeanUs float64 `json:"mean_us"`
	// MsPerS is the elapsed time of all executions in a second. It is more than the processor
	// time: it includes waits for locks, the disk and the processor.
	MsPerS float64 `json:"ms_per_s"`
	// Rows and WALBytes are those of a call: rows returned or written, and bytes of the log.
	Rows     float64 `json:"rows"`
	WALBytes float64 `json:"wal_bytes"`
}

// StatementCounts are totals of pg_stat_statements.
type StatementCounts map[string]executions

type executions struct {
	calls, plans  float64
	plan, execute float64 // ms
	rows, wal     float64 // returned or written; bytes
}

func (e executions) plus(o executions) executions {
	return executions{e.calls + o.calls, e.plans + o.plans, e.plan + o.plan, e.execute + o.execute, e.rows + o.rows, e.wal + o.wal}
}

// Statements returns the totals by statement. It creates the extension if that is missing.
func (d *Database) Statements(ctx context.Context) (StatementCounts, error) {
	if _, err := d.conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
		return nil, fmt.Errorf("count statements: %w", err)
	}
	rows, err := d.conn.Query(ctx, "SELECT query, calls::float8, plans::float8, total_plan_time, total_exec_time, rows::float8, wal_bytes::float8 FROM pg_stat_statements")
	if err != nil {
		return nil, fmt.Errorf("count statements: %w", err)
	}
	c := StatementCounts{}
	var query string
	var e executions
	_, err = pgx.ForEachRow(rows, []any{&query, &e.calls, &e.plans, &e.plan, &e.execute, &e.rows, &e.wal}, func() error {
		text := firstWords(query)
		c[text] = c[text].plus(e)
		return nil
	})
	return c, err
}

// mostStatements is the number of statements that reports have.
const mostStatements = 25

// Since returns what was executed since an earlier count, the statements with the most time
// first.
func (c StatementCounts) Since(before StatementCounts, took time.Duration) (all []Statement) {
	for text, a := range c {
		b := before[text]
		calls, plan, whole := a.calls-b.calls, a.plan-b.plan, a.plan+a.execute-b.plan-b.execute
		if calls <= 0 {
			continue
		}
		all = append(all, Statement{
			Text: text, PerS: Round(calls / took.Seconds()), PlansPerS: Round((a.plans - b.plans) / took.Seconds()),
			PlanUs: Round(1000 * plan / calls), MeanUs: Round(1000 * whole / calls), MsPerS: Round(whole / took.Seconds()),
			Rows: Round((a.rows - b.rows) / calls), WALBytes: Round((a.wal - b.wal) / calls),
		})
	}
	slices.SortFunc(all, func(a, b Statement) int {
		return cmp.Or(-cmp.Compare(a.MsPerS, b.MsPerS), -cmp.Compare(a.PerS, b.PerS), strings.Compare(a.Text, b.Text))
	})
	return all[:min(len(all), mostStatements)]
}

// longestStatement is the number of characters of a statement in a report.
const longestStatement = 110

// shardTable is the table of one shard: statements that differ in it alone count as one.
var shardTable = regexp.MustCompile(`\btask_\d{3}\b`)

// firstWords returns the begin of a statement, on one line.
func firstWords(text string) string {
	r := []rune(shardTable.ReplaceAllString(strings.Join(strings.Fields(text), " "), "task_NNN"))
	return string(r[:min(len(r), longestStatement)])
}

// Statements adds a line for each statement.
func (t *Table) Statements(all []Statement) {
	if len(all) > 0 {
		t.Line("  %10s %10s %10s %10s %10s %10s %10s  statement", "calls/s", "plans/s", "plan us", "us a call", "ms a s", "rows", "WAL bytes")
	}
	for _, s := range all {
		t.Line("  %10.1f %10.2f %10.1f %10.1f %10.2f %10.1f %10.0f  %s", s.PerS, s.PlansPerS, s.PlanUs, s.MeanUs, s.MsPerS, s.Rows, s.WALBytes, s.Text)
	}
}
