package shards

import (
	"errors"
	"fmt"
	"strings"
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
			if c := b.claim(form); len(c.Publications) != len(ids)-len(bad) {
				t.Fatalf("claimed %d runs, want those of all %d sound rows", len(c.Publications), len(ids)-len(bad))
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

func TestAnErrorOfARowNamesItsTask(t *testing.T) {
	cause := errors.New("interval is 0")
	err := fmt.Errorf("claim: %w", &rowError{kernel.KeyOf(1, task.NewID(5, 3), 2), cause})
	if !damagedRows(err) || !errors.Is(err, cause) || !strings.Contains(err.Error(), task.NewID(5, 3).String()) {
		t.Error(err)
	}
}
