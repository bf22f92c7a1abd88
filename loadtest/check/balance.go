package check

import "github.com/perceptor/perceptor/task"

// Balance compares what the API counts of a tenant with what callers were told.
// before and after are its counts before the run and at the end, when nothing was
// under way. It is called after all tasks.
func (c *Checker) Balance(before, after task.Counts) {
	k := &checking{Checker: c}
	if sum := after.Scheduled + after.Running + after.Finished(); sum != after.Added {
		k.violate(Mismatch, 0, "%d tasks were added; %d are scheduled, %d run, %d have ended and are kept, %d have been purged: %d",
			after.Added, after.Scheduled, after.Running, after.Finished()-after.Purged(), after.Purged(), sum)
	}
	added, f := after.Added-before.Added, &c.figures
	if added < f.Tasks {
		k.violate(Lost, 0, "%d adds were acknowledged, the API counts %d", f.Tasks, added)
	}
	if added > f.Tasks+f.NotKnown {
		k.violate(Phantom, 0, "the API counts %d adds; %d were acknowledged, and of %d nobody knows", added, f.Tasks, f.NotKnown)
	}
}
