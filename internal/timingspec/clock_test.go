package timingspec

import (
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/task"
)

// instants lists those of a task by cron in Europe/Berlin between two bounds.
func instants(t *testing.T, expression, begin, end string) string {
	t.Helper()
	cron := task.Cron{Dialect: task.StandardCron, Expression: expression, Zone: "Europe/Berlin"}
	if schedule.IsRule(expression) {
		cron.Dialect = task.RRuleCron
	}
	calendar, err := schedule.NewCalendars(1).Of(cron, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	from, err := time.Parse(time.RFC3339, begin)
	if err != nil {
		t.Fatal(err)
	}
	to, err := time.Parse(time.RFC3339, end)
	if err != nil {
		t.Fatal(err)
	}
	spec := task.Spec{Type: task.NonBlocking, Terms: task.Terms{Begin: task.At(from), End: task.At(to), Cron: &cron}, Calendar: calendar}
	var list []string
	for _, at := range task.NewRow(1, 1, &spec, task.At(from)).Upcoming(-1, 10) {
		list = append(list, at.Time().Format(time.RFC3339))
	}
	return strings.Join(list, " ")
}
