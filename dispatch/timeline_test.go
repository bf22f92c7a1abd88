package dispatch

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestARecordSaysWhoPublishedItAndWhenByTheDatabasesClock(t *testing.T) {
	now := time.Now()
	r := newRecord(&task.Publication{ClaimedAt: 5000}, &part{})
	if p := r.publication(now, "d-1"); p.Dispatcher != "d-1" || p.PublishedAt != 0 {
		t.Errorf("without a reading of the clock: %+v", p)
	}
	r.clock = read(5000, now.Add(-2*time.Second))
	if p := r.publication(now, "d-1"); p.PublishedAt != 6998 { // a lower bound, by one part in 1000
		t.Errorf("published at %d", p.PublishedAt)
	}
	r.clock = read(4000, now)
	if p := r.publication(now, "d-1"); p.PublishedAt != 5000 {
		t.Errorf("a run that was claimed ahead was published at %d, before it", p.PublishedAt)
	}
}
