package shards

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// adding is one request that is being stored.
type adding struct {
	req    task.AddRequest
	home   task.Shard // of the key row; its database has the tasks, too
	shard  task.Shard // of the tasks; set when they are stored
	key    string     // of the key row; empty if there is none
	first  task.ID
	result task.AddResult
	keyed  *keyed // set for a task with an idempotency_key; nil if the key is a request_id
	// repeated is set if the key was known: then nothing was stored, and the caller looks up the
	// first answer. The group does not, because its other calls would wait, and would be
	// stored again if the look-up failed.
	repeated bool
	// slow says that the schedules of the request take long: it is stored beside the groups, and
	// they are computed before its transaction. See slow.go.
	slow bool
	// placed has the outcome of each spec of a slow request.
	placed []placed
}

// Add stores the specs of one request in one shard, under consecutive ids. Its database is
// derived from the request_id, so a repeated request finds the stored tasks. After an
// error nothing was stored, or the outcome is unknown; in both cases the call is safe to
// repeat with the same request_id.
func (s *Store) Add(ctx context.Context, req task.AddRequest) (task.AddResult, error) {
	if n := len(req.Specs); n < 1 || n > task.MaxTasksPerAdd {
		return task.AddResult{}, task.Errorf(task.ReasonInvalidField, "%d tasks: 1 to %d are allowed", n, task.MaxTasksPerAdd)
	}
	if req.Key != "" {
		return s.addKeyed(ctx, req)
	}
	place := req.RequestID
	if place == "" {
		place = rand.Text()
	}
	a := &adding{req: req, home: task.ShardOf(place), key: req.RequestID}
	if err := s.addOne(ctx, a); err != nil {
		return task.AddResult{}, kernel.Unavailable(err)
	}
	return a.result, nil
}

// addOne stores a request, or finds the first answer to a repeated one. A request is stored in a
// group with others, or a large or slow one beside the groups, so that these do not wait for it.
func (s *Store) addOne(ctx context.Context, a *adding) error {
	if err := s.store(ctx, a); err != nil || !a.repeated {
		return err
	}
	err := s.lookUp(ctx, a)
	if kernel.Stalled(err) { // which would say that nothing was stored
		return task.Errorf(task.ReasonOutcomeUnknown, "the request was stored before, but its database does not answer; try again").CausedBy(err)
	}
	return err
}

func (s *Store) store(ctx context.Context, a *adding) error {
	db := s.dbs[a.home.Database()]
	if a.slow = s.takesLong(a); a.slow || a.bytes() > largeAdd {
		if err := s.large.Wait(ctx, a.req.Tenant, 1); err != nil {
			return task.Errorf(task.ReasonTenantBusy, "too many requests that are large, or whose schedules take long, are in progress; try again").CausedBy(err)
		}
		defer s.large.Give(a.req.Tenant, 1)
		return db.storeAdds(ctx, []*adding{a})
	}
	errs, err := db.adds.Call(ctx, a.req.Tenant, []*adding{a})
	if err != nil {
		return err
	}
	return errs[0]
}

// doAdds stores a group of requests in one transaction. If the group fails, doAdds stores
// each request separately, whatever the reason: one request may have caused it.
func (db *database) doAdds(ctx context.Context, group []*adding) []error {
	slices.SortStableFunc(group, compareAdding)
	errs := make([]error, len(group))
	err := db.storeAdds(ctx, group)
	if err == nil {
		return errs
	}
	for i := range errs {
		errs[i] = err
	}
	if len(group) > 1 {
		db.storeEach(ctx, group, errs)
	}
	return errs
}

// storeEach stores the requests of a group that has failed, each in a transaction of its own,
// small ones first. It gives up when the database does not answer, or after as long as a
// transaction may take. Then the other requests keep the error of the group. A request that may
// have been stored is not repeated if it has no key; with one, no later error says that it was
// not stored.
func (db *database) storeEach(ctx context.Context, group []*adding, errs []error) {
	order := make([]int, len(group))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(group[i].bytes(), group[j].bytes()) })
	until := time.Now().Add(2 * db.store.db.StatementTimeout())
	for _, i := range order {
		perhaps := errors.Is(errs[i], task.ErrOutcomeUnknown)
		if group[i].key == "" && perhaps {
			continue
		}
		errs[i] = db.storeAdds(ctx, []*adding{group[i]})
		if errs[i] != nil && perhaps {
			errs[i] = errors.Join(errs[i], task.ErrOutcomeUnknown)
		}
		if errs[i] != nil && kernel.NoAnswer(errs[i]) || time.Now().After(until) {
			return
		}
	}
}

// compareAdding orders requests so that all writers insert keys in the same order.
func compareAdding(a, b *adding) int {
	return cmp.Or(cmp.Compare(a.home, b.home), cmp.Compare(a.req.Tenant, b.req.Tenant), cmp.Compare(a.key, b.key))
}

// drawTries bounds the repetitions of an add whose database is adopted while it runs.
const drawTries = 3

// storeAdds stores a group in one transaction. It draws other ids if the database was
// adopted after the first had been drawn.
func (db *database) storeAdds(ctx context.Context, group []*adding) (err error) {
	for range drawTries {
		if err = db.storeWithNumbers(ctx, group); !errors.Is(err, kernel.ErrOldNumbers) {
			return err
		}
	}
	return err
}

func (db *database) storeWithNumbers(ctx context.Context, group []*adding) error {
	db.choose(group)
	drawn, err := db.store.db.DrawGroup(ctx, db.d, len(group),
		func(i int) int { return len(group[i].req.Specs) },
		func(i int, first int64) { group[i].first = task.NewID(first, group[i].shard) })
	if err == nil && len(group) == 1 && group[0].slow {
		err = db.placeAhead(ctx, group[0])
	}
	if err != nil {
		return err
	}
	due := task.Never
	err = db.store.db.InTx(ctx, db.d, "add", func(tx pgx.Tx) error {
		now, fresh, err := db.insertKeys(ctx, tx, group, drawn)
		if err != nil {
			return err
		}
		rows, moved := &newTasks{farFrom: db.store.FarFrom(now), near: kernel.NewInserts()}, counters.Tally{}
		b := &pgx.Batch{}
		for _, a := range group {
			if a.keyed != nil && a.keyed.replaces != 0 {
				if fresh[a.first], err = db.replaceKey(ctx, tx, a, now); err != nil {
					return err
				}
			}
			if a.repeated = a.key != "" && !fresh[a.first]; a.repeated {
				continue
			}
			refused := db.settle(a, now, rows, &moved)
			switch {
			case len(refused) == 0 && a.keyed != nil:
				db.store.queueUpsert(b, a, a.first)
			case len(refused) == 0 || a.key == "":
			case a.keyed != nil:
				sql.KeyDrop.Queue(b, int16(a.home), a.req.Tenant, a.key, int64(a.first))
			default:
				sql.KeyRefuse.Queue(b, int16(a.home), a.req.Tenant, a.key, refused)
			}
		}
		due = rows.near.Due
		if err := rows.queue(b); err != nil {
			return err
		}
		moved.Queue(b)
		if b.Len() == 0 {
			return nil
		}
		return kernel.SendLast(ctx, tx, b)
	})
	if err != nil {
		return err
	}
	db.store.db.TellDue(db.d, due, tenantsOf(group)...)
	return nil
}

// tenantsOf returns each tenant of a group once.
func tenantsOf(group []*adding) (tenants []int32) {
	for _, a := range group {
		if !slices.Contains(tenants, a.req.Tenant) {
			tenants = append(tenants, a.req.Tenant)
		}
	}
	return tenants
}

// fewTasks is the most tasks of a request that lies with other small requests.
const fewTasks = 16

// choose sets the shards of the tasks of a group. Small requests lie together: their keys scatter
// over all 32 tables of the database, and a row costs less in a table with other rows of its group.
func (db *database) choose(group []*adding) {
	open := db.openShard(time.Now())
	for _, a := range group {
		a.shard = a.home
		if len(a.req.Specs) <= fewTasks {
			a.shard = open
		}
	}
}

// openShard returns the shard that has the small requests of this second. All shards take turns,
// and processes begin at random.
func (db *database) openShard(now time.Time) task.Shard {
	return task.Shard(int64(db.d*task.ShardsPerDatabase) + (now.Unix()+db.store.turn)%task.ShardsPerDatabase)
}

// insertKeys writes the key rows of a group, whose ids have the drawn numbers. fresh contains
// the first ids of the new requests.
func (db *database) insertKeys(ctx context.Context, tx pgx.Tx, group []*adding, drawn kernel.Numbers) (now task.Instant, fresh map[task.ID]bool, err error) {
	var shards []int16
	var tenants, counts []int32
	var keys []string
	var firsts []int64
	var hashes [][]byte
	var own ownKeys
	for _, a := range group {
		if a.key == "" || own.add(a) {
			continue
		}
		shards = append(shards, int16(a.home))
		tenants = append(tenants, a.req.Tenant)
		keys = append(keys, a.key)
		firsts = append(firsts, int64(a.first))
		counts = append(counts, int32(len(a.req.Specs)))
		hashes = append(hashes, a.req.Hash[:16])
	}
	b := &pgx.Batch{}
	sql.Begin.Queue(b)
	if len(keys) > 0 {
		sql.KeyInsert.Queue(b, shards, tenants, keys, firsts, counts, hashes, db.store.cfg.KeyLifetime.Milliseconds())
	}
	own.queue(b)
	results := tx.SendBatch(ctx, b)
	defer results.Close()
	if now, err = db.store.db.ScanBegin(results.QueryRow(), drawn); err != nil {
		return 0, nil, err
	}
	fresh = map[task.ID]bool{}
	for range b.Len() - 1 {
		rows, err := results.Query()
		if err != nil {
			return 0, nil, err
		}
		var id int64
		if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { fresh[task.ID(id)] = true; return nil }); err != nil {
			return 0, nil, err
		}
	}
	return now, fresh, results.Close()
}

// settle gives each spec its id or its faults, and collects the rows to insert. It
// returns the indexes of the refused specs. It may be called again after a transaction
// that failed.
func (db *database) settle(a *adding, now task.Instant, rows *newTasks, moved *counters.Tally) (refused []int32) {
	a.result = task.AddResult{Items: make([]task.AddItem, len(a.req.Specs))}
	for i := range a.req.Specs {
		row, faults := db.place(a, i, now)
		if row == nil {
			a.result.Items[i].Faults = faults
			refused = append(refused, int32(i))
			continue
		}
		a.result.Items[i].ID = row.ID
		rows.add(row)
		moved.Move(a.req.Tenant, row.Type, task.NoCell, task.Cell(task.Scheduled), 1)
	}
	return refused
}

func (a *adding) idOf(i int) task.ID { return a.first + task.ID(i*task.Shards) }

// replay answers a repeated request with the tasks that the first request stored.
func (db *database) replay(ctx context.Context, a *adding) error {
	var first int64
	var n int32
	var refused []int32
	var hash []byte
	err := sql.KeyRead.QueryRow(ctx, db.store.db.Pool(db.d), int16(a.home), a.req.Tenant, a.key).Scan(&first, &n, &refused, &hash)
	if err != nil {
		return err
	}
	if a.keyed != nil {
		return a.replayKey(task.ID(first), hash)
	}
	if !bytes.Equal(hash, a.req.Hash[:16]) || int(n) != len(a.req.Specs) {
		return task.Errorf(task.ReasonRequestIDReused, "request_id %q was used with another request; draw a new one", a.key)
	}
	a.first = task.ID(first)
	a.result = task.AddResult{Items: make([]task.AddItem, n), Replayed: true}
	for i := range a.result.Items {
		a.result.Items[i].ID = a.idOf(i)
	}
	for _, i := range refused {
		a.result.Items[i] = task.AddItem{Faults: []task.Fault{{Field: "end_time", Message: "was refused by the first request: the task would never fire"}}}
	}
	return nil
}

// newTasks collects the tasks of a group: near tasks as rows, the others for packs.
type newTasks struct {
	farFrom task.Instant // tasks due later are far
	near    *kernel.Inserts
	far     far.Level0
}

func (n *newTasks) add(r *task.Row) {
	if r.DueAt > n.farFrom {
		n.far.Add(r)
		return
	}
	n.near.Add(r)
}

func (n *newTasks) queue(b *pgx.Batch) error {
	n.near.Queue(b)
	return n.far.Queue(b)
}
