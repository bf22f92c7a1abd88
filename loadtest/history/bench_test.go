package history

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// BenchmarkCycle measures the cost of the history per cycle: an add, a call, a reply.
func BenchmarkCycle(b *testing.B) {
	w, err := Create(b.TempDir(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // the history is not read
	b.ReportAllocs()
	for n := int64(1); b.Loop(); n++ {
		id, at := task.ID(n*task.Shards+n%task.Shards), begin+task.Instant(n/20)
		start := check.Of(at).Add(20 * time.Millisecond)
		w.Add(check.Add{Number: n, ID: id, Answer: check.Acknowledged, Type: task.OneShot, Begin: at, End: task.Never, MaxCount: 1, Sent: check.Of(at - 3000), Answered: check.Of(at - 2990)})
		w.Execution(check.Execution{Number: n, ID: id, Seq: 1, Attempt: 1, ScheduledAt: at, Start: start, End: start.Add(time.Microsecond), Outcome: task.Success})
		w.Reply(check.Reply{ID: id, Seq: 1, Attempt: 1, Call: check.Report, Code: task.Accepted, Answered: start.Add(5 * time.Millisecond)})
	}
}
