package migrate

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// trigger is a row of QRTZ_TRIGGERS with those of its job and of its schedule.
type trigger struct {
	Group, Name, JobGroup, JobName, State, Type, Calendar string
	Next, Previous, Start, End                            int64 // ms since 1970; 0 or less: none
	Priority                                              int32
	Misfire                                               int16
	Exclusive                                             bool // the job may not run twice at once
	Data, JobData                                         []byte

	// SIMPLE
	RepeatCount, RepeatInterval, Triggered int64
	// CRON
	Expression, Zone string
	// CAL_INT
	Unit, IntervalZone string
	Interval           int64
	SameHour, SkipDay  bool

	// Twin is another scheduler that has a trigger of this name and comes first; "": none.
	Twin string
}

// The misfire instructions of Quartz that have a meaning here.
const (
	misfireIgnore      = -1
	misfireSmart       = 0
	misfireFireNow     = 1 // the same number for all types
	cronDoNothing      = 2 // also of calendar intervals
	simpleNowExisting  = 2
	simpleNowRemaining = 3
	simpleNextRemains  = 4
	simpleNextExisting = 5
)

// name returns the name of a trigger in messages and keys. A period in the group is escaped, so that
// no two triggers have the same one.
func (t *trigger) name() string {
	return strings.NewReplacer("%", "%25", ".", "%2E").Replace(t.Group) + "." + t.Name
}

// kind returns the kind: the name of the job, with its group unless that is the default one.
func (t *trigger) kind() string {
	if t.JobGroup == "DEFAULT" {
		return t.JobName
	}
	return t.JobGroup + "." + t.JobName
}

// item returns what stands for a trigger.
func (t *trigger) item() *Item {
	i := &Item{Name: t.name(), Task: &perceptorv1.Task{Kind: t.kind(), IdempotencyKey: keyOf("quartz", t.name())}, Next: task.Instant(t.Next), Last: task.Instant(max(t.Previous, 0))}
	if reason := t.refused(); reason != "" {
		return without(i.Name, "%s", reason)
	}
	i.Task.BeginTime = instant(t.Start)
	i.Task.EndTime = t.end()
	var reason string
	switch t.Type {
	case "SIMPLE":
		reason = t.simple(i)
	case "CRON":
		reason = t.cron(i)
	case "CAL_INT":
		reason = t.calendarInterval(i)
	default:
		reason = fmt.Sprintf("triggers of the type %s have no counterpart; use a cron expression or a recurrence rule", t.Type)
	}
	if reason == "" {
		reason = t.params(i)
	}
	if reason != "" {
		return without(i.Name, "%s", reason)
	}
	t.state(i)
	return i
}

// end returns the end_time, at which nothing fires; nil: none. A cron trigger fires at its end, too. An end that no task can
// have, such as that of Long.MAX_VALUE, is none.
func (t *trigger) end() *timestamppb.Timestamp {
	switch {
	case t.End <= 0 || task.Instant(t.End) >= task.LastInstant-1:
		return nil
	case t.Type == "CRON":
		return instant(t.End + 1)
	}
	return instant(t.End)
}

// refused says why no task can stand for the trigger, whatever its schedule; "" if one may.
func (t *trigger) refused() string {
	switch {
	case t.Twin != "":
		return fmt.Sprintf("the scheduler %q has a trigger of this name, too, which would have the same key; import each scheduler by itself, with --of and --key-prefix", t.Twin)
	case t.State == "COMPLETE" || t.Next <= 0:
		return "it will not fire again"
	case task.InstantFault(task.Instant(t.Next)) != "":
		return "its next fire time " + task.InstantFault(task.Instant(t.Next))
	case t.Calendar != "":
		return fmt.Sprintf("it excludes the instants of the calendar %q", t.Calendar)
	}
	return kindFault(t.kind())
}

// state takes over what the row says beside the schedule.
func (t *trigger) state(i *Item) {
	switch t.State {
	case "PAUSED", "PAUSED_BLOCKED":
		i.Paused = true
	case "ERROR":
		i.Paused = true
		i.note("it was in the state ERROR, so the task is paused")
	}
	if t.Exclusive && i.Task.Type != perceptorv1.Task_ONE_SHOT {
		i.Task.Overlap = perceptorv1.Task_Overlap_BUFFER_ONE
		i.note("Quartz does not run the job twice at once; runs of other tasks of the kind may overlap, unless the kind has a cap of 1")
	}
	if t.Priority != 5 {
		i.note("the priority %d is not taken over", t.Priority)
	}
}

// simple sets the schedule of a simple trigger.
func (t *trigger) simple(i *Item) (reason string) {
	if t.RepeatCount == 0 || t.RepeatInterval == 0 {
		i.Task.Type, i.Task.BeginTime, i.Task.EndTime = perceptorv1.Task_ONE_SHOT, instant(t.Next), nil
		t.misfireOf(i)
		return ""
	}
	i.Task.Type = perceptorv1.Task_NON_BLOCKING
	i.Task.Schedule = &perceptorv1.Task_Interval{Interval: durationpb.New(time.Duration(t.RepeatInterval) * time.Millisecond)}
	if t.RepeatCount > 0 {
		i.Task.MaxCount = t.RepeatCount + 1
	}
	if i.Runs = t.Triggered; i.Runs > 0 {
		i.Last = i.Next.Add(-time.Duration(t.RepeatInterval) * time.Millisecond)
	}
	t.misfireOf(i)
	return ""
}

// misfireOf sets the misfire policy of a simple trigger.
func (t *trigger) misfireOf(i *Item) {
	instruction := t.Misfire
	if instruction == misfireSmart {
		switch {
		case t.RepeatCount == 0:
			instruction = misfireFireNow
		case t.RepeatCount < 0:
			instruction = simpleNextRemains
		default:
			instruction = simpleNowExisting
		}
	}
	switch instruction {
	case misfireIgnore:
		i.Task.MisfirePolicy = perceptorv1.Task_FIRE_ALL
	case simpleNextRemains, simpleNextExisting:
		i.Task.MisfirePolicy = perceptorv1.Task_SKIP
	default:
		i.Task.MisfirePolicy = perceptorv1.Task_FIRE_ONCE
		if (instruction == simpleNowExisting || instruction == simpleNowRemaining) && t.RepeatCount != 0 {
			i.note("after a misfire Quartz moves the later runs; Perceptor keeps them where they are")
		}
	}
}

// cron sets the schedule of a cron trigger.
func (t *trigger) cron(i *Item) (reason string) {
	if reason := zoneFault(t.Zone); reason != "" {
		return reason
	}
	i.Task.Type = perceptorv1.Task_NON_BLOCKING
	i.Task.Schedule = &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: t.Expression, TimeZone: t.Zone, Dialect: perceptorv1.Cron_QUARTZ}}
	t.misfireOfCalendar(i)
	if changesClock(t.Zone) && atNight(t.Expression) {
		i.note("where the clock of the zone changes, Quartz leaves out a run in the missing hour and fires one of the repeated hour the second time; Perceptor fires both: see schedule.md")
	}
	return ""
}

// changesClock reports whether a zone has summer time.
func changesClock(zone string) bool {
	l, err := time.LoadLocation(zone)
	if err != nil {
		return false
	}
	_, winter := time.Date(2030, 1, 1, 0, 0, 0, 0, l).Zone()
	_, summer := time.Date(2030, 7, 1, 0, 0, 0, 0, l).Zone()
	return winter != summer
}

// atNight reports whether a cron expression may have instants from 0 to 3 o'clock, when clocks change.
func atNight(expression string) bool {
	fields := strings.Fields(expression)
	if len(fields) < 3 {
		return true
	}
	for hour := range strings.SplitSeq(fields[2], ",") {
		n, err := strconv.Atoi(hour)
		if err != nil || n <= 3 {
			return true
		}
	}
	return false
}

func (t *trigger) misfireOfCalendar(i *Item) {
	switch t.Misfire {
	case misfireIgnore:
		i.Task.MisfirePolicy = perceptorv1.Task_FIRE_ALL
	case cronDoNothing:
		i.Task.MisfirePolicy = perceptorv1.Task_SKIP
	default:
		i.Task.MisfirePolicy = perceptorv1.Task_FIRE_ONCE
	}
}

// fixedUnits are the units of calendar intervals that always have the same length.
var fixedUnits = map[string]time.Duration{"MILLISECOND": time.Millisecond, "SECOND": time.Second, "MINUTE": time.Minute, "HOUR": time.Hour}

// ruleUnits are the frequencies of recurrence rules for the others.
var ruleUnits = map[string]string{"DAY": "DAILY", "WEEK": "WEEKLY", "MONTH": "MONTHLY", "YEAR": "YEARLY"}

// calendarInterval sets the schedule of a calendar interval trigger.
func (t *trigger) calendarInterval(i *Item) (reason string) {
	i.Task.Type = perceptorv1.Task_NON_BLOCKING
	t.misfireOfCalendar(i)
	if unit, fixed := fixedUnits[t.Unit]; fixed {
		every := unit * time.Duration(t.Interval)
		i.Task.Schedule = &perceptorv1.Task_Interval{Interval: durationpb.New(every)}
		if i.Runs = t.Triggered; i.Runs > 0 {
			i.Last = i.Next.Add(-every)
		}
		return ""
	}
	frequency := ruleUnits[t.Unit]
	if frequency == "" {
		return fmt.Sprintf("intervals of the unit %s have no counterpart", t.Unit)
	}
	if reason := zoneFault(t.IntervalZone); reason != "" {
		return reason
	}
	zone, err := time.LoadLocation(t.IntervalZone)
	if err != nil {
		return err.Error()
	}
	start := time.UnixMilli(t.Start).In(zone)
	switch {
	case start.Nanosecond() != 0:
		return "it begins within a second, which a recurrence rule cannot"
	case frequency == "MONTHLY" && start.Day() > 28:
		return fmt.Sprintf("it begins on day %d of a month: in shorter months Quartz fires on their last day, and then goes on from there", start.Day())
	case frequency == "YEARLY" && start.Month() == time.February && start.Day() == 29:
		return "it begins on February 29"
	}
	rule := fmt.Sprintf("DTSTART:%s RRULE:FREQ=%s;INTERVAL=%d", start.Format("20060102T150405"), frequency, t.Interval)
	i.Task.Schedule = &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: rule, TimeZone: t.IntervalZone, Dialect: perceptorv1.Cron_RRULE}}
	i.note("around changes of the clock a run may be at another hour than in Quartz: see schedule.md")
	return ""
}

// params sets the params: the data of the job, and over it that of the trigger.
func (t *trigger) params(i *Item) (reason string) {
	all := map[string]string{}
	for _, data := range [][]byte{t.JobData, t.Data} {
		entries, err := readJavaMap(data)
		if err != nil {
			return "its data cannot be params: " + err.Error()
		}
		maps.Copy(all, entries)
	}
	if len(all) > 0 {
		i.Task.Params = all
	}
	return ""
}
