package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/shards/imports"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// clockEverywhere sets the clocks of all databases.
func (b *bundle) clockEverywhere() {
	b.t.Helper()
	for d := range task.Databases {
		if _, err := b.db.Pool(d).Exec(b.t.Context(), `UPDATE test_clock SET now = $1`, int64(b.now)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// imported creates an import.
func (b *bundle) imported(terms task.ImportTerms) *task.Import {
	b.t.Helper()
	b.clockEverywhere()
	terms.OnConflict = max(terms.OnConflict, task.SkipExisting)
	i, err := b.CreateImport(b.t.Context(), b.tenant, terms, "", []byte("hash"))
	if err != nil {
		b.t.Fatal(err)
	}
	return i
}

// numberHere returns the nth number of a chunk whose place is the bundle's database.
func (b *bundle) numberHere(i *task.Import, n int) int64 {
	number := int64(1)
	for imports.PlaceOf(i.ID, number) != b.d {
		number++
	}
	return number + int64(n*task.Databases)
}

// lines returns a chunk of n lines of one template, each a minute after the last one.
func (b *bundle) lines(number int64, n int, change ...func(*task.Spec)) *task.ImportChunk {
	b.t.Helper()
	c := &task.ImportChunk{Number: number, Specs: []task.Spec{b.spec(task.OneShot, change...)}, Checksum: 1<<63 + uint64(number)}
	for i := range n {
		c.Lines = append(c.Lines, task.ImportLine{Line: int32(i), Begin: b.now.Add(time.Duration(i+1) * time.Minute), Params: fmt.Appendf(nil, "params %d", i)})
	}
	return c
}

// withKeys gives lines keys that lie in the bundle's database, and hashes.
func (b *bundle) withKeys(c *task.ImportChunk, keys []string, body byte) *task.ImportChunk {
	for i := range c.Lines {
		c.Lines[i].Key, c.Lines[i].KeyHash = []byte(keys[i]), &[16]byte{body, byte(i)}
	}
	return c
}

func (b *bundle) keysHere(n int) (keys []string) {
	for len(keys) < n {
		b.adds++
		if key := fmt.Sprintf("line-%d", b.adds); kernel.ShardOfKey(b.tenant, key).Database() == b.d {
			keys = append(keys, key)
		}
	}
	return keys
}

func (b *bundle) write(i *task.Import, c *task.ImportChunk) task.ChunkResult {
	b.t.Helper()
	got, err := b.WriteChunk(b.t.Context(), i, c)
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

// sumOf compares the counts of a result.
func (b *bundle) sumOf(what string, got task.ImportSum, want task.ImportSum) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func TestAChunkIsStoredOnceInBothTiersAndCounted(t *testing.T) {
	b := setup(t)
	i := b.imported(task.ImportTerms{})
	chunk := b.lines(b.numberHere(i, 0), 5000)
	chunk.Rejected = 2
	want := task.ImportSum{Lines: 5002, Added: 5000, Rejected: 2}
	got := b.write(i, chunk)
	b.sumOf("the first time", got.ImportSum, want)
	if got.Replayed || got.Types[task.OneShot] != 5000 {
		t.Errorf("replayed %v, %v", got.Replayed, got.Types)
	}
	again := b.write(i, chunk)
	b.sumOf("again", again.ImportSum, want)
	if !again.Replayed {
		t.Error("the second time the chunk was stored")
	}
	dump := b.dump()
	if len(dump) != 5000 {
		t.Fatalf("%d tasks are stored", len(dump))
	}
	texts := map[string]bool{}
	for _, r := range dump {
		texts[string(r.Params)] = true
		if r.DueAt != r.Begin || r.CreatedAt != b.now || r.Tenant != b.tenant || r.Version != 1 {
			t.Fatalf("a task is stored as %+v", r)
		}
	}
	if len(texts) != 5000 {
		t.Errorf("there are %d different params", len(texts))
	}
	b.recounted()
	read, err := b.GetImport(t.Context(), b.tenant, i.ID)
	if err != nil {
		t.Fatal(err)
	}
	b.sumOf("of the import", read.ImportSum, want)
	if read.Checksum != chunk.Checksum || read.Chunks != 1 || !slices.Equal(read.Stored, []task.ChunkRange{{First: chunk.Number, Last: chunk.Number}}) {
		t.Errorf("the import has %d chunks %v, checksum %x", read.Chunks, read.Stored, read.Checksum)
	}
}

// TestAChunkWhoseCommitIsLostIsStoredOnce: also if it is written several times at once.
func TestAChunkWhoseCommitIsLostIsStoredOnce(t *testing.T) {
	var mu sync.Mutex
	lost := 0
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			if point == "load:"+kernel.AfterCommit || point == "load:"+kernel.BeforeCommit {
				if lost++; lost < 3 {
					return errors.New("connection lost")
				}
			}
			return nil
		}
	})
	i := b.imported(task.ImportTerms{})
	chunk, keyed := b.lines(b.numberHere(i, 0), 400), b.withKeys(b.lines(b.numberHere(i, 1), 300), b.keysHere(300), 1)
	for _, c := range []*task.ImportChunk{chunk, keyed} {
		mu.Lock()
		lost = 0
		mu.Unlock()
		for range 4 {
			_, err := b.WriteChunk(t.Context(), i, c)
			if mu.Lock(); lost < 3 && err == nil {
				t.Error("a lost commit was answered")
			}
			mu.Unlock()
		}
		var at sync.WaitGroup
		for range 4 {
			at.Go(func() {
				if _, err := b.WriteChunk(context.Background(), i, c); err != nil {
					t.Error(err)
				}
			})
		}
		at.Wait()
	}
	if n := len(b.dump()); n != 700 {
		t.Errorf("%d tasks are stored, want 700", n)
	}
	b.recounted()
}

func TestTheSameChunkWrittenManyTimesAtOnceIsStoredOnce(t *testing.T) {
	b := setup(t)
	i := b.imported(task.ImportTerms{})
	plain, keyed := b.lines(b.numberHere(i, 0), 300), b.withKeys(b.lines(b.numberHere(i, 1), 300), b.keysHere(300), 1)
	var at sync.WaitGroup
	for n := range 12 {
		at.Go(func() {
			got, err := b.WriteChunk(context.Background(), i, []*task.ImportChunk{plain, keyed}[n%2])
			if err != nil || got.Added != 300 || got.Lines != 300 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	at.Wait()
	if n := len(b.dump()); n != 600 {
		t.Errorf("%d tasks are stored, want 600", n)
	}
	b.recounted()
}

// Two programs send different lines under the numbers of one import.
func TestAChunkWithTheNumberOfAnotherIsRefused(t *testing.T) {
	b := setup(t)
	i := b.imported(task.ImportTerms{})
	plain, keyed := b.lines(b.numberHere(i, 0), 30), b.withKeys(b.lines(b.numberHere(i, 1), 30), b.keysHere(30), 1)
	for _, c := range []*task.ImportChunk{plain, keyed} {
		b.write(i, c)
		other := *c
		other.Checksum++
		if got, err := b.WriteChunk(t.Context(), i, &other); task.CodeOf(err) != task.AlreadyExists {
			t.Errorf("chunk %d: %+v, %v", c.Number, got, err)
		}
		if again := b.write(i, c); !again.Replayed {
			t.Errorf("chunk %d was stored a second time", c.Number)
		}
	}
	var at sync.WaitGroup
	var refused atomic.Int32
	for n := range 4 {
		c := b.lines(b.numberHere(i, 2), 30)
		c.Checksum += uint64(n)
		at.Go(func() {
			if _, err := b.WriteChunk(context.Background(), i, c); task.CodeOf(err) == task.AlreadyExists {
				refused.Add(1)
			}
		})
	}
	at.Wait()
	if n := refused.Load(); n != 3 {
		t.Errorf("%d of 4 chunks with one number were refused", n)
	}
	if n := len(b.dump()); n != 90 {
		t.Errorf("%d tasks are stored, want 90", n)
	}
}

func TestLinesWhoseKeysExist(t *testing.T) {
	for _, mode := range []task.OnConflict{task.SkipExisting, task.UpdateExisting, task.FailExisting} {
		t.Run(mode.String(), func(t *testing.T) {
			b := setup(t).running()
			i := b.imported(task.ImportTerms{OnConflict: mode})
			keys := b.keysHere(20)
			first := b.withKeys(b.lines(b.numberHere(i, 0), 10), keys[:10], 1)
			b.sumOf("new keys", b.write(i, first).ImportSum, task.ImportSum{Lines: 10, Added: 10})
			// Five lines of the first chunk as they are, five with another body, and ten new keys, one
			// of which comes twice.
			second := b.withKeys(b.lines(b.numberHere(i, 1), 21), append(slices.Clone(keys), keys[19]), 1)
			for n := 5; n < 10; n++ {
				second.Lines[n].KeyHash, second.Lines[n].Params = &[16]byte{9, byte(n)}, []byte("other")
			}
			second.Lines[20].KeyHash, second.Lines[20].Params = &[16]byte{9, 20}, []byte("last")
			got := b.write(i, second)
			want := map[task.OnConflict]task.ImportSum{
				task.SkipExisting:   {Lines: 21, Added: 10, Skipped: 11},
				task.UpdateExisting: {Lines: 21, Added: 10, Skipped: 5, Updated: 6},
				task.FailExisting:   {Lines: 21, Added: 10, Skipped: 5, Rejected: 6},
			}[mode]
			b.sumOf("known keys", got.ImportSum, want)
			if int64(len(got.Faults)) != want.Rejected || want.Rejected > 0 && got.Faults[0].Field != "idempotency_key" {
				t.Errorf("faults: %v", got.Faults)
			}
			b.sumOf("again", b.write(i, second).ImportSum, want)
			params := map[string]int{}
			for _, r := range b.dump() {
				params[string(r.Params)]++
			}
			updated := map[bool]int{true: 5}[mode == task.UpdateExisting]
			if params["other"] != updated || params["last"] != min(updated, 1) {
				t.Errorf("params: %v", params)
			}
			b.recounted()
		})
	}
}

// TestAChunkWithKeysIsStoredInTheShardsOfItsKeys: and answers by them.
func TestAChunkWithKeysIsStoredInTheShardsOfItsKeys(t *testing.T) {
	b := setup(t)
	i := b.imported(task.ImportTerms{})
	keys := make([]string, 400)
	for n := range keys {
		keys[n] = fmt.Sprintf("k%d-%d", i.ID, n)
	}
	chunk := b.withKeys(b.lines(1, 400), keys, 1)
	b.sumOf("parts", b.write(i, chunk).ImportSum, task.ImportSum{Lines: 400, Added: 400})
	b.sumOf("again", b.write(i, chunk).ImportSum, task.ImportSum{Lines: 400, Added: 400})
	for n, key := range keys {
		id, err := b.TaskOfKey(t.Context(), b.tenant, key)
		if err != nil || id.Shard() != kernel.ShardOfKey(b.tenant, key) {
			t.Fatalf("key %s: task %s, %v", key, id, err)
		}
		s, err := b.Get(t.Context(), b.tenant, id)
		if err != nil || s.Key != key || string(s.Params) != fmt.Sprintf("params %d", n) {
			t.Fatalf("task %s of key %s: %+v, %v", id, key, s, err)
		}
	}
	read, err := b.FinishImport(t.Context(), b.tenant, i.ID, 1, 400)
	if err != nil || read.State != task.ImportFinished {
		t.Errorf("finished: %+v, %v", read, err)
	}
}

// A program is killed between two parts of a chunk, and the import is aborted: the tasks of the first part stay.
func TestAnImportThatWasAbortedCountsTheTasksOfAnIncompleteChunk(t *testing.T) {
	last := -1
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, d int) error {
			if d == last && point == "load:"+kernel.BeforeCommit {
				return errors.New("connection lost")
			}
			return nil
		}
	})
	i := b.imported(task.ImportTerms{})
	number := b.numberHere(i, 0) + 1 // its last part is in another database than its tasks
	last = imports.PlaceOf(i.ID, number)
	if _, err := b.WriteChunk(t.Context(), i, b.withKeys(b.lines(number, 30), b.keysHere(30), 1)); err == nil {
		t.Fatal("the chunk is whole")
	}
	if open, err := b.GetImport(t.Context(), b.tenant, i.ID); err != nil || open.ImportSum != (task.ImportSum{}) || open.Chunks != 0 {
		t.Errorf("while it is open: %+v, %v", open, err)
	}
	ended, err := b.AbortImport(t.Context(), b.tenant, i.ID)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.dump()); ended.Added != int64(n) || n != 30 || ended.Chunks != 0 {
		t.Errorf("%d tasks are there, and the import has added %d in %d chunks", n, ended.Added, ended.Chunks)
	}
}

func TestALineThatCouldNeverFireIsRejectedAndTheOthersAreStored(t *testing.T) {
	b := setup(t)
	for _, dry := range []bool{true, false} {
		i := b.imported(task.ImportTerms{DryRun: dry})
		chunk := b.lines(b.numberHere(i, 0), 4)
		chunk.Specs = append(chunk.Specs, b.spec(task.OneShot, func(s *task.Spec) { s.End = b.now.Add(90 * time.Second) }), b.spec(task.NonBlocking, byCron("0 0 30 2 *", "UTC")))
		chunk.Lines[1].Spec, chunk.Lines[1].Begin = 1, b.now.Add(2*time.Minute)
		chunk.Lines[2].Spec, chunk.Lines[2].Line = 2, 77
		got := b.write(i, chunk)
		b.sumOf(fmt.Sprint("dry run ", dry), got.ImportSum, task.ImportSum{Lines: 4, Added: 2, Rejected: 2})
		if len(got.Faults) != 2 || got.Faults[0].Line != 1 || got.Faults[0].Field != "end_time" || got.Faults[1].Line != 77 || got.Faults[1].Field != "cron.expression" {
			t.Errorf("faults: %v", got.Faults)
		}
		if n := len(b.dump()); n != map[bool]int{false: 2}[dry] {
			t.Errorf("dry run %v: %d tasks are stored", dry, n)
		}
		if _, err := b.AbortImport(t.Context(), b.tenant, i.ID); err != nil {
			t.Error(err)
		}
	}
}

func TestARestoredTaskContinuesWhereItWas(t *testing.T) {
	b := setup(t)
	i := b.imported(task.ImportTerms{Restore: true})
	c := b.lines(b.numberHere(i, 0), 0)
	begin := b.now.Add(-10 * time.Hour)
	c.Specs = []task.Spec{b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = time.Hour }), b.spec(task.Blocking, byCron("0 0 * * *", "UTC"))}
	next := b.now.Add(5 * time.Minute)
	for _, s := range []task.RestoredState{
		{Scheduled: next, RunCount: 7, Missed: 3, Anchor: next.Add(-time.Hour)},
		{Scheduled: b.now.Add(40 * 24 * time.Hour), RunCount: 1, Paused: true},
		{Anchor: b.now.Add(-20 * time.Hour).Add(5 * time.Minute), RunCount: 2},
		{Scheduled: next, RunCount: 9},
		{},
	} {
		c.Restored = append(c.Restored, s)
		c.Lines = append(c.Lines, task.ImportLine{Line: int32(len(c.Lines)), Begin: begin, Params: fmt.Appendf(nil, "%d", len(c.Lines))})
	}
	c.Lines[3].Spec = 1
	b.sumOf("restored", b.write(i, c).ImportSum, task.ImportSum{Lines: 5, Added: 5})
	got := map[string]*task.Row{}
	for _, r := range b.dump() {
		got[string(r.Params)] = r
	}
	want := map[string]task.Row{
		"0": {Seq: 7, Missed: 3, ScheduledAt: next, DueAt: next, Anchor: next.Add(-time.Hour)},
		"1": {Seq: 1, Paused: true, ScheduledAt: c.Restored[1].Scheduled, DueAt: task.Never, Anchor: c.Restored[1].Scheduled},
		"2": {Seq: 2, ScheduledAt: begin.Add(5 * time.Minute), DueAt: b.now, Anchor: c.Restored[2].Anchor},
		"3": {Seq: 9, ScheduledAt: next, DueAt: next, Anchor: next},
		"4": {ScheduledAt: begin, DueAt: b.now, Anchor: begin},
	}
	for name, w := range want {
		r := got[name]
		if r == nil {
			t.Fatalf("task %s is not stored", name)
		}
		is := task.Row{Seq: r.Seq, Missed: r.Missed, Paused: r.Paused, ScheduledAt: r.ScheduledAt, DueAt: r.DueAt, Anchor: r.Anchor}
		if d := cmp.Diff(w, is); d != "" {
			t.Errorf("task %s (-want +got):\n%s", name, d)
		}
	}
	b.setClock(next)
	for _, p := range b.claim(task.RangeForm).Publications {
		if r := got["0"]; p.Task == r.ID && (p.Seq != 8 || p.ScheduledAt != next) {
			t.Errorf("the next run is %+v", p)
		}
	}
	if r := b.dump()[got["0"].ID]; r == nil || r.Seq != 8 || r.ScheduledAt != next.Add(time.Hour) {
		t.Errorf("after its run: %+v", r)
	}
	b.recounted()
}

// rolledBack executes the steps of a rollback in the bundle's database.
func (b *bundle) rolledBack(own task.Ownership) (sum task.BulkSum) {
	b.t.Helper()
	for range 1000 {
		step, err := b.Bulk(b.t.Context(), b.d, own, false)
		if err != nil || step.Lost {
			b.t.Fatalf("%+v, %v", step, err)
		}
		sum.Done, sum.Matched = sum.Done+step.Done, sum.Matched+step.Matched
		if step.Ended {
			return sum
		}
	}
	b.t.Fatal("the rollback does not end")
	return sum
}

// TestARollbackVisitsOnlyPacksThatMayHoldTasksOfItsImport: those of another import, which this program
// cannot read, do not stop it.
func TestARollbackVisitsOnlyPacksThatMayHoldTasksOfItsImport(t *testing.T) {
	b := setup(t)
	own := b.chores()
	other, i := b.imported(task.ImportTerms{}), b.imported(task.ImportTerms{})
	version := func(n int) {
		t.Helper()
		if _, err := b.db.Pool(b.d).Exec(t.Context(), `UPDATE far_pack SET keys = set_byte(keys, 1, $1)`, n); err != nil {
			t.Fatal(err)
		}
	}
	b.write(other, b.lines(b.numberHere(other, 0), 500))
	version(9)
	b.write(i, b.lines(b.numberHere(i, 0), 300))
	if _, err := b.RollbackImport(t.Context(), b.tenant, i.ID, "somebody"); err != nil {
		t.Fatal(err)
	}
	if sum := b.rolledBack(own); sum.Done != 300 {
		t.Errorf("%d tasks were removed, want 300", sum.Done)
	}
	version(1)
	if n := len(b.dump()); n != 500 {
		t.Errorf("%d tasks are left, want 500", n)
	}
	b.recounted()
}

// TestAFileWithSomeKeysThatExistIsStoredOnce: also if none of the keys that are read first exists.
func TestAFileWithSomeKeysThatExistIsStoredOnce(t *testing.T) {
	b := setup(t)
	i := b.imported(task.ImportTerms{})
	keys := b.keysHere(1000)
	few := b.withKeys(b.lines(b.numberHere(i, 0), 3), []string{keys[401], keys[402], keys[777]}, 1)
	b.sumOf("three lines", b.write(i, few).ImportSum, task.ImportSum{Lines: 3, Added: 3})
	all := b.withKeys(b.lines(b.numberHere(i, 1), 1000), keys, 2)
	b.sumOf("all lines", b.write(i, all).ImportSum, task.ImportSum{Lines: 1000, Added: 997, Skipped: 3})
	if n := b.count(`SELECT count(*) FROM task_key WHERE tenant_id = $1 AND of_task AND n = 1 AND refused IS NULL`, b.tenant); n != 1000 {
		t.Errorf("there are %d keys, want 1000", n)
	}
	if n := len(b.dump()); n != 1000 {
		t.Errorf("%d tasks are stored, want 1000", n)
	}
	b.recounted()
}

func TestARollbackRemovesWhatHasNotFired(t *testing.T) {
	b := setup(t)
	own := b.chores()
	i := b.imported(task.ImportTerms{Restore: true})
	keys := b.keysHere(40)
	other := b.add(b.spec(task.OneShot, b.inHours(2)))[0]
	plain := b.lines(b.numberHere(i, 0), 3000)
	keyed := b.withKeys(b.lines(b.numberHere(i, 1), 40), keys, 1)
	restored := b.lines(b.numberHere(i, 2), 60, func(s *task.Spec) { s.Type, s.Interval, s.MaxCount = task.NonBlocking, 30*time.Minute, 0 })
	for n := range restored.Lines {
		restored.Restored = append(restored.Restored, task.RestoredState{RunCount: int64(n % 3), Scheduled: restored.Lines[n].Begin, Paused: n == 59})
	}
	for _, c := range []*task.ImportChunk{plain, keyed, restored} {
		b.write(i, c)
	}
	edited, fired := task.ID(0), map[task.ID]bool{}
	for id, r := range b.dump() {
		if string(r.Params) == "params 2500" {
			edited = id
		}
	}
	b.edit(edited, func(s *task.Spec) { s.Kind = "edited" })
	b.advance(150 * time.Second) // two lines of each chunk are due
	for _, p := range b.claim(task.RangeForm).Publications {
		fired[p.Task] = true
	}
	if len(fired) != 6 {
		t.Fatalf("%d tasks have fired", len(fired))
	}
	if _, err := b.RollbackImport(t.Context(), b.tenant, i.ID, "somebody"); err != nil {
		t.Fatal(err)
	}
	b.write(i, b.lines(b.numberHere(i, 3), 2)) // the first step has not closed the import yet
	sum := b.rolledBack(own)
	if sum.Done < 3100-7 {
		t.Errorf("%d tasks were removed", sum.Done)
	}
	left := map[task.ID]bool{}
	for id := range b.dump() {
		left[id] = true
	}
	want := map[task.ID]bool{edited: true, other: true}
	for id := range fired {
		want[id] = true
	}
	if d := cmp.Diff(want, left); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
	if n := b.count(`SELECT count(*) FROM task_key WHERE tenant_id = $1 AND of_task`, b.tenant); n != 2 {
		t.Errorf("%d keys are left, want those of the fired tasks", n)
	}
	if n := b.count(`SELECT count(*) FROM task_done WHERE tenant_id = $1`, b.tenant); n != 0 {
		t.Errorf("%d removed tasks are kept", n)
	}
	b.recounted()
	if _, err := b.WriteChunk(t.Context(), i, b.lines(b.numberHere(i, 4), 2)); task.CodeOf(err) != task.FailedPrecondition {
		t.Errorf("a chunk after the rollback: %v", err)
	}
	read, err := b.GetImport(t.Context(), b.tenant, i.ID)
	if err != nil || read.State != task.ImportRollingBack || read.RolledBack != 1 || read.Removed != sum.Done {
		t.Errorf("the import is %+v, %v", read, err)
	}
}

// The program that begins a rollback is killed after its first transaction, and nobody repeats the call.
func TestAnImportWhoseTasksAreRemovedIsNotFinished(t *testing.T) {
	b := setup(t)
	i := b.imported(task.ImportTerms{})
	b.write(i, b.lines(1, 2))
	if _, err := b.FinishImport(t.Context(), b.tenant, i.ID, 1, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Operations.RollbackImport(t.Context(), b.tenant, i.ID, "somebody"); err != nil {
		t.Fatal(err)
	}
	if read, err := b.GetImport(t.Context(), b.tenant, i.ID); err != nil || read.State != task.ImportRollingBack || read.RolledBack != 0 {
		t.Errorf("the import is %+v, %v", read, err)
	}
}

// An operator aborts the operation of a rollback: most tasks are left, and the rollback can begin again.
func TestARollbackThatWasAbortedLeavesAnAbortedImport(t *testing.T) {
	b := setup(t)
	own := b.chores()
	i := b.imported(task.ImportTerms{})
	b.write(i, b.lines(b.numberHere(i, 0), 3000))
	if _, err := b.RollbackImport(t.Context(), b.tenant, i.ID, "somebody"); err != nil {
		t.Fatal(err)
	}
	removed := int64(0)
	for removed == 0 {
		step, err := b.Bulk(t.Context(), b.d, own, true)
		if err != nil || step.Ended {
			t.Fatalf("%+v, %v", step, err)
		}
		removed = step.Done
	}
	open, err := b.ListBulk(t.Context(), b.tenant, task.Never, 0, 1)
	if err != nil || len(open) != 1 {
		t.Fatal(open, err)
	}
	if _, err := b.AbortBulk(t.Context(), b.tenant, open[0].ID); err != nil {
		t.Fatal(err)
	}
	left := len(b.dump())
	read, err := b.GetImport(t.Context(), b.tenant, i.ID)
	if err != nil || read.State != task.ImportAborted || read.RolledBack != 0 || read.Removed != removed || left == 0 {
		t.Errorf("%d tasks are left, and the import is %+v, %v", left, read, err)
	}
	read, err = b.RollbackImport(t.Context(), b.tenant, i.ID, "somebody")
	if err != nil || read.State != task.ImportRollingBack {
		t.Errorf("again: %+v, %v", read, err)
	}
	b.rolledBack(own)
	read, err = b.GetImport(t.Context(), b.tenant, i.ID)
	if n := len(b.dump()); err != nil || n != 0 || read.Removed != 3000 || read.RolledBack != 1 {
		t.Errorf("%d tasks are left, and the import is %+v, %v", n, read, err)
	}
	b.recounted()
}

func TestAnImportIsFinishedOnlyWithAllItsChunks(t *testing.T) {
	b := setup(t)
	i := b.imported(task.ImportTerms{})
	for _, n := range []int64{1, 2, 4} {
		b.write(i, b.lines(n, 3))
	}
	finish := func(chunks, lines int64) error {
		_, err := b.FinishImport(t.Context(), b.tenant, i.ID, chunks, lines)
		return err
	}
	for _, c := range []struct{ chunks, lines int64 }{{3, 9}, {4, 12}, {2, 6}} {
		if err := finish(c.chunks, c.lines); task.CodeOf(err) != task.FailedPrecondition {
			t.Errorf("%d chunks with %d lines: %v", c.chunks, c.lines, err)
		}
	}
	b.write(i, b.lines(3, 3))
	if err := finish(4, 11); task.CodeOf(err) != task.FailedPrecondition {
		t.Errorf("with another number of lines: %v", err)
	}
	for range 2 {
		if err := finish(4, 12); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.AbortImport(t.Context(), b.tenant, i.ID); task.CodeOf(err) != task.FailedPrecondition {
		t.Errorf("abort of a finished import: %v", err)
	}
}

func TestAnImportIsCreatedOnceAndFewAreOpen(t *testing.T) {
	b := setup(t)
	b.clockEverywhere()
	create := func(request, hash string) (*task.Import, error) {
		return b.CreateImport(t.Context(), b.tenant, task.ImportTerms{Description: "d", OnConflict: task.SkipExisting}, request, []byte(hash))
	}
	first, err := create("r", "h")
	if err != nil {
		t.Fatal(err)
	}
	again, err := create("r", "h")
	if err != nil || again.ID != first.ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, err := create("r", "other"); task.CodeOf(err) != task.AlreadyExists {
		t.Errorf("another body: %v", err)
	}
	for range task.MaxOpenImports - 1 {
		if _, err := create("", "h"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := create("", "h"); task.CodeOf(err) != task.ResourceExhausted {
		t.Errorf("too many: %v", err)
	}
	if _, err := b.GetImport(t.Context(), b.tenant+1, first.ID); task.CodeOf(err) != task.NotFound {
		t.Errorf("of another tenant: %v", err)
	}
	list, err := b.ListImports(t.Context(), b.tenant, task.Never, 0, 3)
	if err != nil || len(list) != 3 {
		t.Fatalf("%d imports, %v", len(list), err)
	}
	next, err := b.ListImports(t.Context(), b.tenant, list[2].CreatedAt, list[2].ID, 1000)
	if err != nil || len(next) != task.MaxOpenImports-3 {
		t.Errorf("the next page has %d, %v", len(next), err)
	}
}

func TestEndedImportsArePurgedInAllDatabases(t *testing.T) {
	b := setup(t)
	b.tenant += int32((b.d - kernel.Home(b.tenant) + task.Databases) % task.Databases) // at home here
	i, open := b.imported(task.ImportTerms{}), b.imported(task.ImportTerms{})
	for n := range int64(17) {
		b.write(i, b.lines(n+1, 2))
	}
	b.write(open, b.lines(1, 2))
	if _, err := b.AbortImport(t.Context(), b.tenant, i.ID); err != nil {
		t.Fatal(err)
	}
	markers := func() (n int) {
		for d := range task.Databases {
			var here int
			if err := b.db.Pool(d).QueryRow(t.Context(), `SELECT count(*) FROM import_chunk WHERE tenant_id = $1`, b.tenant).Scan(&here); err != nil {
				t.Fatal(err)
			}
			n += here
		}
		return n
	}
	for _, c := range []struct {
		later time.Duration
		left  int
	}{{task.ImportKept - time.Hour, 18}, {2 * time.Hour, 1}} {
		b.advance(c.later)
		if _, _, err := b.PurgeImports(t.Context(), b.d); err != nil {
			t.Fatal(err)
		}
		if n := markers(); n != c.left {
			t.Errorf("%d markers are left, want %d", n, c.left)
		}
	}
	if _, err := b.GetImport(t.Context(), b.tenant, i.ID); task.CodeOf(err) != task.NotFound {
		t.Errorf("the purged import: %v", err)
	}
	if _, err := b.GetImport(t.Context(), b.tenant, open.ID); err != nil {
		t.Errorf("the open import: %v", err)
	}
}

// TestAChunkWhoseTimeIsOverIsNotComputed: its lines may take milliseconds each, and there may be a quarter of a million.
func TestAChunkWhoseTimeIsOverIsNotComputed(t *testing.T) {
	for _, dry := range []bool{false, true} {
		ctx, end := context.WithCancel(t.Context())
		computed := 0
		b := setup(t, func(c *Config) {
			c.Windows = func(int32, []string, []string) (*task.Windows, task.MissingCalendar) {
				computed++
				end()
				return nil, task.MissingCalendar{}
			}
		})
		i := b.imported(task.ImportTerms{DryRun: dry})
		c := b.lines(b.numberHere(i, 0), 100, func(s *task.Spec) { s.Type, s.Interval, s.Exclude = task.NonBlocking, time.Hour, []string{"x"} })
		if _, err := b.WriteChunk(ctx, i, c); err == nil || computed != 1 {
			t.Errorf("dry run %t: %d lines were computed, %v", dry, computed, err)
		}
	}
}
