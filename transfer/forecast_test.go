package transfer

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/forecast"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// TestALoadHonoursDayCalendars: by interval and by expression, and without tasks whose calendar is not
// known.
func TestALoadHonoursDayCalendars(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	f := NewLoad(task.At(now))
	cron := &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "0 * * * *"}}
	hourly := &perceptorv1.Task_Interval{Interval: durationpb.New(time.Hour)}
	for _, x := range []*perceptorv1.Task{
		{Type: perceptorv1.Task_NON_BLOCKING, Schedule: hourly},
		{Type: perceptorv1.Task_NON_BLOCKING, Schedule: hourly, ExcludeCalendars: []string{"closed"}},
		{Type: perceptorv1.Task_BLOCKING, Schedule: cron, ExcludeCalendars: []string{"closed"}},
		{Type: perceptorv1.Task_BLOCKING, Schedule: cron, OnlyCalendars: []string{"closed"}, MaxCount: 2},
		{Type: perceptorv1.Task_BLOCKING, Schedule: cron, OnlyCalendars: []string{"unknown"}},
	} {
		f.Add(x, &Line{Begin: NoBegin})
	}
	if names := f.DayCalendars(); len(names) != 2 || names[0] != "closed" {
		t.Errorf("calendars %q", names)
	}
	at := func(hours int) task.Instant { return task.At(now.Add(time.Duration(hours) * time.Hour)) }
	c := f.Calendar(map[string][]task.Range{"closed": {{From: at(3), Until: at(6)}}})
	_, hours, _ := c.Spans()
	var got []int64
	for _, h := range hours[:8] {
		got = append(got, h.Next+h.Projected)
	}
	want := []int64{3, 3, 3, 2, 2, 1, 3, 3}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%v in the next hours, want %v", got, want)
		}
	}
	if forecast.Empty(task.At(now)).Due != c.Due {
		t.Errorf("%d due", c.Due)
	}
}
