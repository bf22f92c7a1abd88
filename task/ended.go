package task

import "fmt"

// WhyEnded says why a finished task has ended. dead is the dead run that ended a FAILED
// task, or nil if it is no longer known.
func (s *Snapshot) WhyEnded(dead *DeadRun) Reason {
	r := Reason{Why: WhyFinished, At: s.FinishedAt, Since: s.FinishedAt}
	because := "it was cancelled"
	switch s.State {
	case Failed:
		because = "a run was given up"
		if dead != nil {
			r.Seq, r.Attempt, r.LastError = dead.RunID.Seq, dead.Attempt, dead.Error
			because = fmt.Sprintf("run %d was given up after %d deliveries, %s", r.Seq, r.Attempt, dead.Reason)
		}
	case Completed:
		because = s.whyCompleted()
	}
	r.Text = fmt.Sprintf("the task is %s since %s: %s", s.State, s.FinishedAt, because)
	return r
}

// whyCompleted names the bound that was reached. It assumes that a handler ended the
// task if no bound was reached, because the store does not record that.
func (s *Snapshot) whyCompleted() string {
	next := Never
	switch {
	case s.Type == Blocking && s.Interval > 0:
		next = s.FinishedAt.Add(s.Interval)
	case s.Interval > 0 || s.Calendar != nil:
		next = s.instantAfter(s.Begin, s.FinishedAt)
	}
	switch {
	case s.Seq == 0 && s.Missed > 0:
		return "its instants were missed and skipped"
	case s.Type == OneShot:
		return "its one run is done"
	case s.MaxCount > 0 && s.Seq >= s.MaxCount:
		return fmt.Sprintf("all of its %d runs (max_count) are done", s.MaxCount)
	case s.End != Never && next >= s.End:
		return fmt.Sprintf("no run is left before its end_time %s", s.End)
	}
	return fmt.Sprintf("a handler ended it with run %d", s.Seq)
}
