package transition

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/history"
	"github.com/perceptor/perceptor/task"
)

// Effects collects what a transaction writes besides its rows: counter deltas and events
// of runs. The missed counts are reported after the commit.
type Effects struct {
	counters.Tally
	history.Recorder
	Missed task.MissedCounts
}

// NewEffects returns the empty effects of a transaction.
func (m *Machines) NewEffects() *Effects {
	return &Effects{Recorder: m.cfg.Policies.Recorder(m.cfg.Dispatcher)}
}

// Queue adds at most two statements to a batch.
func (l *Effects) Queue(b *pgx.Batch, now task.Instant) {
	l.Tally.Queue(b)
	l.Recorder.Queue(b, now)
}

// Machine records what the steps of a machine did to a task.
func (l *Effects) Machine(k *task.Machine) {
	l.Tally.Machine(k)
	for i := range k.Dead {
		l.Dead(&k.Dead[i])
	}
	for _, s := range k.Skipped {
		policy := k.Task.MisfirePolicy(k.Task.Type)
		if s.Overlap {
			policy = task.ByOverlap
		}
		l.Missed.Add(k.Task.Tenant, k.Task.Type, policy, s.N)
		a := task.Attempt{RunID: task.RunID{Task: k.Task.ID, Seq: s.Seq}}
		l.Note(k.Task.Tenant, a, task.EventSkipped, s.From, fmt.Sprint(s.N), nil)
	}
}

// Publication records that a delivery was claimed, and the instants that were skipped.
func (l *Effects) Publication(p *task.Publication) {
	if p.Missed > 0 {
		l.Missed.Add(p.Tenant, p.Type, p.Misfire, p.Missed)
	}
	l.Recorder.Publication(p)
}

// TellMissed reports missed instants, once the transaction of the steps has committed.
func (m *Machines) TellMissed(counts task.MissedCounts) {
	if m.cfg.Missed != nil && len(counts) > 0 {
		m.cfg.Missed(counts)
	}
}
