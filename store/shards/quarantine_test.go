package shards

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// TestADamagedRowStopsNoOtherClaim: claims take all other rows, and the damaged ones when
// they were repaired.
func TestADamagedRowStopsNoOtherClaim(t *testing.T) {
	// The next instant of such a row cannot be computed.
	const damage, repair = `UPDATE task SET scheduled_at = 9223372036854770000 WHERE id = $1`, `UPDATE task SET scheduled_at = anchor WHERE id = $1`
	for _, form := range []task.ClaimForm{task.RangeForm, task.CappedForm} {
		t.Run(form.String(), func(t *testing.T) {
			b := setup(t)
			var ids, bad []task.ID
			for i := range 60 {
				id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = 24 * time.Hour }))[0]
				if ids = append(ids, id); i%20 == 7 {
					b.exec(damage, int64(id))
					bad = append(bad, id)
				}
			}
			claimed := 0
			for range 3 { // a capped claim takes a part of each shard
				claimed += len(b.claim(form).Publications)
			}
			if claimed != len(ids)-len(bad) {
				t.Fatalf("claimed %d runs, want those of all %d sound rows", claimed, len(ids)-len(bad))
			}
			if n, err := b.QuarantinedRows(t.Context(), b.d); err != nil || n != len(bad) {
				t.Errorf("%d rows are quarantined, %v, want %d", n, err, len(bad))
			}
			b.exec(repair, int64(bad[0]))
			b.advance(quarantineFor)
			if c := b.claim(form); len(c.Publications) != 1 || c.Publications[0].Task != bad[0] {
				t.Errorf("claimed %s, want the repaired task", deliveries(c.Publications))
			}
			b.advance(quarantineKept + time.Hour)
			b.exec(`DELETE FROM task`)
			if _, _, err := b.Purge(t.Context(), b.d); err != nil || b.count(`SELECT count(*) FROM quarantined_row`) != 0 {
				t.Errorf("rows stay listed, %v", err)
			}
		})
	}
}

// TestAFailureThatNoRowCausesQuarantinesNothing: the claim fails as before.
func TestAFailureThatNoRowCausesQuarantinesNothing(t *testing.T) {
	b := setup(t)
	b.add(b.spec(task.OneShot), b.spec(task.Blocking))
	b.exec(`ALTER TABLE outbox ADD CONSTRAINT nothing CHECK (false)`)
	defer b.exec(`ALTER TABLE outbox DROP CONSTRAINT nothing`)
	_, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm})
	if !kernel.DataError(err) || b.count(`SELECT count(*) FROM quarantined_row`) != 0 {
		t.Errorf("claim: %v, with rows in quarantine: %d", err, b.count(`SELECT count(*) FROM quarantined_row`))
	}
}

// TestTasksWhoseTermsCannotBeReadAreListed: a newer program that takes their shard over
// fires them at once.
func TestTasksWhoseTermsCannotBeReadAreListed(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Tags = []string{"a"} }))[0]
	b.exec(`UPDATE task SET terms = set_byte(terms, 0, 2), modeled = true`)
	if c := b.claim(task.RangeForm); len(c.Publications) != 0 {
		t.Fatalf("claimed %s", deliveries(c.Publications))
	}
	if n := b.count(`SELECT count(*) FROM quarantined_row WHERE reason LIKE '%newer format%'`); n != 1 {
		t.Errorf("%d rows are listed", n)
	}
	b.acquire() // by an old program
	b.claim(task.RangeForm)
	b.advance(time.Minute)
	b.exec(`UPDATE task SET terms = set_byte(terms, 0, 1), modeled = false`) // what the newer program knows
	if c := b.claim(task.RangeForm); len(c.Publications) != 0 {
		t.Fatalf("claimed %s before the take-over", deliveries(c.Publications))
	}
	b.acquire()
	if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Task != id {
		t.Errorf("claimed %s", deliveries(c.Publications))
	}
}
