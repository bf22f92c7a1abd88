package floor

import (
	"context"
	_ "embed" // the statements
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

// The statements.
var (
	//go:embed add.sql
	addSQL string
	//go:embed claim.sql
	claimSQL string
	//go:embed report.sql
	reportSQL string
	//go:embed report_short.sql
	reportShortSQL string
	//go:embed purge.sql
	purgeSQL string
	//go:embed add_recurring.sql
	addRecurringSQL string
	//go:embed claim_recurring.sql
	claimRecurringSQL string
	//go:embed report_recurring.sql
	reportRecurringSQL string
)

const (
	ackTimeout = 60 * time.Second
	// reportedAt is where reported rows wait for their purge: far from what is
	// due, so that no claim reads them.
	reportedAt = int64(1) << 50
)

// database is one of the 16.
type database struct {
	*mover
	delay  workload.Delay // of the next rows
	number int
	random *rand.Rand
	shards []int16
	now    int64 // virtual, ms
	ticks  int
	rest   float64 // fractions of rows still to add
	next   int64   // number of the next id
	claimed
	pads [][]byte // rows share these params
}

// claimed are rows that wait for their report.
type claimed struct {
	shard []int16
	id    []int64
}

func newDatabase(m *mover, number int) *database {
	d := &database{
		mover: m, delay: m.Delay, number: number, random: rand.New(rand.NewPCG(m.Seed, uint64(number))),
		now: time.Now().UnixMilli(), next: 1 + rand.Int64N(1<<40),
	}
	for i := range task.Shards / task.Databases {
		d.shards = append(d.shards, int16(number*task.Shards/task.Databases+i))
	}
	for range 64 {
		pad := make([]byte, m.ParamsBytes)
		for i := range pad {
			pad[i] = byte('a' + d.random.IntN(26))
		}
		d.pads = append(d.pads, pad)
	}
	return d
}

// pipeline is a transaction of one round trip.
type pipeline struct {
	pgx.Batch
	read []func(pgx.BatchResults) error
}

// count queues a statement and adds the rows that it moves to a number.
func (p *pipeline) count(to *int64, statement string, args ...any) {
	p.Queue(statement, args...)
	p.read = append(p.read, func(r pgx.BatchResults) error {
		tag, err := r.Exec()
		*to += tag.RowsAffected()
		return err
	})
}

func (d *database) send(ctx context.Context, p *pipeline) (err error) {
	results := d.cluster.Pool(d.number).SendBatch(ctx, &p.Batch)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
	}()
	for _, read := range p.read {
		if err := read(results); err != nil {
			return err
		}
	}
	return nil
}

// tick does one transaction: what was claimed by the one before is reported, what
// was reported is purged.
func (d *database) tick(ctx context.Context, f form, add bool) (moved Moved, err error) {
	low := d.now
	d.now += d.Tick.Milliseconds()
	d.ticks++
	var p pipeline
	if !f.short && !f.recurring {
		p.count(&moved.Purged, purgeSQL, d.shards, reportedAt+low-d.Tick.Milliseconds(), reportedAt+low)
	}
	d.report(&p, f, &moved)
	if add && !f.recurring {
		if ids, dues, params := d.rows(); len(ids) > 0 {
			p.count(&moved.Added, addSQL, int16(ids[0]%task.Shards), ids, dues, params, d.now)
		}
	}
	if f.recurring {
		p.Queue(claimRecurringSQL, d.shards, low, d.now)
	} else {
		p.Queue(claimSQL, d.shards, low, d.now, d.now+ackTimeout.Milliseconds())
	}
	next := claimed{d.shard[:0], d.id[:0]}
	p.read = append(p.read, next.take)
	if err := d.send(ctx, &p); err != nil {
		return moved, err
	}
	d.claimed = next
	moved.Claimed = int64(len(next.id))
	return moved, nil
}

// report queues the results of what was claimed last.
func (d *database) report(p *pipeline, f form, moved *Moved) {
	switch {
	case len(d.id) == 0:
	case f.recurring:
		p.count(&moved.Reported, reportRecurringSQL, d.shard, d.id)
	case f.short:
		p.count(&moved.Reported, reportShortSQL, d.shard, d.id)
	default:
		p.count(&moved.Reported, reportSQL, d.shard, d.id, reportedAt+d.now)
	}
}

// lastReport reports what is still claimed.
func (d *database) lastReport(ctx context.Context) (moved Moved, err error) {
	var p pipeline
	if d.report(&p, form{recurring: true}, &moved); len(p.read) == 0 {
		return moved, nil
	}
	return moved, d.send(ctx, &p)
}

// take reads claimed rows without decoding more than their keys.
func (c *claimed) take(r pgx.BatchResults) error {
	rows, err := r.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		c.shard = append(c.shard, int16(binary.BigEndian.Uint16(raw[0])))
		c.id = append(c.id, int64(binary.BigEndian.Uint64(raw[1])))
	}
	return rows.Err()
}

// rows makes the tasks of a tick: one shard, consecutive ids, in due order. Over
// 16 ticks, and in each tick over the 16 databases, they cover all delays evenly.
func (d *database) rows() (ids, dues []int64, params [][]byte) {
	d.rest += d.rowsPerTick()
	n := int(d.rest)
	d.rest -= float64(n)
	shard := int64(d.shards[d.random.IntN(len(d.shards))])
	spread := float64((d.delay.Max - d.delay.Min).Milliseconds()) / task.Databases
	part := float64((d.number*7 + d.ticks*5) % task.Databases)
	for range n {
		ids = append(ids, d.next*task.Shards+shard)
		d.next++
		delay := float64(d.delay.Min.Milliseconds()) + (part+d.random.Float64())*spread
		dues = append(dues, d.now+1+int64(delay))
		params = append(params, d.pads[d.random.IntN(len(d.pads))])
	}
	slices.Sort(dues)
	return ids, dues, params
}
