package virtualtest

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.MainWithoutLeaks(m,
		// kfake and kafka-go keep timers and connections for a moment after their end.
		goleak.IgnoreAnyFunction("github.com/segmentio/kafka-go.(*conn).run"),
		goleak.IgnoreAnyFunction("github.com/segmentio/kafka-go.(*connPool).discover"),
	)
}

const day = 24 * time.Hour

func TestAnHourlyTaskFiresAtItsExactInstantsForThreeDays(t *testing.T) {
	for name, o := range map[string]Options{"small parts": {}, "real parts": {Real: true, Dispatchers: 2}} {
		t.Run(name, func(t *testing.T) {
			s := Start(t, o)
			tenant := s.Tenant(t)
			runs := tenant.Record(t, "hello")
			first := s.Now(t).Add(time.Hour)
			tenant.Add(t, client.Task{Kind: "hello", Type: client.NonBlocking, Begin: first, Interval: time.Hour})
			moved := s.Advance(t, 3*day)

			got := runs.All()
			if len(got) != 72 || moved.Visited != 72 || moved.Fired != 72 || !moved.Reached {
				t.Fatalf("runs = %d, Advance = %+v, want 72 each", len(got), moved)
			}
			for i, run := range got {
				want := first.Add(time.Duration(i) * time.Hour)
				if !run.ScheduledAt.Equal(want) || !run.At.Equal(want) || run.Seq != int64(i+1) || run.Attempt != 1 {
					t.Fatalf("run %d of %d was scheduled at %s and fired at %s, want %s", run.Seq, run.Attempt, run.ScheduledAt, run.At, want)
				}
			}
			if now := s.Now(t); !now.Equal(Epoch.Add(3 * day)) {
				t.Errorf("the clock shows %s, want %s", now, Epoch.Add(3*day))
			}
		})
	}
}
