package app

import (
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/internal/telemetry"
)

// work counts the work of a dispatcher since its start.
type work struct {
	rows, claims, claimMicros  atomic.Int64
	publishFailed, storeFailed atomic.Int64
}

func (w *work) claimed(rows int, took time.Duration) {
	w.rows.Add(int64(rows))
	w.claims.Add(1)
	w.claimMicros.Add(took.Microseconds())
}

// workFigures returns the figures that other members and operators see of this
// dispatcher. claim_us is the mean time of a claim since the start.
func (d *Dispatcher) workFigures() map[string]int64 {
	f, claims := d.dispatch.Figures(), d.work.claims.Load()
	return map[string]int64{
		placesFigure: int64(len(places(d.o.Config))), signingFigure: signingNumber(d.o.Config.Kafka.SigningSecret), "shards": int64(f.Shards), "records_held": int64(f.Records), "breakers_open": int64(len(f.Broken)),
		"claims": claims, "rows_claimed": d.work.rows.Load(), "claim_us": d.work.claimMicros.Load() / max(1, claims),
		"published": d.fired.Load(), "publish_failed": d.work.publishFailed.Load(), "store_failed": d.work.storeFailed.Load(),
	}
}

// assignFigures is called at each scrape, also before the dispatcher is complete.
func (d *Dispatcher) assignFigures() telemetry.Assignment {
	if d.assigner == nil {
		return telemetry.Assignment{}
	}
	s := d.assigner.Snapshot()
	a := telemetry.Assignment{
		Members: len(s.Members), Connected: s.Connected, Leading: s.Leading(), Generation: s.Generation, Faults: len(s.Faults),
		Items: map[string]int{}, Without: map[string]int{},
		Counts: map[string]int64{
			"registrations": s.Counts.Registrations, "plans": s.Counts.Plans, "plans_refused": s.Counts.PlansRefused, "moves": s.Counts.Moves,
			"acquired": s.Counts.Acquired, "taken_over": s.Counts.TakenOver, "released": s.Counts.Released, "lost": s.Counts.Lost,
			"failed_calls": s.Counts.FailedCalls, "failed_steps": s.Counts.FailedSteps, "garbled_plans": s.Counts.GarbledPlans, "cut_off": s.Counts.CutOff,
		},
	}
	for _, it := range s.Items {
		a.Items[it.Phase.String()]++
		if it.Without != "" {
			a.Without[string(it.Without)]++
		}
	}
	return a
}
