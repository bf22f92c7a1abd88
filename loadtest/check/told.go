package check

import "github.com/perceptor/perceptor/task"

// Told is what databases have lost of acknowledged changes, as a comparison of the rows
// before and after a fail-over or a restore tells. Such a loss is not the installation's
// fault, so the tasks that it concerns are checked only for what must hold even then.
type Told struct {
	// Tasks has the tasks with a lost change; true means that the add itself was lost.
	Tasks map[task.ID]bool
	// Numbers has the numbers of tasks whose add was lost. Callers may have added them again
	// under their key, with another id.
	Numbers map[int64]bool
}

// toldLost checks a task of which a database has lost something. It returns false for all
// other tasks. A lost claim, lease or result is repeated, so runs may happen twice and
// overlap, and instants may differ. These rules remain:
//
//   - No handler gets the params of another task, and none begins early.
//   - A task whose add was not lost exists at the end, and it has had a run.
func (k *checking) toldLost() bool {
	if k.cfg.Told == nil {
		return false
	}
	gone, told := k.cfg.Told.Tasks[k.ID]
	if !told {
		return k.againAfterLoss()
	}
	if k.Add == nil {
		return false
	}
	if gone {
		k.gone++
	}
	for _, r := range k.runs {
		for _, e := range r.executions {
			if e.Number != k.Add.Number {
				k.violate(Phantom, r.seq, "the params are those of task number %d, but the task is number %d", e.Number, k.Add.Number)
			}
			if e.Start < Of(e.ScheduledAt).Add(-k.cfg.Epsilon) {
				k.violate(Early, r.seq, "a handler began at %v, %v before its scheduled instant %v", e.Start.Time(), Of(e.ScheduledAt).Sub(e.Start), e.ScheduledAt)
			}
		}
	}
	k.survived(gone)
	return true
}

// survived checks that a task exists at the end unless its add was lost.
func (k *checking) survived(gone bool) {
	switch f := k.Final; {
	case gone:
	case f == nil && k.cfg.Finals && k.Add.Retained:
		k.violate(Lost, 0, "task number %d was not lost by its database, but the API does not know it", k.Add.Number)
	case f != nil && f.Number != k.Add.Number:
		k.violate(Mismatch, 0, "the task was added as number %d, the API shows number %d", k.Add.Number, f.Number)
	case f != nil && f.State == task.Completed && len(k.runs) == 0 && f.Missed == 0:
		k.violate(Lost, 1, "the task is completed, but no handler was ever called")
	}
}

// againAfterLoss reports whether the task was added in place of one that was lost: its
// number is that of a lost task.
func (k *checking) againAfterLoss() bool {
	switch {
	case k.Add != nil:
		return k.Add.Key && k.cfg.Told.Numbers[k.Add.Number]
	case len(k.runs) > 0:
		return k.cfg.Told.Numbers[k.runs[0].executions[0].Number]
	case k.Final != nil:
		return k.cfg.Told.Numbers[k.Final.Number]
	}
	return false
}
