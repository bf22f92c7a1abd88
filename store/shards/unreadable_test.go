package shards

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/task"
)

// deliveries names publications by run and attempt, in order.
func deliveries(pubs []task.Publication) (out []string) {
	for _, p := range pubs {
		out = append(out, fmt.Sprintf("%s/%d at %d", p.RunID(), p.Attempt, p.ScheduledAt))
	}
	slices.Sort(out)
	return out
}

// claimEverything claims runs of every kind that the outbox can list, and returns the
// claims in which they were claimed.
func (b *bundle) claimEverything() (claims []task.Claim) {
	b.t.Helper()
	b.add(b.spec(task.OneShot), b.spec(task.Blocking), b.spec(task.NonBlocking))
	b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.Retry.InitialBackoff = 0 }))
	claims = append(claims, b.claim(task.RangeForm))
	failed := claims[0].Publications[len(claims[0].Publications)-1]
	for _, p := range claims[0].Publications {
		if p.Type == task.NonBlocking && p.Task != failed.Task {
			b.report(failure(p.Task, p.Seq, p.Attempt, 7)) // its retry is a run row
		}
	}
	b.advance(time.Minute)
	return append(claims, b.claim(task.RangeForm))
}

// TestAnUnreadableOutboxRowIsDerivedAgain: whatever its entries are, the next owner
// publishes each open run that the row lists.
func TestAnUnreadableOutboxRowIsDerivedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		entries []byte
		newer   bool
	}{
		"cut":         {entries: []byte{outboxVersion, 0xff}},
		"empty":       {entries: []byte{}},
		"not a task":  {entries: []byte{outboxVersion, 1, 1, 1, 1, 1}},
		"of nobody":   {entries: bytes.Repeat([]byte{0}, 40)},
		"newer":       {entries: []byte{outboxVersion + 1}, newer: true},
		"much longer": {entries: append([]byte{outboxVersion}, bytes.Repeat([]byte{0xff}, 1<<16)...)},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			var want []string
			for _, claim := range b.claimEverything() {
				want = append(want, deliveries(claim.Publications)...)
			}
			before := b.read()
			b.exec(`UPDATE outbox SET entries = $1`, c.entries)
			b.acquire()
			batches := b.read()
			if got := distinct(batches); !slices.Equal(got, distinct(before)) || len(got) < 4 || !contains(want, got) {
				t.Fatalf("published %s\nwant %s", got, distinct(before))
			}
			b.acknowledge(batches)
			o, err := b.OutboxStats(t.Context(), b.d)
			if err != nil || o.Rows != 0 || (o.Waiting > 0) != c.newer || (o.Quarantined > 0) == c.newer {
				t.Errorf("stats %+v, %v", o, err)
			}
			if n := b.count(`SELECT count(*) FROM outbox`); n != len(before) {
				t.Errorf("%d rows are kept, want %d", n, len(before))
			}
			b.acquire()
			if again := b.read(); (len(distinct(again)) > 0) != c.newer {
				t.Errorf("after its publication the next owner reads %s", distinct(again))
			}
		})
	}
}

// TestAnOutboxRowOfANewerProgramIsReadByIt: an older program has left it alone.
func TestAnOutboxRowOfANewerProgramIsReadByIt(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking))[0]
	b.claim(task.RangeForm)
	b.exec(`UPDATE outbox SET entries = set_byte(entries, 0, 2)`)
	b.acquire()
	b.acknowledge(b.read())
	b.exec(`UPDATE outbox SET entries = set_byte(entries, 0, 1)`) // what the newer program knows
	b.acquire()
	batches := b.read()
	if got := distinct(batches); len(got) != 1 || !strings.HasPrefix(got[0], task.RunID{Task: id, Seq: 1}.String()) {
		t.Fatalf("the newer program reads %s", got)
	}
	b.acknowledge(batches)
	if n := b.count(`SELECT count(*) FROM outbox`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// TestOnlyRunsThatARowMayListAreDerived: a run whose lease is held was delivered, and a run
// that was claimed later is in another row.
func TestOnlyRunsThatARowMayListAreDerived(t *testing.T) {
	b := setup(t)
	held := b.add(b.spec(task.Blocking, func(s *task.Spec) { s.AckTimeout = time.Hour }))[0]
	b.claim(task.RangeForm)
	b.start(7, attempt(held, 1, 1))
	b.exec(`UPDATE outbox SET entries = '\x'`)
	b.advance(2 * time.Minute)
	b.add(b.spec(task.OneShot), b.spec(task.NonBlocking))
	later := b.claim(task.RangeForm)
	b.acquire()
	for _, batch := range b.read() {
		if got := deliveries(batch.Publications); batch.Part.Row != later.Outbox && len(got) > 0 {
			t.Errorf("derived %s", got)
		}
	}
}

// TestManyUnreadableRowsOfAShardAreDerivedOnce: each row by itself would publish all open
// runs again.
func TestManyUnreadableRowsOfAShardAreDerivedOnce(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = time.Second }))[0]
	for range 10 {
		b.claim(task.RangeForm)
		b.advance(time.Second)
	}
	b.exec(`UPDATE outbox SET entries = '\x'`)
	b.acquire()
	batches, n := b.read(), 0
	for _, batch := range batches {
		n += len(batch.Publications)
	}
	if len(batches) != 10 || n != 10 || len(distinct(batches)) != 10 {
		t.Errorf("%d rows have %d deliveries of task %s, want 10 and 10", len(batches), n, id)
	}
	b.acknowledge(batches)
	if o, rows, err := b.QueueStats(t.Context(), b.d); err != nil || o.Rows != 0 || o.Quarantined != 10 || rows != 0 {
		t.Errorf("stats %+v, %v", o, err)
	}
}

func TestOpenRunsAreFoundPageByPage(t *testing.T) {
	b := setup(t)
	var want []task.ID
	for range 3 {
		specs := make([]task.Spec, 50)
		for i := range specs {
			specs[i] = b.spec(task.OneShot)
		}
		want = append(want, b.add(specs...)...)
	}
	c := b.claim(task.RangeForm)
	slices.SortFunc(c.Publications, func(x, y task.Publication) int { return cmp.Compare(x.Task, y.Task) })
	var got []task.ID
	for _, s := range shardSet(want) {
		found, err := b.openRuns(t.Context(), b.d, s, b.now, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range found {
			got = append(got, p.Task)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// read reads the outbox as a new owner.
func (b *bundle) read() []task.OutboxBatch {
	b.t.Helper()
	batches, _, err := b.Unpublished(context.Background(), b.d, b.owned, 0, 1_000_000)
	if err != nil {
		b.t.Fatal(err)
	}
	return batches
}

// acknowledge acknowledges what was read.
func (b *bundle) acknowledge(batches []task.OutboxBatch) {
	b.t.Helper()
	var parts []task.OutboxPart
	for _, batch := range batches {
		parts = append(parts, batch.Part)
	}
	if lost, err := b.AcknowledgeOutbox(context.Background(), b.d, b.owned, parts); err != nil || len(lost) > 0 {
		b.t.Fatal(lost, err)
	}
}

// distinct returns the deliveries of all batches, each once.
func distinct(batches []task.OutboxBatch) (out []string) {
	for _, batch := range batches {
		out = append(out, deliveries(batch.Publications)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func contains(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

func FuzzOutboxEntries(f *testing.F) {
	f.Add(encodeEntries([]task.Publication{{Task: task.NewID(5, 3), Tenant: 7, Seq: 1, Attempt: 2}, {Task: task.NewID(9, 3), Tenant: 1 << 20, Seq: 1 << 40, Attempt: 1}}))
	f.Add([]byte{})
	f.Add([]byte{outboxVersion})
	f.Add([]byte{outboxVersion + 1, 3})
	f.Fuzz(func(t *testing.T, packed []byte) {
		entries, err := decodeEntries(packed)
		if (err != nil) != (errors.Is(err, errOutboxFormat) || errors.Is(err, errOutboxNewer)) {
			t.Fatalf("err = %v", err)
		}
		for _, e := range entries {
			if !e.id.Valid() || e.seq < 1 || e.attempt < 1 || e.tenant < 0 {
				t.Fatalf("read %+v", e)
			}
		}
	})
}
