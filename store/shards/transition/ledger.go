package transition

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/history"
	"github.com/perceptor/perceptor/task"
)

// Ledger is what a transaction writes besides its rows: how many tasks went
// where, and what happened to runs. What was missed is told when it has committed.
type Ledger struct {
	counters.Tally
	history.Recorder
	Missed task.MissedCounts
}

// NewLedger returns the ledger of a transaction that begins.
func (m *Machines) NewLedger() *Ledger { return &Ledger{Recorder: m.cfg.Levels.Recorder()} }

// Queue adds at most two statements to a batch.
func (l *Ledger) Queue(b *pgx.Batch, now task.Instant) {
	l.Tally.Queue(b)
	l.Recorder.Queue(b, now)
}

// Machine notes what steps did to a task.
func (l *Ledger) Machine(k *task.Machine) {
	l.Tally.Machine(k)
	for i := range k.Dead {
		l.Dead(&k.Dead[i])
	}
	for _, s := range k.Skipped {
		l.Missed.Add(k.Task.Tenant, k.Task.MisfirePolicy(k.Task.Type), s.N)
		a := task.Attempt{RunID: task.RunID{Task: k.Task.ID, Seq: s.Seq}}
		l.Note(k.Task.Tenant, a, task.EventSkipped, s.From, fmt.Sprint(s.N))
	}
}

// Publication notes that a delivery was claimed, and what was skipped for it.
func (l *Ledger) Publication(p *task.Publication) {
	if p.Missed > 0 {
		l.Missed.Add(p.Tenant, p.Misfire, p.Missed)
	}
	l.Recorder.Publication(p)
}

// TellMissed tells what steps have let pass, once their transaction has committed.
func (m *Machines) TellMissed(counts task.MissedCounts) {
	if m.cfg.Missed != nil && len(counts) > 0 {
		m.cfg.Missed(counts)
	}
}
