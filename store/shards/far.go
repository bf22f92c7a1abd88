package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// # The far tier
//
// A task that is due beyond the horizon is kept in a pack: one row that holds
// many tasks as two blobs (package pack). docs/adr/0007-far-tier.md has the
// whole protocol; these are its places, and who moves a task between them:
//
//	add -> far_arrival --cut--> far_pack --cut--> far_pack --cut--> task
//	           |                    |                                 |
//	           +------ recall ------+------------> task <--           |
//	                                |                                 |
//	                                +<----------- demotion -----------+
//
// A living task is in exactly one place: a copy in a pack counts unless
// far_override says that it is void. Only SCHEDULED tasks that are not paused,
// with no open run, are ever packed. From that follows what callers meet:
//
//   - Reading by id is one statement over all places (TaskRead). It returns the
//     packs that may hold the task; which does is decided here, by decoding their
//     keys. Packs never change, so params may be fetched afterwards: if the pack
//     is gone by then, reading begins again.
//   - Whoever changes a task by hand meets rows only: [Store.withMachine] recalls a
//     packed task into the near tier, in the transaction of the change. A change
//     that turns out to change nothing recalls nothing.
//   - What a listener says about a run of a packed task comes too late: the run
//     has been closed, or the row could not have been packed. The state machine
//     answers by the packed row, and nothing is written.
//   - Claims, takeovers and what is left in the outbox meet open runs only, and
//     so never a packed task.
//
// The tiers do not show in any answer, but for one: a task whose pack is damaged
// is answered with [task.DataLoss].

// DefaultHorizon is the horizon of the far tier unless [Config] says otherwise.
const DefaultHorizon = 10 * time.Minute

// HorizonOff as the horizon keeps every task in the near tier.
const HorizonOff time.Duration = -1

// farFrom returns the instant beyond which a task is far; [task.Never]: none is.
func (c *Config) farFrom(now task.Instant) task.Instant {
	if c.Horizon < 0 {
		return task.Never
	}
	return now.Add(c.Horizon)
}

// Packs of both tables have one name space: a pack of far_pack is named by its
// id, an arrival by minus its first number.
type packName int64

func (p packName) arrival() bool { return p < 0 }

// position is where a listing meets it.
func (p packName) position() int64 { return max(int64(p), -int64(p)) }

// farCopy is a pack that may hold a task.
type farCopy struct {
	pack    packName
	damaged *string
	keys    []byte
}

// farTask is a packed task: one of the rows of a pack, all without params.
type farTask struct {
	pack packName
	rows []*task.Row
	at   int
}

func (f *farTask) row() *task.Row { return f.rows[f.at] }

// fill sets the params of the task. See readParams.
func (f *farTask) fill(ctx context.Context, q querier, hold bool) (gone bool, err error) {
	gone, err = readParams(ctx, q, f.pack, f.rows, func(i int) bool { return i == f.at }, hold)
	if errors.Is(err, pack.ErrDamaged) {
		err = damaged(f.pack, f.row().ID, err)
	}
	return gone, err
}

// damaged is the answer about a task whose pack cannot be read or was set aside.
func damaged(p packName, id task.ID, cause error) error {
	return task.Errorf(task.ReasonTaskDamaged, "what is stored about task %d is damaged", id).CausedBy(fmt.Errorf("pack %d: %w", p, cause))
}

// findFar returns the task out of the packs that may hold it; nil: none does.
// Where one of them cannot be read and no other has the task, it is an error.
func findFar(copies []farCopy, tenant int32, id task.ID) (*farTask, error) {
	var unreadable error
	for _, c := range copies {
		rows, err := pack.DecodeKeys(c.keys)
		if err != nil {
			unreadable = damaged(c.pack, id, err)
			continue
		}
		at := slices.IndexFunc(rows, func(r *task.Row) bool { return r.ID == id && r.Tenant == tenant })
		switch {
		case at < 0:
		case c.damaged != nil:
			return nil, damaged(c.pack, id, errors.New(*c.damaged))
		default:
			return &farTask{pack: c.pack, rows: rows, at: at}, nil
		}
	}
	return nil, unreadable
}

// readParams fetches and sets the params of the wanted rows, out of all rows of a
// pack in its order; gone: the pack has been cut since. hold keeps the pack until
// the transaction ends.
func readParams(ctx context.Context, q querier, p packName, all []*task.Row, want func(i int) bool, hold bool) (gone bool, err error) {
	name, arg := "PackParams", int64(p)
	switch {
	case p.arrival() && hold:
		name, arg = "ArrivalHold", -arg
	case p.arrival():
		name, arg = "ArrivalParams", -arg
	case hold:
		name = "PackHold"
	}
	rows, err := q.Query(ctx, sql.Get(name), arg)
	if err != nil {
		return false, err
	}
	params, err := pgx.CollectOneRow(rows, pgx.RowTo[[]byte])
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, pack.FillParams(all, params, want)
}

// recallMachine moves a packed task into the near tier within tx, and returns it as
// if its row had been locked there; nil if no pack holds the task, or it is on
// the move.
//
// FOR SHARE keeps the pack from being cut until tx ends; recalls of other tasks
// in it go on. Of two recalls of one task the second waits for the first one's
// override and then does nothing.
func recallMachine(ctx context.Context, tx pgx.Tx, tenant int32, id task.ID, now task.Instant) (*task.Machine, error) {
	rows, err := tx.Query(ctx, sql.Get("FarCopies"), tenant, int64(id))
	if err != nil {
		return nil, err
	}
	copies, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c farCopy, err error) {
		return c, row.Scan(&c.pack, &c.damaged, &c.keys)
	})
	if err != nil {
		return nil, err
	}
	f, err := findFar(copies, tenant, id)
	if f == nil || err != nil {
		return nil, err
	}
	if gone, err := f.fill(ctx, tx, true); gone || err != nil {
		return nil, err
	}
	r := f.row()
	r.DueAt = max(r.DueAt, now)
	tag, err := tx.Exec(ctx, sql.Get("Recall"), recallArgs(f.pack, r)...)
	if err != nil || tag.RowsAffected() == 0 {
		return nil, err
	}
	return &task.Machine{Task: r, Was: r.State, Runs: map[int64]*task.Row{}}, nil
}

func recallArgs(p packName, r *task.Row) []any {
	return []any{
		int64(p), r.Tenant, int64(r.ID), nullable(r.DueAt), int64(r.ScheduledAt), int64(r.Anchor), int64(r.Begin),
		nullable(r.End), orNull(r.Interval.Milliseconds()), r.Seq, orNull(r.MaxCount), r.Missed,
		r.Version, int16(r.Type), r.StopOnFailure, r.Kind, notNil(r.Params), r.GiveUpAfter.Milliseconds(),
		max(0, r.Retention.Milliseconds()), int64(r.CreatedAt), int32(r.AckTimeout.Milliseconds()),
		int32(r.Retry.InitialBackoff.Milliseconds()), int32(r.Retry.MaxBackoff.Milliseconds()),
		int16(r.Retry.MaxAttempts), hundredths(r.Retry.Multiplier), hundredths(r.Retry.Jitter), r.Modeled(), task.Seal(&r.Terms, &r.Origin),
	}
}

// farMachines looks for tasks that the near tier does not have. It returns those
// that are packed, without their params and not locked, and the tasks that have
// moved meanwhile and must be looked for again.
func farMachines(ctx context.Context, q querier, keys []key) (machines map[key]*task.Machine, moved map[key]bool, err error) {
	machines, moved = map[key]*task.Machine{}, map[key]bool{}
	keys = uniqueKeys(keys)
	args := keyArgs(keys)
	rows, err := q.Query(ctx, sql.Get("FarWhere"), args[:3]...)
	if err != nil {
		return nil, nil, err
	}
	wanted := map[packName][]key{}
	var n int64
	var p packName
	if _, err := pgx.ForEachRow(rows, []any{&n, &p}, func() error {
		k := keys[n-1]
		moved[k] = true // until it is found
		if p != 0 {
			wanted[p] = append(wanted[p], k)
		}
		return nil
	}); err != nil || len(wanted) == 0 {
		return machines, moved, err
	}
	return machines, moved, readKinsOf(ctx, q, wanted, machines, moved)
}

// packedMachines puts the packed rows of tasks that are not in the near tier into
// machines, for the state machine to answer by, and returns them too. Entries about
// them are taken out of absent, and those about tasks that are on the move are to
// be tried again.
func packedMachines(ctx context.Context, q querier, entries []entry, absent map[int]task.Code, machines map[key]*task.Machine) (map[key]*task.Machine, error) {
	var keys []key
	for i, code := range absent {
		if code == task.Unknown {
			keys = append(keys, entries[i].taskKey())
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	far, moved, err := farMachines(ctx, q, keys)
	if err != nil {
		return nil, err
	}
	for i, code := range absent {
		k := entries[i].taskKey()
		switch {
		case code != task.Unknown:
		case far[k] != nil:
			machines[k] = far[k]
			delete(absent, i)
		case moved[k]:
			absent[i] = task.Retry
		}
	}
	return far, nil
}

// unchanged makes sure that no step has changed a packed task: nothing of it is
// open, so there is nothing to start, extend or close.
func unchanged(far map[key]*task.Machine) error {
	for _, k := range far {
		if k.Task.Change != task.Kept || len(k.Runs) > 0 || len(k.Dead) > 0 {
			return fmt.Errorf("task %d is packed, and a step has changed it", k.Task.ID)
		}
	}
	return nil
}

// packsAtOnce bounds how many packs one statement returns.
const packsAtOnce = 8

// readKinsOf decodes packs and puts those of the wanted tasks that they hold
// into machines. What stays in moved was in a pack that is gone.
func readKinsOf(ctx context.Context, q querier, wanted map[packName][]key, machines map[key]*task.Machine, moved map[key]bool) error {
	names := make([]int64, 0, len(wanted))
	for p := range wanted {
		names = append(names, int64(p))
	}
	slices.Sort(names)
	for chunk := range slices.Chunk(names, packsAtOnce) {
		packs, err := readPacks(ctx, q, chunk)
		if err != nil {
			return err
		}
		for _, p := range packs {
			_, rows, _ := p.living() // runs of what is damaged are unknown
			for _, k := range wanted[p.pack] {
				delete(moved, k)
				at, ok := slices.BinarySearchFunc(rows, k, func(r *task.Row, k key) int { return cmp.Compare(r.ID, k.id) })
				if ok && rows[at].Tenant == k.tenant {
					machines[k] = &task.Machine{Task: rows[at], Was: rows[at].State, Runs: map[int64]*task.Row{}}
				}
			}
		}
	}
	return nil
}

// packKeys is a pack without its params.
type packKeys struct {
	farCopy
	void []int64 // tasks whose copy here does not count
}

// readPacks returns those of the named packs that exist, in the order of their
// names.
func readPacks(ctx context.Context, q querier, names []int64) ([]packKeys, error) {
	rows, err := q.Query(ctx, sql.Get("FarKeys"), names)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p packKeys, err error) {
		return p, row.Scan(&p.pack, &p.damaged, &p.keys, &p.void)
	})
}

// living returns all rows in the order of the pack, and those that count in the
// order of their ids.
func (p *packKeys) living() (all, living []*task.Row, err error) {
	all, err = pack.DecodeKeys(p.keys)
	if err != nil {
		return nil, nil, err
	}
	slices.Sort(p.void)
	living = make([]*task.Row, 0, len(all))
	for _, r := range all {
		if _, void := slices.BinarySearch(p.void, int64(r.ID)); !void {
			living = append(living, r)
		}
	}
	slices.SortFunc(living, func(a, b *task.Row) int { return cmp.Compare(a.ID, b.ID) })
	return all, living, nil
}
