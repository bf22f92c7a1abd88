package clock

import (
	"context"
	"fmt"
	"math/bits"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/clock/sql"
	"github.com/perceptor/perceptor/task"
)

// View describes the pending work of one database at one moment.
type View struct {
	// Database is the number of the database.
	Database int
	Now      task.Instant
	// Due is the earliest due instant of the near tier. [task.Never] means that there is none.
	Due task.Instant
	// Level0: the far tier has packs of which nobody knows when they are due.
	Level0 bool
	// Bucket is the beginning of the earliest bucket of the far tier. [task.Never] means
	// that there is none.
	Bucket task.Instant
	// Outbox is the number of claims that are not known to be published.
	Outbox int
	// Waiting are the earliest due instants of tenants with a rate, or with kinds of
	// which only so many may run at once, as far as first claims go.
	Waiting map[int32]task.Instant
	// Tokens say when there is a turn for a tenant with a rate, for those whose
	// tokens this database gives out.
	Tokens map[int32]task.Instant
	// Open are runs that await their result, up to [MaxOpen].
	Open []OpenRun
}

// OpenRun is a delivered run that awaits its result.
type OpenRun struct {
	Tenant string // its name
	task.RunID
	// Attempt is 0 for a run of a NON_BLOCKING task that has no row of its own.
	Attempt int32
	Kind    string
}

// String names the run for people.
func (o OpenRun) String() string {
	if o.Attempt == 0 {
		return fmt.Sprintf("%s of kind %s of tenant %s", o.RunID, o.Kind, o.Tenant)
	}
	return fmt.Sprintf("%s of kind %s of tenant %s, attempt %d", o.RunID, o.Kind, o.Tenant, o.Attempt)
}

// MaxOpen bounds the tasks whose open runs are listed for one database.
const MaxOpen = 1000

// Look returns the pending work of a database.
func Look(ctx context.Context, c *store.Cluster, d int) (View, error) {
	rows, err := sql.Look.Query(ctx, c.Pool(d), MaxOpen)
	if err != nil {
		return View{}, fmt.Errorf("look at database %d: %w", d, err)
	}
	v := View{Database: d, Due: task.Never, Bucket: task.Never}
	var due, bucket, id, run, seq, open *int64
	var tenant, kind *string
	var attempt *int32
	var tenants, tokens []int32
	var dues, frees []int64
	_, err = pgx.ForEachRow(rows, []any{&v.Now, &due, &v.Level0, &bucket, &v.Outbox, &tenants, &dues, &tokens, &frees,
		&tenant, &id, &run, &seq, &attempt, &open, &kind}, func() error {
		if id != nil {
			v.Open = appendOpen(v.Open, OpenRun{Tenant: *tenant, RunID: task.RunID{Task: task.ID(*id), Seq: *run}, Attempt: *attempt, Kind: *kind}, *seq, *open)
		}
		return nil
	})
	if err != nil {
		return View{}, fmt.Errorf("look at database %d: %w", d, err)
	}
	v.Waiting, v.Tokens = instants(tenants, dues), instants(tokens, frees)
	if due != nil {
		v.Due = task.Instant(*due)
	}
	if bucket != nil {
		v.Bucket = task.Instant(*bucket)
	}
	return v, nil
}

func instants(tenants []int32, at []int64) map[int32]task.Instant {
	if len(tenants) == 0 {
		return nil
	}
	m := make(map[int32]task.Instant, len(tenants))
	for i, t := range tenants {
		m[t] = task.Instant(at[i])
	}
	return m
}

// appendOpen appends the open runs of one row: a run with a row of its own, those
// whose bits are set, or the one that holds the task.
func appendOpen(list []OpenRun, o OpenRun, seq, open int64) []OpenRun {
	switch {
	case o.Seq != 0:
		return append(list, o)
	case open == 0:
		o.Seq = seq
		return append(list, o)
	}
	o.Attempt = 0
	for set := uint64(open); set != 0; set &= set - 1 {
		o.Seq = seq - int64(bits.TrailingZeros64(set))
		list = append(list, o)
	}
	return list
}
