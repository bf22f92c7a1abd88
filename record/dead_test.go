package record

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/perceptor/perceptor/task"
)

func TestTheRecordOfADeadRunSaysWhichRunItWasAndWhyItDied(t *testing.T) {
	d := &task.DeadLetter{
		DeadRun: task.DeadRun{
			Type: task.Blocking, RunID: task.RunID{Task: 1024, Seq: 3}, Attempt: 5, Kind: "mail", ScheduledAt: 1_700_000_000_123, DiedAt: 1_700_000_001_000,
			Reason: task.OutOfAttempts, Error: "no such street",
		},
		Terms: task.Terms{AckTimeout: time.Minute}, Params: []byte{},
	}
	key, value, headers := EncodeDead(d, "shop")
	if string(key) != "1024" {
		t.Errorf("key = %s, want 1024", key)
	}
	p, err := Decode(value)
	want := task.Publication{Task: 1024, Seq: 3, Attempt: 5, Type: task.Blocking, Kind: "mail", ScheduledAt: d.ScheduledAt, AckTimeout: time.Minute}
	if diff := cmp.Diff(want, p, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	got := map[string]string{}
	for _, h := range headers {
		got[h.Key] = string(h.Value)
	}
	for k, want := range map[string]string{
		HeaderType: DeadEventType, HeaderRunID: "1024-3", HeaderReason: task.OutOfAttempts.String(), HeaderError: "no such street",
		HeaderDiedAt: "1700000001000", HeaderSource: "/tenants/shop",
	} {
		if got[k] != want {
			t.Errorf("header %s = %q, want %q", k, got[k], want)
		}
	}
}
