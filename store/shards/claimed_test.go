package shards

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/task"
)

// claimedSample has the columns of claim_returning, and every combination that
// differs. $1 rows
const claimedSample = `SELECT 1700000000000 + n, -n::int4, n * 512, n % 2, -n, (1 + n % 3)::int2, n, 7::int4, 2::int2, 1::int8, 2::int8,
	CASE WHEN n % 2 = 0 THEN n END, CASE WHEN n % 3 = 0 THEN n * 3 END, 4::int4, 30000::int4, n % 4 = 0, 'kind ' || n / 100,
	CASE WHEN n % 5 > 0 THEN convert_to(repeat('x', (n % 5 * 30)::int4 - 30), 'UTF8') END, CASE WHEN n % 7 = 0 THEN '\x010c0161'::bytea END
	FROM generate_series(1::int8, $1::int8) n`

// scanned reads a row as pgx does.
func scanned(rows pgx.Rows, r *claimed) error {
	r.params = nil
	var sealed []byte
	defer func() {
		terms, origin := task.Unseal(sealed)
		r.origin, r.misfire = origin, terms.MisfirePolicy(task.Type(r.typ))
	}()
	return rows.Scan(&r.now, &r.tenant, &r.id, &r.run, &r.due, &r.typ, &r.seq, &r.attempt, &r.state, &r.scheduled, &r.anchor,
		&r.interval, &r.end, &r.version, &r.ackTimeout, &r.undecided, &r.kind, &r.params, &sealed)
}

// sample reads all rows of claimedSample.
func (b *bundle) sample(n int, reader func(pgx.Rows) func(*claimed) error, each func(*claimed)) {
	b.t.Helper()
	rows, err := b.db.Pool(b.d).Query(context.Background(), claimedSample, n)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	var r claimed
	read := reader(rows)
	for rows.Next() {
		if err := read(&r); err != nil {
			b.t.Fatal(err)
		}
		each(&r)
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
}

func byScan(rows pgx.Rows) func(*claimed) error {
	return func(r *claimed) error { return scanned(rows, r) }
}

func byHand(rows pgx.Rows) func(*claimed) error {
	return (&claimReader{rows: rows}).read
}

func TestClaimedRowsAreReadAsPgxReadsThem(t *testing.T) {
	b := setup(t)
	collect := func(reader func(pgx.Rows) func(*claimed) error) (all []claimed) {
		b.sample(500, reader, func(r *claimed) {
			c := *r
			for _, p := range []**int64{&c.interval, &c.end} {
				if *p != nil {
					v := **p
					*p = &v
				}
			}
			all = append(all, c)
		})
		return all
	}
	want, got := collect(byScan), collect(byHand)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(claimed{})); diff != "" || len(got) != 500 {
		t.Errorf("%d rows (-pgx +by hand):\n%s", len(got), diff)
	}
}

func TestClaimedRowOfAnotherShapeIsRefused(t *testing.T) {
	values := func() [][]byte {
		var out [][]byte
		for _, n := range []int{8, 4, 8, 8, 8, 2, 8, 4, 2, 8, 8, 8, 8, 4, 4, 1, 3, 5, 0} {
			out = append(out, make([]byte, n))
		}
		return out
	}
	var d claimReader
	if err := d.decode(values(), &claimed{}); err != nil {
		t.Fatal(err)
	}
	for i := range len(claimedTypes) - 3 {
		for _, v := range [][]byte{make([]byte, 3), make([]byte, 9), {}} {
			broken := values()
			broken[i] = v
			if err := d.decode(broken, &claimed{}); err == nil {
				t.Errorf("value %d of %d bytes was accepted", i+1, len(v))
			}
		}
	}
	if err := d.decode(values()[1:], &claimed{}); err == nil {
		t.Error("a row without its first value was accepted")
	}
	columns := make([]pgconn.FieldDescription, len(claimedTypes))
	for i := range columns {
		columns[i] = pgconn.FieldDescription{Name: "c", DataTypeOID: claimedTypes[i], Format: pgx.BinaryFormatCode}
	}
	if err := checkClaimed(columns); err != nil {
		t.Fatal(err)
	}
	columns[0].Format = pgx.TextFormatCode
	if err := checkClaimed(columns); err == nil || !strings.Contains(err.Error(), "format 0") {
		t.Errorf("a number as text: %v", err)
	}
	if err := checkClaimed(columns[1:]); err == nil {
		t.Error("a missing column was accepted")
	}
}

// BenchmarkClaimedRows reports the CPU time of this process for a row, with what
// receiving it takes.
func BenchmarkClaimedRows(b *testing.B) {
	const rows = 5000
	t := setup(b)
	for name, reader := range map[string]func(pgx.Rows) func(*claimed) error{"scan": byScan, "by hand": byHand} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				t.sample(rows, reader, func(*claimed) {})
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N*rows), "cpu-ns/row")
		})
	}
}

func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
