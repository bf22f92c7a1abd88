package shards

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// chores acquires the chores of the bundle's database.
func (b *bundle) chores() task.Ownership {
	b.t.Helper()
	owned, err := b.Acquire(context.Background(), b.d, []task.Shard{task.ChoresShard(b.d)}, task.Owner{Name: "mover"})
	if err != nil {
		b.t.Fatal(err)
	}
	return owned[0]
}

// compact compacts until nothing is left to compact, and adds up the results.
func (b *bundle) compact(own task.Ownership, kind task.CompactionKind) task.Compaction {
	b.t.Helper()
	var sum task.Compaction
	for range 1000 {
		c, err := b.Compact(context.Background(), task.CompactionRequest{Database: b.d, Own: own, Kind: kind})
		if err != nil {
			b.t.Fatal(err)
		}
		sum.Add(&c)
		sum.Damaged = append(sum.Damaged, c.Damaged...)
		if c.Lost || !c.More {
			return sum
		}
	}
	b.t.Fatalf("%s never ends: %+v", kind, sum)
	return sum
}

// addMany stores n ONE_SHOT tasks whose due instants due returns, and returns their ids
// in that order.
func (b *bundle) addMany(n int, due func(i int) task.Instant) []task.ID {
	b.t.Helper()
	var ids []task.ID
	for len(ids) < n {
		var specs []task.Spec
		for range min(500, n-len(ids)) {
			at := due(len(ids) + len(specs))
			params := []byte(fmt.Sprintf("p%d", len(ids)+len(specs)))
			specs = append(specs, b.spec(task.OneShot, func(s *task.Spec) { s.Begin, s.ParamsWire = at, params }))
		}
		ids = append(ids, b.add(specs...)...)
	}
	return ids
}

// packedDueSoon adds ten tasks and packs them, and sets the clock to five minutes before they are due.
func (b *bundle) packedDueSoon() (own task.Ownership, ids []task.ID) {
	own = b.chores()
	at := b.now.Add(3 * time.Hour)
	ids = b.addMany(10, func(int) task.Instant { return at })
	b.compact(own, task.CompactLevel0)
	b.setClock(at.Add(-5 * time.Minute))
	return own, ids
}

// everywhere returns all rows of the bundle's tenant in all tiers. It fails if a task is
// in two places, or in a pack that its locator does not lead to.
func (b *bundle) everywhere() map[kernel.Key]*task.Row {
	b.t.Helper()
	out := b.rows()
	for k, r := range b.farRows() {
		if out[k] != nil {
			b.t.Fatalf("task %d is in two places", k.ID)
		}
		out[k] = r
	}
	return out
}

// findable fails for tasks that Get does not find.
func (b *bundle) findable(ids []task.ID) {
	b.t.Helper()
	for _, id := range ids {
		if _, err := b.Get(context.Background(), b.tenant, id); err != nil {
			b.t.Fatalf("task %d: %v", id, err)
		}
	}
}

// bucketsOf returns how many tasks the packs of each bucket hold.
func (b *bundle) bucketsOf() map[pack.Bucket]int {
	b.t.Helper()
	rows, err := b.db.Pool(b.d).Query(context.Background(), `SELECT level, bucket_at, n FROM far_pack`)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	out := map[pack.Bucket]int{}
	for rows.Next() {
		var level int16
		var at int64
		var n int
		if err := rows.Scan(&level, &at, &n); err != nil {
			b.t.Fatal(err)
		}
		out[pack.Bucket{Level: pack.Level(level), At: task.Instant(at)}] += n
	}
	return out
}

func (b *bundle) count(query string, args ...any) (n int) {
	b.t.Helper()
	if err := b.db.Pool(b.d).QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// TestTasksGoThroughEveryLevelAndAreNeverLost advances the clock over forty days in
// steps, and checks the places of the tasks at every step.
func TestTasksGoThroughEveryLevelAndAreNeverLost(t *testing.T) {
	b := setup(t)
	own := b.chores()
	r := rand.New(rand.NewPCG(1, 1))
	const n = 800
	begin := b.now
	ids := b.addMany(n, func(i int) task.Instant {
		spans := []time.Duration{40 * time.Minute, 5 * time.Hour, 4 * 24 * time.Hour, 40 * 24 * time.Hour}
		return b.now.Add(15*time.Minute + time.Duration(r.Int64N(int64(spans[i%len(spans)]))))
	})
	before := b.everywhere()
	fired := map[task.ID]bool{}
	for step := 0; b.now < begin.Add(41*24*time.Hour); step++ {
		b.advance(max(time.Minute, b.now.Sub(begin)/8))
		if step%2 == 0 {
			b.compact(own, task.CompactLevel0)
		}
		for _, kind := range []task.CompactionKind{task.CompactPromote, task.CompactSplit, task.CompactMerge} {
			b.compact(own, kind)
		}
		now := b.everywhere()
		if len(now)+len(fired) != n {
			t.Fatalf("step %d: %d tasks are left and %d have fired, of %d", step, len(now), len(fired), n)
		}
		if step%10 == 0 {
			b.findable(slices.DeleteFunc(slices.Clone(ids), func(id task.ID) bool { return fired[id] || id.Shard()%8 != task.Shard(step/10%8) }))
		}
		for {
			c := b.claim(task.RangeForm)
			for _, p := range c.Publications {
				if p.ScheduledAt != before[kernel.KeyOf(b.tenant, p.Task, 0)].ScheduledAt || p.ScheduledAt > b.now || fired[p.Task] {
					t.Fatalf("task %d fires at %s, scheduled at %s, fired %v", p.Task, b.now, p.ScheduledAt, fired[p.Task])
				}
				fired[p.Task] = true
				if got := b.report(success(p.Task, 1, 1, 1)); got[0] != task.Accepted {
					t.Fatal(got)
				}
			}
			if c.Rows == 0 {
				break
			}
		}
	}
	if len(fired) != n {
		t.Fatalf("%d of %d tasks have fired", len(fired), n)
	}
	if left := b.count(`SELECT (SELECT count(*) FROM far_pack) + (SELECT count(*) FROM far_level0) + (SELECT count(*) FROM far_tombstone)`); left != 0 {
		t.Errorf("%d rows are left in the far tier", left)
	}
	if _, err := b.PurgeLocator(t.Context(), b.d, own, 1000); err != nil || b.count(`SELECT count(*) FROM far_locator`) != 0 {
		t.Errorf("pages of the locator are left, %v", err)
	}
}

func TestLevelsFollowTheDistance(t *testing.T) {
	b := setup(t)
	own := b.chores()
	hour := pack.BucketOf(b.now, pack.Hour).End() // the next one, to have whole buckets
	b.setClock(hour)
	b.addMany(400, func(i int) task.Instant {
		return hour.Add([]time.Duration{30 * time.Minute, 5 * time.Hour, 10 * 24 * time.Hour, 90 * 24 * time.Hour}[i/100])
	})
	sparse := b.addMany(3, func(int) task.Instant { return hour.Add(70 * time.Minute) })
	soon := b.addMany(3, func(int) task.Instant { return hour.Add(20 * time.Minute) })
	got := b.compact(own, task.CompactLevel0)
	if got.Near != len(soon) || got.Packed != 403 {
		t.Fatalf("compaction = %+v", got)
	}
	want := map[pack.Bucket]int{
		{Level: pack.Minute, At: hour.Add(30 * time.Minute)}: 100,
		{Level: pack.Hour, At: hour.Add(time.Hour)}:          len(sparse),
		{Level: pack.Hour, At: hour.Add(5 * time.Hour)}:      100,
		pack.BucketOf(hour.Add(10*24*time.Hour), pack.Day):   100,
		pack.BucketOf(hour.Add(90*24*time.Hour), pack.Month): 100,
	}
	if diff := cmp.Diff(want, b.bucketsOf()); diff != "" {
		t.Fatal(diff)
	}
}

func TestSmallHourIsPromotedWholeAndStaysInTheNearTier(t *testing.T) {
	b := setup(t)
	own := b.chores()
	hour := pack.BucketOf(b.now.Add(5*time.Hour), pack.Hour)
	ids := b.addMany(100, func(i int) task.Instant { return hour.At.Add(time.Duration(i) * 36 * time.Second) })
	b.compact(own, task.CompactLevel0)
	b.setClock(hour.At.Add(-15 * time.Minute)) // near enough to be split
	if got := b.compact(own, task.CompactSplit); got.Read != 0 {
		t.Fatalf("a small hour was split: %+v", got)
	}
	b.setClock(hour.At.Add(-9 * time.Minute))
	if got := b.compact(own, task.CompactPromote); got.Near != len(ids) || got.Late != 0 {
		t.Fatalf("compaction = %+v", got)
	}
	if out, err := b.Demote(t.Context(), b.d, own, 0); err != nil || out.Packed != 0 {
		t.Fatalf("rows of an hour that was promoted whole go back: %+v, %v", out, err)
	}
}

func TestBigHourIsSplitIntoMinutes(t *testing.T) {
	b := setup(t)
	own := b.chores()
	hour := pack.BucketOf(b.now.Add(5*time.Hour), pack.Hour)
	const n = 6000
	ids := b.addMany(n, func(i int) task.Instant { return hour.At.Add(time.Duration(i) * time.Hour / n) })
	b.compact(own, task.CompactLevel0)
	b.setClock(hour.At.Add(-29 * time.Minute))
	got := b.compact(own, task.CompactSplit)
	if got.Near != 0 || got.Packed != n || got.More {
		t.Fatalf("compaction = %+v", got)
	}
	if buckets := b.bucketsOf(); len(buckets) != 60 {
		t.Fatalf("%d buckets, want the 60 minutes", len(buckets))
	}
	b.findable([]task.ID{ids[0], ids[n/2], ids[n-1]})
	b.setClock(hour.At.Add(-8 * time.Minute))
	if got := b.compact(own, task.CompactPromote); got.Near != 2*n/60 {
		t.Fatalf("two minutes begin within the horizon: %+v", got)
	}
}

func TestLatePromotionIsDueAtOnceAndKeepsItsScheduledInstant(t *testing.T) {
	b := setup(t)
	own := b.chores()
	at := b.now.Add(3 * time.Hour)
	id := b.addMany(1, func(int) task.Instant { return at })[0]
	b.compact(own, task.CompactLevel0)
	b.setClock(at.Add(2 * time.Hour))
	if got := b.compact(own, task.CompactPromote); got.Near != 1 || got.Late != 2*time.Hour {
		t.Fatalf("compaction = %+v", got)
	}
	if r := b.rows()[kernel.KeyOf(b.tenant, id, 0)]; r.DueAt != b.now || r.ScheduledAt != at {
		t.Fatalf("due %s, scheduled %s", r.DueAt, r.ScheduledAt)
	}
}

func TestMergeKeepsEveryTask(t *testing.T) {
	b := setup(t)
	own := b.chores()
	hour := pack.BucketOf(b.now.Add(30*time.Hour), pack.Hour)
	for range far.CrowdedPacks {
		b.addMany(50, func(int) task.Instant { return hour.At.Add(time.Minute) })
		b.compact(own, task.CompactLevel0)
	}
	before := b.everywhere()
	got := b.compact(own, task.CompactMerge)
	if got.Read != far.CrowdedPacks || got.Written != 1 || got.Packed != far.CrowdedPacks*50 {
		t.Fatalf("compaction = %+v", got)
	}
	if diff := cmp.Diff(before, b.everywhere()); diff != "" {
		t.Fatal(diff)
	}
	if got := b.compact(own, task.CompactMerge); got.Read != 0 {
		t.Fatalf("it merges again: %+v", got)
	}
}

func TestPacksThatMergingDoesNotHelpAreLeftAlone(t *testing.T) {
	b := setup(t)
	own := b.chores()
	bucket := pack.Bucket{Level: pack.Day, At: pack.BucketOf(b.now, pack.Day).At.Add(20 * 24 * time.Hour)}
	for range 20 {
		b.addMany(1, func(int) task.Instant { return bucket.At.Add(time.Hour) })
		b.compact(own, task.CompactLevel0)
	}
	b.PassOver(b.d, bucket)
	if got := b.compact(own, task.CompactMerge); got.Read != 0 {
		t.Fatalf("compaction = %+v", got)
	}
}

func TestDamagedPackIsSetAsideAndTheOthersAreMoved(t *testing.T) {
	b := setup(t)
	own := b.chores()
	hour := pack.BucketOf(b.now.Add(5*time.Hour), pack.Hour)
	var ids []task.ID
	for range 5 {
		ids = append(ids, b.addMany(10, func(i int) task.Instant { return hour.At.Add(time.Duration(i) * time.Minute) })...)
		b.compact(own, task.CompactLevel0)
	}
	b.exec(`UPDATE far_pack SET params = set_byte(params, 9, get_byte(params, 9) # 1) WHERE id = (SELECT min(id) + 2 FROM far_pack)`)
	b.setClock(hour.At)
	got := b.compact(own, task.CompactPromote)
	if got.Near != 40 || len(got.Damaged) != 1 || got.Damaged[0].Tasks != 10 || !strings.Contains(got.Damaged[0].Reason, "damaged") {
		t.Fatalf("compaction = %+v", got)
	}
	if n := b.count(`SELECT count(*) FROM far_pack WHERE quarantine_reason IS NOT NULL`); n != 1 || b.count(`SELECT count(*) FROM far_pack`) != 1 {
		t.Fatalf("%d packs are marked", n)
	}
	for i, id := range ids {
		_, err := b.Get(t.Context(), b.tenant, id)
		if want := i/10 == 2; want != (task.CodeOf(err) == task.DataLoss) {
			t.Errorf("task %d of pack %d: %v", id, i/10, err)
		}
	}
	if got := b.compact(own, task.CompactPromote); got.Read+len(got.Damaged) != 0 {
		t.Fatalf("the damaged pack is compacted again: %+v", got)
	}
	if f, err := b.FarStats(t.Context(), b.d); err != nil || f.Damaged != 1 || f.Packs != 0 {
		t.Fatalf("stats = %+v, %v", f, err)
	}
}

// TestAPackOfANewerVersionWaitsForAProgramThatCanReadIt: an older program leaves it alone,
// tells callers to try again, and moves all others.
func TestAPackOfANewerVersionWaitsForAProgramThatCanReadIt(t *testing.T) {
	for _, place := range everyPlace[1:] {
		t.Run(place.String(), func(t *testing.T) {
			b := setup(t, nearOnly)
			own := b.chores()
			newer := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)))
			known := b.add(b.spec(task.OneShot, b.inHours(5)))[0]
			b.put(place, pack.Hour, newer...)
			b.exec(`UPDATE far_pack SET keys = set_byte(keys, 1, 2), params = set_byte(params, 1, 2); UPDATE far_level0 SET keys = set_byte(keys, 1, 2)`)
			b.put(place, pack.Hour, known)
			for name, call := range map[string]func() error{
				"Get":    func() error { _, err := b.Get(t.Context(), b.tenant, newer[0]); return err },
				"Cancel": func() error { _, err := b.Cancel(t.Context(), b.tenant, newer[1]); return err },
				"List": func() error {
					q := task.ListQuery{Tenant: b.tenant, Limit: 5}
					for {
						page, err := b.List(t.Context(), q)
						if q.After = page.Next; err != nil || q.After == nil {
							return err
						}
					}
				},
			} {
				if err := call(); !needsNewer(err) || task.CodeOf(err) != task.Unavailable {
					t.Errorf("%s: %v, want %s", name, err, task.ReasonNewerProgram)
				}
			}
			b.advance(5 * time.Hour)
			for range 3 {
				for _, kind := range []task.CompactionKind{task.CompactLevel0, task.CompactMerge, task.CompactSplit, task.CompactPromote} {
					if got := b.compact(own, kind); len(got.Damaged) > 0 || got.Near > 1 {
						t.Fatalf("%s: %+v", kind, got)
					}
				}
			}
			if f, err := b.FarStats(t.Context(), b.d); err != nil || f.Waiting != 1 || f.Damaged != 0 {
				t.Errorf("stats %+v, %v", f, err)
			}
			if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Task != known {
				t.Errorf("claimed %s", deliveries(c.Publications))
			}
			// What the newer program knows.
			b.exec(`UPDATE far_pack SET keys = set_byte(keys, 1, 1), params = set_byte(params, 1, 1); UPDATE far_level0 SET keys = set_byte(keys, 1, 1)`)
			if f, err := b.FarStats(t.Context(), b.d); err != nil || f.Waiting != 0 {
				t.Errorf("stats of the newer program %+v, %v", f, err)
			}
			b.compact(own, task.CompactLevel0)
			b.compact(own, task.CompactPromote)
			if c := b.claim(task.RangeForm); len(c.Publications) != 2 {
				t.Errorf("the newer program claims %s", deliveries(c.Publications))
			}
		})
	}
}

func needsNewer(err error) bool {
	var e *task.Error
	return errors.As(err, &e) && e.Reason == task.ReasonNewerProgram
}

// TestAPackThatWasQuarantinedWronglyIsPutBack: it fires, and one that is damaged is
// quarantined again.
func TestAPackThatWasQuarantinedWronglyIsPutBack(t *testing.T) {
	b := setup(t, nearOnly)
	own := b.chores()
	good, bad := b.add(b.spec(task.OneShot, b.inHours(5)))[0], b.add(b.spec(task.OneShot, b.inHours(5)))[0]
	b.put(everyPlace[1], pack.Hour, good)
	b.put(everyPlace[2], pack.Hour, bad)
	b.exec(`UPDATE far_level0 SET quarantine_reason = 'no'; UPDATE far_pack SET quarantine_reason = 'no';
		UPDATE far_pack SET keys = '\x00' WHERE min_id = max_id AND min_id = ` + strconv.FormatInt(int64(bad), 10) + `;
		UPDATE far_level0 SET keys = '\x00' WHERE first = ` + strconv.FormatInt(int64(bad)/task.Shards, 10))
	if n, err := b.Restore(t.Context(), b.d, []int64{-1, 1 << 60}); err != nil || n != 0 {
		t.Fatalf("%d packs that do not exist, %v", n, err)
	}
	if n, err := b.Restore(t.Context(), b.d, nil); err != nil || n != 2 {
		t.Fatalf("%d packs, %v", n, err)
	}
	b.advance(5 * time.Hour)
	damaged := b.compact(own, task.CompactLevel0).Damaged
	damaged = append(damaged, b.compact(own, task.CompactPromote).Damaged...)
	if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Task != good || len(damaged) != 1 {
		t.Errorf("claimed %s, damaged %+v", deliveries(c.Publications), damaged)
	}
}

func TestPackThatPostgresRefusesIsFoundAndSetAside(t *testing.T) {
	b := setup(t)
	own := b.chores()
	hour := pack.BucketOf(b.now.Add(5*time.Hour), pack.Hour)
	var ids []task.ID
	for range 7 {
		ids = append(ids, b.addMany(10, func(int) task.Instant { return hour.At })...)
		b.compact(own, task.CompactLevel0)
	}
	// A task that is in the near tier already: its copy cannot be inserted.
	r := b.farRows()[kernel.KeyOf(b.tenant, ids[33], 0)]
	b.exec(`INSERT INTO task (shard, tenant_id, id, run, due_at, scheduled_at, anchor, begin_at, give_up_after_ms, retention_ms, created_at, ack_timeout_ms,
		type, state, kind, params)
		VALUES ($1, $2, $3, 0, $4, $4, $4, $4, 1, 0, 0, 1, 1, 1, 'k', '')`, int16(r.ID.Shard()), r.Tenant, int64(r.ID), int64(r.DueAt))
	b.setClock(hour.At)
	got := b.compact(own, task.CompactPromote)
	if got.Near != 60 || len(got.Damaged) != 1 {
		t.Fatalf("compaction = %+v", got)
	}
}

func TestStaleMoverChangesNothing(t *testing.T) {
	b := setup(t)
	stale := b.chores()
	b.addMany(50, func(int) task.Instant { return b.now.Add(5 * time.Hour) })
	b.compact(stale, task.CompactLevel0)
	b.addMany(50, func(int) task.Instant { return b.now.Add(5 * time.Hour) })
	near := b.add(b.spec(task.OneShot))[0]
	b.exec(`UPDATE task SET due_at = $2, scheduled_at = $2 WHERE id = $1`, int64(near), int64(b.now.Add(24*time.Hour)))
	b.chores()
	before := b.packs()
	for _, kind := range []task.CompactionKind{task.CompactLevel0, task.CompactPromote} {
		if kind == task.CompactPromote {
			b.advance(5 * time.Hour)
		}
		if got := b.compact(stale, kind); !got.Lost || got.Near+got.Packed != 0 {
			t.Errorf("%s = %+v", kind, got)
		}
	}
	if out, err := b.Demote(t.Context(), b.d, stale, 0); err != nil || !out.Lost {
		t.Errorf("demote = %+v, %v", out, err)
	}
	if diff := cmp.Diff(before, b.packs()); diff != "" || len(b.rows()) != 1 {
		t.Fatal(diff)
	}
}

func TestStaleMoverSetsNothingAside(t *testing.T) {
	b := setup(t)
	own := b.chores()
	b.addMany(10, func(int) task.Instant { return b.now.Add(5 * time.Hour) })
	b.exec(`UPDATE far_level0 SET keys = '\x00'`)
	b.chores()
	damaged := task.DamagedPack{Pack: int64(b.packs()[0]), Reason: "no"}
	if _, lost, err := b.Quarantine(t.Context(), b.d, own, damaged); err != nil || !lost {
		t.Fatal(err)
	}
	if n := b.count(`SELECT count(*) FROM far_level0 WHERE quarantine_reason IS NOT NULL`); n != 0 {
		t.Fatal("the pack was quarantined")
	}
}

func TestCrashBeforeAnyCommitChangesNothing(t *testing.T) {
	crash := errors.New("crash")
	failing := ""
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == failing {
				return crash
			}
			return nil
		}
	})
	own := b.chores()
	hour := pack.BucketOf(b.now.Add(30*time.Hour), pack.Hour)
	b.addMany(300, func(i int) task.Instant { return hour.At.Add(time.Duration(i) * time.Second) })
	state := func() string {
		return fmt.Sprint(b.packs(), len(b.rows()), b.count(`SELECT count(*) FROM far_locator`), b.bucketsOf())
	}
	step := func(name string, f func() error) {
		t.Helper()
		before := state()
		failing = name + ":" + kernel.BeforeCommit
		if err := f(); !errors.Is(err, crash) {
			t.Fatalf("%s: %v", name, err)
		}
		if after := state(); after != before {
			t.Fatalf("%s: %s became %s", name, before, after)
		}
		failing = name + ":" + kernel.AfterCommit
		if err := f(); !errors.Is(err, task.ErrOutcomeUnknown) {
			t.Fatalf("%s: %v", name, err)
		}
		if after := state(); after == before {
			t.Fatalf("%s changed nothing", name)
		}
		failing = ""
		if n := len(b.everywhere()); n != 300 {
			t.Fatalf("%s: %d tasks", name, n)
		}
	}
	compact := func(kind task.CompactionKind) func() error {
		return func() error {
			_, err := b.Compact(context.Background(), task.CompactionRequest{Database: b.d, Own: own, Kind: kind})
			return err
		}
	}
	step("compact", compact(task.CompactLevel0))
	b.setClock(hour.At)
	step("compact", compact(task.CompactPromote))
	b.setClock(hour.At.Add(-30 * time.Hour))
	step("demote", func() error { _, err := b.Demote(context.Background(), b.d, own, 0); return err })
}

func TestAddDuringARecutComesWithTheNext(t *testing.T) {
	b := setup(t)
	own := b.chores()
	at := b.now.Add(30 * time.Hour)
	b.addMany(100, func(int) task.Instant { return at })
	late := 0
	b.db.SetFailpoint(func(point string, _ int) error {
		if point == "compact:"+kernel.BeforeCommit && late == 0 {
			late = len(b.addMany(3, func(int) task.Instant { return at }))
		}
		return nil
	})
	if got := b.compact(own, task.CompactLevel0); got.Packed != 100 {
		t.Fatalf("compaction = %+v", got)
	}
	if got := b.compact(own, task.CompactLevel0); got.Packed != 3 || len(b.everywhere()) != 103 {
		t.Fatalf("compaction = %+v", got)
	}
}

func TestOneCutIsBounded(t *testing.T) {
	b := setup(t)
	own := b.chores()
	at := b.now.Add(30 * time.Hour)
	for range 10 {
		b.addMany(100, func(int) task.Instant { return at })
	}
	c, err := b.Compact(t.Context(), task.CompactionRequest{Database: b.d, Own: own, Kind: task.CompactLevel0, MaxTasks: 350})
	if err != nil || c.Packed != 300 || !c.More {
		t.Fatalf("compaction = %+v, %v", c, err)
	}
	if c, err = b.Compact(t.Context(), task.CompactionRequest{Database: b.d, Own: own, Kind: task.CompactLevel0, Before: b.now}); err != nil || c.Read != 0 {
		t.Fatalf("tasks added later are compacted, too: %+v, %v", c, err)
	}
}

// TestCancelJustBeforeTheLockIsSeenWhateverTheRoleHas: with the isolation that a role, a database or a server may
// have for other programs, a compaction would not see what was committed after its first statement.
func TestCancelJustBeforeTheLockIsSeenWhateverTheRoleHas(t *testing.T) {
	for _, isolation := range []string{"repeatable%20read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			b := setup(t)
			own, ids := b.packedDueSoon()
			dsn := testenv.PackageDatabase(t, checked())
			mover := New(storetest.OpenDSN(t, dsn+"&default_transaction_isolation="+isolation), b.cfg)
			mover.db.SetFailpoint(func(point string, _ int) error {
				if point == "compact:"+far.BeforeLock {
					if _, err := b.Cancel(t.Context(), b.tenant, ids[4]); err != nil {
						t.Error(err)
					}
				}
				return nil
			})
			got, err := mover.Compact(t.Context(), task.CompactionRequest{Database: b.d, Own: own, Kind: task.CompactPromote})
			if err != nil || got.Near != 9 || got.Void != 1 || len(b.everywhere()) != 9 {
				t.Fatalf("compaction = %+v, %v; %d tasks are left", got, err, len(b.everywhere()))
			}
		})
	}
}
