package shards

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// nearRows counts the rows of the bundle's tenant in the near tier.
func (b *bundle) nearRows() int {
	return b.count(`SELECT count(*) FROM task WHERE tenant_id = $1`, b.tenant)
}

// TestAnUpdateOfManyTasksMovesThoseThatChange: the others stay in their packs, in as few transactions as
// there are hundreds of lines.
func TestAnUpdateOfManyTasksMovesThoseThatChange(t *testing.T) {
	b := setup(t).running()
	i := b.imported(task.ImportTerms{OnConflict: task.UpdateExisting})
	keys := b.keysHere(700)
	later := func(c *task.ImportChunk) *task.ImportChunk {
		for n := range c.Lines {
			c.Lines[n].Begin = b.now.Add(time.Duration(48+n%3) * time.Hour)
		}
		return c
	}
	b.sumOf("new", b.write(i, later(b.withKeys(b.lines(b.numberHere(i, 0), 700), keys, 1))).ImportSum, task.ImportSum{Lines: 700, Added: 700})
	if n := b.nearRows(); n != 0 {
		t.Fatalf("%d tasks are rows", n)
	}
	nightly := later(b.withKeys(b.lines(b.numberHere(i, 1), 700), keys, 1))
	changed := map[int]bool{}
	for n := 0; n < 700; n += 7 {
		nightly.Lines[n].Params, nightly.Lines[n].KeyHash, changed[n] = []byte("other"), &[16]byte{2, byte(n)}, true
	}
	nightly.Lines[7].Begin += task.Instant(time.Hour.Milliseconds())
	want := task.ImportSum{Lines: 700, Updated: int64(len(changed)), Skipped: int64(700 - len(changed))}
	b.sumOf("nightly", b.write(i, nightly).ImportSum, want)
	if n := b.nearRows(); n != len(changed) {
		t.Errorf("%d tasks are rows, and %d have changed", n, len(changed))
	}
	dump := b.dump()
	if len(dump) != 700 {
		t.Fatalf("%d tasks are stored", len(dump))
	}
	for n, key := range keys {
		id, err := b.TaskOfKey(t.Context(), b.tenant, key)
		if err != nil {
			t.Fatal(err)
		}
		r, text, version := dump[id], fmt.Sprintf("params %d", n), int32(1)
		if changed[n] {
			text, version = "other", 2
		}
		if string(r.Params) != text || r.Version != version || r.Begin != nightly.Lines[n].Begin || r.DueAt != r.Begin || r.Key != key {
			t.Errorf("line %d is stored as %+v", n, r)
		}
	}
	b.recounted()
	// The next night nothing has changed: no task moves, and the hashes are those of the last lines.
	again := later(b.withKeys(b.lines(b.numberHere(i, 2), 700), keys, 1))
	again.Lines = slices.Clone(nightly.Lines)
	b.sumOf("the next night", b.write(i, again).ImportSum, task.ImportSum{Lines: 700, Skipped: 700})
	if n := b.count(`SELECT count(*) FROM task_key WHERE tenant_id = $1 AND starts_with(key, chr(1)) AND get_byte(body_hash, 0) = 2`, b.tenant); n != len(changed) {
		t.Errorf("%d keys have the new hash, want %d", n, len(changed))
	}
}

// TestAnUpdateOfTasksThatOthersHoldIsDoneWhenTheyLetGo: also of one that has ended, in whose place a new one is added.
func TestAnUpdateOfTasksThatOthersHoldIsDoneWhenTheyLetGo(t *testing.T) {
	b := setup(t).running()
	i := b.imported(task.ImportTerms{OnConflict: task.UpdateExisting})
	keys := b.keysHere(5)
	b.write(i, b.withKeys(b.lines(b.numberHere(i, 0), 5), keys, 1)) // the first lines are rows
	held, err := b.TaskOfKey(t.Context(), b.tenant, keys[0])
	if err != nil {
		t.Fatal(err)
	}
	ended, err := b.TaskOfKey(t.Context(), b.tenant, keys[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Cancel(t.Context(), b.tenant, ended); err != nil {
		t.Fatal(err)
	}
	unlock := b.lockRow(held)
	released := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() {
		unlock()
		close(released)
	})
	second := b.withKeys(b.lines(b.numberHere(i, 1), 5), keys, 2)
	for n := range second.Lines {
		second.Lines[n].Params = []byte("other")
	}
	got := b.write(i, second)
	<-released
	b.sumOf("the second time", got.ImportSum, task.ImportSum{Lines: 5, Added: 1, Updated: 4})
	for id, r := range b.dump() {
		if string(r.Params) != "other" || id == ended {
			t.Errorf("task %s is stored as %+v", id, r)
		}
	}
	b.recounted()
}

// TestAnUpdateOfManyTasksEndsWhenItHasComputedForLong: a server ends a session that computes for seconds. Here the time suffices for one
// task of a transaction, and the others follow.
func TestAnUpdateOfManyTasksEndsWhenItHasComputedForLong(t *testing.T) {
	b := setup(t, func(c *Config) { c.stepsWithin = time.Nanosecond }).running()
	i := b.imported(task.ImportTerms{OnConflict: task.UpdateExisting})
	keys := b.keysHere(20)
	chunk := func(n int, kind byte) *task.ImportChunk {
		c := b.withKeys(b.lines(b.numberHere(i, n), 20), keys, kind)
		for n := range c.Lines {
			c.Lines[n].Begin = b.now.Add(time.Duration(n%2) * 48 * time.Hour) // rows, and packed tasks
			c.Lines[n].Params = []byte{kind}
		}
		return c
	}
	b.sumOf("new", b.write(i, chunk(0, 1)).ImportSum, task.ImportSum{Lines: 20, Added: 20})
	b.sumOf("the second time", b.write(i, chunk(1, 2)).ImportSum, task.ImportSum{Lines: 20, Updated: 20})
	for id, r := range b.dump() {
		if string(r.Params) != "\x02" || r.Version != 2 {
			t.Errorf("task %s is stored as %+v", id, r)
		}
	}
	if n := b.count(`SELECT count(DISTINCT xmin::text) FROM task WHERE tenant_id = $1`, b.tenant); n < 15 {
		t.Errorf("20 tasks were changed by %d transactions", n)
	}
	b.recounted()
}

// TestAnUpdateThatIsRepeatedAddsNoTaskAgain: its marker was lost, and tasks that it has added or changed have ended meanwhile.
func TestAnUpdateThatIsRepeatedAddsNoTaskAgain(t *testing.T) {
	var lose atomic.Bool
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "load:"+kernel.BeforeCommit && lose.Load() {
				return errors.New("connection lost")
			}
			return nil
		}
	}).running()
	i := b.imported(task.ImportTerms{OnConflict: task.UpdateExisting})
	keys := b.keysHere(4)
	end := func(keys ...string) (ids []task.ID) {
		t.Helper()
		for _, key := range keys {
			id, err := b.TaskOfKey(t.Context(), b.tenant, key)
			if err == nil {
				_, err = b.Cancel(t.Context(), b.tenant, id)
			}
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		return ids
	}
	b.write(i, b.withKeys(b.lines(b.numberHere(i, 0), 3), keys[:3], 1))
	end(keys[0])                                                 // another one is added in its place; the others are changed
	chunk := b.withKeys(b.lines(b.numberHere(i, 1), 4), keys, 2) // the last key is new
	for n := range chunk.Lines {
		chunk.Lines[n].Params = []byte("other")
	}
	lose.Store(true)
	if _, err := b.WriteChunk(t.Context(), i, chunk); err == nil {
		t.Fatal("the lost marker was answered")
	}
	lose.Store(false)
	ended := end(keys[:3]...)
	b.sumOf("again", b.write(i, chunk).ImportSum, task.ImportSum{Lines: 4, Added: 1, Updated: 3})
	for n, id := range ended {
		if now, err := b.TaskOfKey(t.Context(), b.tenant, keys[n]); err != nil || now != id {
			t.Errorf("key %d has task %s, %v, want %s: it was added again", n, now, err, id)
		}
	}
	b.recounted()
}

// TestAnUpdateThatIsRepeatedCountsWhatItHasUpdated: its marker was lost, and nothing has happened since.
func TestAnUpdateThatIsRepeatedCountsWhatItHasUpdated(t *testing.T) {
	var lose atomic.Bool
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "load:"+kernel.BeforeCommit && lose.Load() {
				return errors.New("connection lost")
			}
			return nil
		}
	}).running()
	i := b.imported(task.ImportTerms{OnConflict: task.UpdateExisting})
	keys := b.keysHere(5)
	first := b.withKeys(b.lines(b.numberHere(i, 0), 4), keys[:4], 1)
	b.write(i, first)
	chunk := b.withKeys(b.lines(b.numberHere(i, 1), 5), keys, 1) // the last key is new, and the first two tasks stay as they are
	for n := 2; n < 5; n++ {
		chunk.Lines[n].Params = []byte("other")
	}
	lose.Store(true)
	if _, err := b.WriteChunk(t.Context(), i, chunk); err == nil {
		t.Fatal("the lost marker was answered")
	}
	lose.Store(false)
	b.sumOf("again", b.write(i, chunk).ImportSum, task.ImportSum{Lines: 5, Added: 1, Updated: 2, Skipped: 2})
}
