package server

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

const preview = perceptorv1.TaskService_PreviewSchedule_FullMethodName

func cronSchedule(expression, zone string, d perceptorv1.Cron_Dialect) *perceptorv1.Task_Cron {
	return &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: expression, TimeZone: zone, Dialect: d}}
}

// timed returns a task that has only timing fields.
func timed(typ perceptorv1.Task_Type, change func(*perceptorv1.Task)) *perceptorv1.Task {
	t := &perceptorv1.Task{Kind: "k", Type: typ, BeginTime: after(time.Hour)}
	change(t)
	return t
}

func TestTimingComesBackFromGetWithItsDefaults(t *testing.T) {
	b := setup(t)
	for name, c := range map[string]struct {
		typ      perceptorv1.Task_Type
		in, want func(*perceptorv1.Task)
	}{
		"cron in full": {perceptorv1.Task_NON_BLOCKING,
			func(t *perceptorv1.Task) {
				t.Schedule = cronSchedule("0 0 12 LW * ?", "Asia/Shanghai", perceptorv1.Cron_QUARTZ)
			},
			func(t *perceptorv1.Task) {
				t.Schedule, t.MisfirePolicy = cronSchedule("0 0 12 LW * ?", "Asia/Shanghai", perceptorv1.Cron_QUARTZ), perceptorv1.Task_FIRE_ONCE
			}},
		"five fields, no zone": {perceptorv1.Task_ONE_SHOT,
			func(t *perceptorv1.Task) { t.Schedule = cronSchedule("H 6 * * *", "", 0) },
			func(t *perceptorv1.Task) {
				t.Schedule, t.MisfirePolicy = cronSchedule("H 6 * * *", "UTC", perceptorv1.Cron_STANDARD), perceptorv1.Task_FIRE_ONCE
			}},
		"a name": {perceptorv1.Task_BLOCKING,
			func(t *perceptorv1.Task) { t.Schedule = cronSchedule("@daily", "", 0) },
			func(t *perceptorv1.Task) {
				t.Schedule, t.MisfirePolicy = cronSchedule("@daily", "UTC", perceptorv1.Cron_NAMED), perceptorv1.Task_FIRE_ONCE
			}},
		"@every": {perceptorv1.Task_BLOCKING,
			func(t *perceptorv1.Task) { t.Schedule = cronSchedule("@every 90m", "", 0) },
			func(t *perceptorv1.Task) {
				t.Schedule, t.MisfirePolicy = every(90*time.Minute), perceptorv1.Task_FIRE_ONCE
			}},
		"SKIP": {perceptorv1.Task_ONE_SHOT,
			func(t *perceptorv1.Task) { t.MisfirePolicy = perceptorv1.Task_SKIP },
			func(t *perceptorv1.Task) {
				t.MisfirePolicy, t.MisfireGrace = perceptorv1.Task_SKIP, durationpb.New(time.Minute)
			}},
		"SKIP without grace": {perceptorv1.Task_ONE_SHOT,
			func(t *perceptorv1.Task) {
				t.MisfirePolicy, t.MisfireGrace = perceptorv1.Task_SKIP, durationpb.New(0)
			},
			func(t *perceptorv1.Task) {
				t.MisfirePolicy, t.MisfireGrace = perceptorv1.Task_SKIP, durationpb.New(0)
			}},
		"FIRE_ALL": {perceptorv1.Task_NON_BLOCKING,
			func(t *perceptorv1.Task) {
				t.Schedule, t.MisfirePolicy = every(time.Hour), perceptorv1.Task_FIRE_ALL
			},
			func(t *perceptorv1.Task) {
				t.Schedule, t.MisfirePolicy, t.MisfireLimit = every(time.Hour), perceptorv1.Task_FIRE_ALL, 1000
			}},
		"spread and tags": {perceptorv1.Task_NON_BLOCKING,
			func(t *perceptorv1.Task) {
				t.Schedule, t.Spread, t.Tags = every(time.Hour), durationpb.New(time.Minute), []string{"b", "a", "b"}
			},
			func(t *perceptorv1.Task) {
				t.Schedule, t.Spread, t.Tags = every(time.Hour), durationpb.New(time.Minute), []string{"a", "b"}
				t.MisfirePolicy = perceptorv1.Task_FIRE_ONCE
			}},
		"an overlap policy": {perceptorv1.Task_NON_BLOCKING,
			func(t *perceptorv1.Task) {
				t.Schedule, t.Overlap = every(time.Hour), perceptorv1.Task_Overlap_BUFFER_ONE
			},
			func(t *perceptorv1.Task) {
				t.Schedule, t.Overlap = every(time.Hour), perceptorv1.Task_Overlap_BUFFER_ONE
				t.MisfirePolicy = perceptorv1.Task_FIRE_ONCE
			}},
	} {
		t.Run(name, func(t *testing.T) {
			var added perceptorv1.AddTaskResponse
			if a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: timed(c.typ, c.in)}, &added); a.code != codes.OK {
				t.Fatal(a.message)
			}
			var got perceptorv1.Task
			if a := b.overHTTP("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: added.Id}, &got); a.code != codes.OK {
				t.Fatal(a.message)
			}
			got.MaxCount = 0
			want := timed(c.typ, c.want)
			want.Overlap = max(want.Overlap, perceptorv1.Task_Overlap_ALLOW)
			if !bytes.Equal(bodyOf(want), bodyOf(&perceptorv1.Task{
				Kind: got.Kind, Type: got.Type, BeginTime: got.BeginTime, Schedule: got.Schedule, MisfirePolicy: got.MisfirePolicy,
				MisfireGrace: got.MisfireGrace, MisfireLimit: got.MisfireLimit, Spread: got.Spread, Tags: got.Tags, Overlap: got.Overlap,
			})) {
				t.Errorf("want %v\ngot %v", want, &got)
			}
		})
	}
}

func TestAnExpressionFasterThanTheShortestIntervalIsRefused(t *testing.T) {
	b := setup(t, func(c *Config) { c.Limits.MinInterval = time.Minute })
	for expr, ok := range map[string]bool{"* * * * *": true, "*/30 * * * * *": false, "0,1 0 0 * * *": false, "0 0 * * * *": true} {
		a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: timed(perceptorv1.Task_BLOCKING, func(t *perceptorv1.Task) {
			t.Schedule = cronSchedule(expr, "", 0)
		})}, &perceptorv1.AddTaskResponse{})
		if (a.code == codes.OK) != ok {
			t.Errorf("%q: %s %s", expr, a.code, a.message)
		}
	}
}

func TestEveryIsAnIntervalHoweverItIsWrittenAndItsZoneIsOne(t *testing.T) {
	b := setup(t)
	add := func(expr, zone string) (got *perceptorv1.Task, a answer) {
		var added perceptorv1.AddTaskResponse
		a = b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: timed(perceptorv1.Task_BLOCKING, func(t *perceptorv1.Task) {
			t.Schedule = cronSchedule(expr, zone, 0)
		})}, &added)
		if got = new(perceptorv1.Task); a.code == codes.OK {
			a = b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: added.Id}, got)
		}
		return got, a
	}
	for _, expr := range []string{"@every 90m", " @Every\t1h30m ", "@EVERY 5400s"} {
		if got, a := add(expr, "Europe/Berlin"); a.code != codes.OK || got.GetInterval().AsDuration() != 90*time.Minute {
			t.Errorf("%q: %s %s: %v", expr, a.code, a.message, got)
		}
	}
	for expr, want := range map[string]string{
		"@every 0s": "more than 0", "@every 1ns": "whole milliseconds", "@every": "is not of the form", "@every90m": "is not of the form", "@every -5m": "more than 0",
		"@every 87601h": "interval", "@every 10ms": "interval",
	} {
		if _, a := add(expr, ""); a.code != codes.InvalidArgument || !strings.Contains(a.message, want) {
			t.Errorf("%q: %s %s", expr, a.code, a.message)
		}
	}
	if _, a := add("@every 90m", "Mars/Olympus"); a.faults["task.cron.time_zone"] == "" {
		t.Errorf("a zone that is none: %s %s", a.code, a.message)
	}
}

func TestAPreviewShowsTheInstantsOfEveryDialect(t *testing.T) {
	b := setup(t)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		typ    perceptorv1.Task_Type
		change func(*perceptorv1.Task)
		count  int32
		want   []string
	}{
		"interval": {perceptorv1.Task_NON_BLOCKING, func(t *perceptorv1.Task) { t.Schedule = every(36 * time.Hour) }, 2,
			[]string{"2026-01-01T00:00:00Z", "2026-01-02T12:00:00Z"}},
		"standard": {perceptorv1.Task_BLOCKING, func(t *perceptorv1.Task) { t.Schedule = cronSchedule("30 6 * * MON", "Europe/Berlin", 0) }, 2,
			[]string{"2026-01-05T05:30:00Z", "2026-01-12T05:30:00Z"}},
		"quartz": {perceptorv1.Task_NON_BLOCKING, func(t *perceptorv1.Task) {
			t.Schedule = cronSchedule("0 0 12 LW * ?", "Asia/Shanghai", perceptorv1.Cron_QUARTZ)
		}, 2, []string{"2026-01-30T04:00:00Z", "2026-02-27T04:00:00Z"}},
		"named":                   {perceptorv1.Task_NON_BLOCKING, func(t *perceptorv1.Task) { t.Schedule = cronSchedule("@monthly", "", 0) }, 1, []string{"2026-01-01T00:00:00Z"}},
		"@every":                  {perceptorv1.Task_NON_BLOCKING, func(t *perceptorv1.Task) { t.Schedule = cronSchedule("@every 90m", "", 0) }, 2, []string{"2026-01-01T00:00:00Z", "2026-01-01T01:30:00Z"}},
		"one instant of ONE_SHOT": {perceptorv1.Task_ONE_SHOT, func(t *perceptorv1.Task) { t.Schedule = cronSchedule("0 6 * * *", "", 0) }, 5, []string{"2026-01-01T06:00:00Z"}},
		"bounds": {perceptorv1.Task_NON_BLOCKING, func(t *perceptorv1.Task) {
			t.BeginTime, t.EndTime = timestamppb.New(begin.AddDate(74, 0, 0)), timestamppb.New(begin.AddDate(74, 0, 2))
			t.Schedule = cronSchedule("@daily", "", 0)
		}, 9, []string{"2100-01-01T00:00:00Z", "2100-01-02T00:00:00Z"}},
		"max_count": {perceptorv1.Task_NON_BLOCKING, func(t *perceptorv1.Task) { t.Schedule, t.MaxCount = cronSchedule("@daily", "", 0), 1 }, 9,
			[]string{"2026-01-01T00:00:00Z"}},
		"the end of time": {perceptorv1.Task_NON_BLOCKING, func(t *perceptorv1.Task) {
			t.BeginTime, t.Schedule = timestamppb.New(begin.AddDate(6964, 0, 0)), every(87600*time.Hour)
		}, 1000, []string{"8990-01-01T00:00:00Z", "8999-12-30T00:00:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := &perceptorv1.Task{Type: c.typ, BeginTime: timestamppb.New(begin)}
			c.change(asked)
			var got perceptorv1.PreviewScheduleResponse
			a := b.overHTTP("acme-secret", preview, &perceptorv1.PreviewScheduleRequest{Task: asked, Count: c.count}, &got)
			var instants []string
			for _, at := range got.Instants {
				instants = append(instants, at.AsTime().Format(time.RFC3339Nano))
			}
			if a.code != codes.OK || !slices.Equal(instants, c.want) || got.ZoneData == "" {
				t.Errorf("%s %s: got %v, want %v", a.code, a.message, instants, c.want)
			}
		})
	}
}

func TestAPreviewBeginsByTheClockOfTheStore(t *testing.T) {
	b := setup(t)
	asked := &perceptorv1.Task{Type: perceptorv1.Task_NON_BLOCKING, Schedule: every(time.Hour), EndTime: timestamppb.New((fakeNow + 1).Time())}
	var got perceptorv1.PreviewScheduleResponse
	a := b.overGRPC("acme-secret", preview, &perceptorv1.PreviewScheduleRequest{Task: asked}, &got)
	if a.code != codes.OK || len(got.Instants) != 1 || !got.Instants[0].AsTime().Equal(fakeNow.Time()) {
		t.Errorf("%s %s: %v", a.code, a.message, got.Instants)
	}
}

func TestAPreviewGoesOnAfterAnInstantAndKnowsTheTasksHAndSpread(t *testing.T) {
	b := setup(t)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ask := func(r *perceptorv1.PreviewScheduleRequest) *perceptorv1.PreviewScheduleResponse {
		var got perceptorv1.PreviewScheduleResponse
		if a := b.overGRPC("acme-secret", preview, r, &got); a.code != codes.OK {
			t.Fatal(a.message)
		}
		return &got
	}
	daily := &perceptorv1.Task{Type: perceptorv1.Task_NON_BLOCKING, BeginTime: timestamppb.New(begin), Schedule: cronSchedule("0 6 * * *", "", 0), MaxCount: 40}
	got := ask(&perceptorv1.PreviewScheduleRequest{Task: daily, AfterTime: timestamppb.New(begin.AddDate(0, 0, 37).Add(6 * time.Hour)), Count: 10})
	if len(got.Instants) != 2 || got.Instants[0].AsTime() != begin.AddDate(0, 0, 38).Add(6*time.Hour) {
		t.Errorf("runs 39 and 40 of 40: %v", got)
	}
	like := &perceptorv1.Task{Type: perceptorv1.Task_NON_BLOCKING, BeginTime: timestamppb.New(begin), Schedule: cronSchedule("H H * * *", "", 0), Spread: durationpb.New(time.Hour)}
	first := func(id int64) time.Time {
		return ask(&perceptorv1.PreviewScheduleRequest{Task: like, TaskId: id, Count: 1}).Instants[0].AsTime()
	}
	if first(513).Equal(first(1025)) || !first(513).Equal(first(513)) {
		t.Errorf("tasks 513 and 1025: %s, %s", first(513), first(1025))
	}
	if first(0).Second() != 0 {
		t.Errorf("without a task nothing is spread, but the instant is %s", first(0))
	}
}

func TestAPreviewRefusesWhatAnAddWouldRefuse(t *testing.T) {
	b := setup(t)
	for name, r := range map[string]*perceptorv1.PreviewScheduleRequest{
		"no task":        {},
		"a bad task":     {Task: &perceptorv1.Task{Type: perceptorv1.Task_BLOCKING}},
		"too many":       {Task: timed(perceptorv1.Task_ONE_SHOT, func(*perceptorv1.Task) {}), Count: 1001},
		"a negative id":  {Task: timed(perceptorv1.Task_ONE_SHOT, func(*perceptorv1.Task) {}), TaskId: -1},
		"an ended task":  {Task: timed(perceptorv1.Task_ONE_SHOT, func(t *perceptorv1.Task) { t.BeginTime, t.EndTime = nil, timestamppb.New(time.Unix(1, 0)) })},
		"a bad instant":  {Task: timed(perceptorv1.Task_ONE_SHOT, func(*perceptorv1.Task) {}), AfterTime: &timestamppb.Timestamp{Nanos: -1}},
		"H that is none": {Task: timed(perceptorv1.Task_BLOCKING, func(t *perceptorv1.Task) { t.Schedule = cronSchedule("0 0 H(30-31) 2 *", "", 0) })},
	} {
		if a := b.overGRPC("acme-secret", preview, r, &perceptorv1.PreviewScheduleResponse{}); a.code != codes.InvalidArgument || len(a.faults) == 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
