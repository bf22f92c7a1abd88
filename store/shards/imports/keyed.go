package imports

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Keys
//
// The lines of a part are sorted by shard and key, in which order all writers insert keys. If some
// lines of a part have the same key, one of them counts: the last one if it updates,
// otherwise the first one.
//
// Existing tasks are updated before the transaction of the part, many in a transaction; those that are
// locked by others, or that have ended, one by one. If the part is stored again, because its transaction failed, the updates change
// nothing more. If its transaction finds that further keys exist by now, it ends without a
// commit, and the part begins again.
//
// Most files have keys that are new, and for these COPY is much cheaper than an insert that
// passes over keys that exist. So a part reads a few of its keys first. If none of them exists, it
// copies all. If one exists all the same, the transaction fails, and the part begins again, carefully:
// its transaction inserts the new keys and reads the others.

// sampledKeys is how many keys of a part are read first.
const sampledKeys = 16

const (
	// upsertsInTx is how many upserts of a part are one transaction, which locks their rows and packs.
	upsertsInTx = 250
	// upsertsAtOnce is how many upserts that are not settled so are under way at a time.
	upsertsAtOnce = 64
)

// keys has the keys of the rows of a part.
type keys struct {
	shards []int16
	texts  []string
	rows   []int // index of the row of each key
}

// known is a key that exists.
type known struct {
	id   task.ID
	hash []byte
}

func (p *part) mode() task.OnConflict { return p.w.of.Terms.OnConflict }

// sortByKey sorts the lines by key and settles those that need no new task as far as is known.
func (p *part) sortByKey(ctx context.Context) error {
	all := p.w.chunk.Lines
	if !slices.ContainsFunc(p.lines, func(i int32) bool { return all[i].Key != nil }) {
		return nil
	}
	p.order()
	if err := p.dropRepeated(); err != nil {
		return err
	}
	if p.mode() == task.UpdateExisting {
		if err := p.update(ctx); err != nil {
			return err
		}
	}
	p.collect()
	if p.mode() == task.UpdateExisting || p.careful {
		return nil
	}
	return p.sample(ctx)
}

// sample makes the part careful if one of some keys exists.
func (p *part) sample(ctx context.Context) error {
	var shards []int16
	var texts []string
	step := max(1, len(p.keys.texts)/sampledKeys)
	for i := 0; i < len(p.keys.texts); i += step {
		shards, texts = append(shards, p.keys.shards[i]), append(texts, p.keys.texts[i])
	}
	exist, err := p.read(ctx, p.w.im.db.Pool(p.d), shards, texts)
	p.careful = len(exist) > 0
	return err
}

// place is where a line is sorted: head are the first bytes of its key.
type place struct {
	head  uint64
	line  int32
	shard task.Shard
}

// order sorts the lines by shard and key; equal keys stay in the order of their lines.
func (p *part) order() {
	all, tenant := p.w.chunk.Lines, p.w.of.Tenant
	places := make([]place, len(p.lines))
	first := task.Shard(p.d * task.ShardsPerDatabase)
	for i, at := range p.lines {
		places[i] = place{line: at, shard: first + task.Shard(i%task.ShardsPerDatabase)}
		if key := all[at].Key; key != nil {
			var head [8]byte
			copy(head[:], key)
			places[i].head, places[i].shard = binary.BigEndian.Uint64(head[:]), kernel.ShardOfKey(tenant, key)
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		if c := cmp.Compare(a.shard, b.shard); c != 0 {
			return c
		}
		if c := cmp.Compare(a.head, b.head); c != 0 {
			return c
		}
		if c := bytes.Compare(all[a.line].Key, all[b.line].Key); c != 0 {
			return c
		}
		return cmp.Compare(a.line, b.line)
	})
	p.lines, p.shards = make([]int32, len(places)), make([]task.Shard, len(places))
	for i, at := range places {
		p.lines[i], p.shards[i] = at.line, at.shard
	}
}

// keep keeps the lines for which f is true, with their shards.
func (p *part) keep(f func(i int) bool) {
	n := 0
	for i := range p.lines {
		if f(i) {
			p.lines[n], p.shards[n] = p.lines[i], p.shards[i]
			n++
		}
	}
	p.lines, p.shards = p.lines[:n], p.shards[:n]
}

// dropRepeated keeps one line of each key.
func (p *part) dropRepeated() error {
	all := p.w.chunk.Lines
	same := func(i, j int) bool {
		return i >= 0 && j < len(p.lines) && all[p.lines[i]].Key != nil && bytes.Equal(all[p.lines[i]].Key, all[p.lines[j]].Key)
	}
	drop := map[int32]bool{}
	begin := 0 // of the lines with the same key
	for i := range p.lines {
		if !same(i-1, i) {
			begin = i
		}
		switch {
		case p.mode() == task.UpdateExisting:
			if same(i, i+1) {
				drop[p.lines[i]] = true
				p.sum.Updated++
			}
		case i > begin:
			drop[p.lines[i]] = true
			p.resolve(p.lines[i], *all[p.lines[i]].KeyHash == *all[p.lines[begin]].KeyHash, "an earlier line")
		}
	}
	if len(drop) > 0 {
		p.keep(func(i int) bool { return !drop[p.lines[i]] })
	}
	return nil
}

// resolve counts a line whose key another task has: same says whether it has the same body.
func (p *part) resolve(line int32, same bool, owner string) {
	l := &p.w.chunk.Lines[line]
	if p.mode() != task.FailExisting || same {
		p.sum.Skipped++
		return
	}
	p.sum.Rejected++
	p.faults = append(p.faults, task.LineFault{Line: l.Line, Fault: task.Fault{
		Field: "idempotency_key", Message: fmt.Sprintf("%q belongs to %s, which has another body", l.Key, owner),
	}})
}

// update gives the tasks that have keys of the part the terms of the lines.
func (p *part) update(ctx context.Context) error {
	p.collect()
	exist, err := p.read(ctx, p.w.im.db.Pool(p.d), p.keys.shards, p.keys.texts)
	if err != nil || len(exist) == 0 {
		return err
	}
	done, err := p.upsertsDone(ctx)
	if err != nil {
		return err
	}
	list := make([]*Upsert, len(p.lines)) // of the lines whose keys exist
	var some []*Upsert
	for k, known := range exist {
		i := p.keys.rows[k]
		r := p.request(p.lines[i])
		list[i] = &Upsert{Request: r, ID: known.id, Same: bytes.Equal(known.hash, r.Hash[:16])}
	}
	for _, x := range list {
		if x != nil {
			some = append(some, x)
		}
	}
	if err := p.upsertAll(ctx, some); err != nil {
		return err
	}
	for i, x := range list {
		if x != nil {
			// An upsert that was done when the chunk came before counts as it did then. It may have been an add in
			// the place of a finished task, which nothing tells any more.
			if x.Err == nil && x.Result.Replayed && done[string(p.w.chunk.Lines[p.lines[i]].Key)] {
				x.Result.Updated = true
			}
			p.updated(p.lines[i], x.Result, x.Err)
		}
	}
	p.keep(func(i int) bool { return list[i] == nil })
	return nil
}

// upsertsDone returns the keys of the part whose upserts were done when the chunk came before, and its marker was not stored.
func (p *part) upsertsDone(ctx context.Context) (map[string]bool, error) {
	before := kernel.UpsertPrefix + p.requestID()
	rows, err := sql.UpsertsDone.Query(ctx, p.w.im.db.Pool(p.d), slices.Compact(slices.Clone(p.keys.shards)), p.w.of.Tenant,
		before+kernel.TaskKeyPrefix, before+string(kernel.TaskKeyPrefix[0]+1))
	if err != nil {
		return nil, fmt.Errorf("read which upserts were done: %w", err)
	}
	done := map[string]bool{}
	var key string
	_, err = pgx.ForEachRow(rows, []any{&key}, func() error {
		done[key[len(before)+len(kernel.TaskKeyPrefix):]] = true
		return nil
	})
	return done, err
}

// requestID returns that of the upserts of the chunk. No caller's id begins so.
func (p *part) requestID() string { return fmt.Sprintf("\x01%d.%d", p.w.of.ID, p.w.chunk.Number) }

// upsertAll does upserts: many in a transaction, and those that this does not settle alone.
func (p *part) upsertAll(ctx context.Context, list []*Upsert) error {
	for some := range slices.Chunk(list, upsertsInTx) {
		// After an error none is settled, and each is tried alone.
		if err := p.w.im.cfg.UpsertMany(ctx, p.w.of.Tenant, p.d, some); err != nil && kernel.NoAnswer(err) {
			return err
		}
	}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(upsertsAtOnce)
	for _, x := range list {
		if x.Settled {
			continue
		}
		g.Go(func() error {
			x.Result, x.Err = p.w.im.cfg.Upsert(inner, x.Request)
			if again(x.Err) {
				return x.Err
			}
			return nil
		})
	}
	return g.Wait()
}

// again reports whether an upsert may succeed when the chunk is repeated.
func again(err error) bool {
	var known *task.Error
	return err != nil && (!errors.As(err, &known) || known.Code == task.Unavailable || known.Code == task.ResourceExhausted || known.Code == task.Internal)
}

// request returns the upsert of a line.
func (p *part) request(line int32) task.AddRequest {
	l := &p.w.chunk.Lines[line]
	r := task.AddRequest{
		Tenant: p.w.of.Tenant, Key: string(l.Key), Upsert: true, KeepBegin: l.Begin == task.Never,
		// A chunk that is sent again adds nothing in the place of a task that has ended after this upsert.
		RequestID: p.requestID(),
		Specs:     []task.Spec{p.w.templates[l.Spec].specOf(l)},
	}
	copy(r.Hash[:], l.KeyHash[:])
	return r
}

// updated counts an upsert.
func (p *part) updated(line int32, done task.AddResult, err error) {
	at := p.w.chunk.Lines[line].Line
	var known *task.Error
	switch {
	case errors.As(err, &known) && len(known.Faults) > 0:
		done.Items = []task.AddItem{{Faults: known.Faults}}
	case err != nil:
		done.Items = []task.AddItem{{Faults: []task.Fault{{Field: "idempotency_key", Message: err.Error()}}}}
	}
	switch faults := done.Items[0].Faults; {
	case len(faults) > 0:
		p.sum.Rejected++
		for _, f := range faults {
			p.faults = append(p.faults, task.LineFault{Line: at, Fault: f})
		}
	case done.Updated:
		p.sum.Updated++
	case done.Replayed:
		p.sum.Skipped++
	default: // in the place of a finished task
		p.sum.Added++
	}
}

// collect collects the keys of the lines.
func (p *part) collect() {
	k := &keys{}
	for i, at := range p.lines {
		if key := p.w.chunk.Lines[at].Key; key != nil {
			k.shards, k.texts, k.rows = append(k.shards, int16(p.shards[i])), append(k.texts, kernel.TaskKeyPrefix+string(key)), append(k.rows, i)
		}
	}
	p.keys = k
}

// read returns those of some keys that exist, by their indexes.
func (p *part) read(ctx context.Context, q kernel.Querier, shards []int16, texts []string) (map[int]known, error) {
	tenants := slices.Repeat([]int32{p.w.of.Tenant}, len(texts))
	rows, err := sql.KeysRead.Query(ctx, q, shards, tenants, texts)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	exist := map[int]known{}
	var n int64
	var id task.ID
	var hash []byte
	_, err = pgx.ForEachRow(rows, []any{&n, &id, &hash}, func() error {
		exist[int(n-1)] = known{id, bytes.Clone(hash)}
		return nil
	})
	return exist, err
}

// chooseNew inserts the keys of the rows and leaves out the rows whose keys exist.
func (p *part) chooseNew(ctx context.Context, tx pgx.Tx) error {
	fresh, err := p.insert(ctx, tx)
	if err != nil {
		return err
	}
	var shards []int16
	var texts []string
	var lost []int
	for n, i := range p.keys.rows {
		if r := &p.rows[i]; r.State != 0 && !fresh[r.ID] {
			shards, texts, lost = append(shards, p.keys.shards[n]), append(texts, p.keys.texts[n]), append(lost, i)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	if p.mode() == task.UpdateExisting {
		return errAgain
	}
	exist, err := p.read(ctx, tx, shards, texts)
	if err != nil {
		return err
	}
	for n, i := range lost {
		k, ok := exist[n]
		if !ok {
			return errAgain
		}
		p.rows[i].State = 0
		p.resolve(p.lines[i], bytes.Equal(k.hash, p.w.chunk.Lines[p.lines[i]].KeyHash[:]), fmt.Sprintf("task %s", k.id))
	}
	return nil
}

// expiryStep is what the expiry of keys is rounded up to. Entries of few instants lie together in
// the index, wherever the begins of their tasks are.
const expiryStep = task.Instant(10 * time.Minute / time.Millisecond)

// beginWithKeys is begin, and writes the keys, which must be new.
func (p *part) beginWithKeys(ctx context.Context, tx pgx.Tx, numbers []int64) error {
	if err := p.begin(ctx, tx, numbers); err != nil {
		return err
	}
	list := make([]kernel.KeyRow, 0, len(p.keys.rows))
	ahead := task.Instant(p.w.im.cfg.MaxKeyRenewal.Milliseconds())
	for n, i := range p.keys.rows {
		r := &p.rows[i]
		if r.State == 0 {
			continue
		}
		l := &p.w.chunk.Lines[p.lines[i]]
		expires := p.now.Add(max(p.w.im.cfg.KeyLifetime, r.Retention))
		if l.Begin != task.Never {
			expires += min(max(l.Begin-p.now, 0), ahead)
		}
		expires = (expires + expiryStep - 1) / expiryStep * expiryStep
		list = append(list, kernel.KeyRow{Shard: p.keys.shards[n], Tenant: r.Tenant, Text: p.keys.texts[n], ID: r.ID, Hash: l.KeyHash, ExpiresAt: expires})
	}
	if len(list) == 0 {
		return nil
	}
	if err := kernel.CopyKeys(ctx, tx, list); err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	return nil
}

// insert inserts the keys of the rows that have a state, and returns the ids whose keys are new.
func (p *part) insert(ctx context.Context, tx pgx.Tx) (fresh map[task.ID]bool, err error) {
	var shards []int16
	var tenants, counts []int32
	var texts []string
	var firsts, lifetimes, begins []int64
	var hashes [][]byte
	for n, i := range p.keys.rows {
		r := &p.rows[i]
		if r.State == 0 {
			continue
		}
		l := &p.w.chunk.Lines[p.lines[i]]
		begin := int64(0)
		if l.Begin != task.Never {
			begin = int64(l.Begin)
		}
		shards, tenants, texts = append(shards, p.keys.shards[n]), append(tenants, r.Tenant), append(texts, p.keys.texts[n])
		firsts, counts, hashes = append(firsts, int64(r.ID)), append(counts, 1), append(hashes, l.KeyHash[:])
		lifetimes, begins = append(lifetimes, max(p.w.im.cfg.KeyLifetime, r.Retention).Milliseconds()), append(begins, begin)
	}
	fresh = make(map[task.ID]bool, len(shards))
	rows, err := sql.KeyInsertFor.Query(ctx, tx, shards, tenants, texts, firsts, counts, hashes, lifetimes, begins, p.w.im.cfg.MaxKeyRenewal.Milliseconds())
	if err != nil {
		return nil, fmt.Errorf("insert keys: %w", err)
	}
	var id task.ID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error { fresh[id] = true; return nil })
	return fresh, err
}
