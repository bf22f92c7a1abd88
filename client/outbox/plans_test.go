package outbox

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Rows that were removed and are not vacuumed yet lie behind the cursor. A plan that reads them would take
// longer with each row that was ever moved while a transaction elsewhere holds vacuum back.
func TestRelaysReadNothingBehindTheirCursors(t *testing.T) {
	b := setup(t)
	conn, err := pgx.Connect(t.Context(), b.dsn)
	b.must(err)
	defer conn.Close(t.Context()) //nolint:errcheck // the test is over
	_, err = standard.sql.settings.Exec(t.Context(), conn)
	b.must(err)
	_, err = conn.Exec(t.Context(), "INSERT INTO perceptor_outbox.operation (part, op, form, body) SELECT 1, 1, 1, '\\x00' FROM generate_series(1, 20000); ANALYZE perceptor_outbox.operation")
	b.must(err)
	for name, c := range map[string]struct {
		text string
		args []any
	}{
		"claim":   {standard.sql.claim.Text(), []any{int16(1), "me", int64(1), "id", int64(19000), "100:200:100,150", "201", []int64{}, int64(1000), int64(batchBytes)}},
		"pending": {standard.sql.pending.Text(), []any{[]int16{1}, []int64{19000}, []string{"100:200:100,150"}, []string{"201"}}},
	} {
		rows, err := conn.Query(t.Context(), "EXPLAIN (COSTS OFF) "+c.text, c.args...)
		b.must(err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		b.must(err)
		plan := strings.Join(lines, "\n")
		if strings.Count(plan, "Index Scan using operation_xid on") != 2 || strings.Contains(plan, "Seq Scan on operation") || strings.Contains(plan, "Bitmap") {
			t.Errorf("%s reads more than what is new:\n%s", name, plan)
		}
	}
}
