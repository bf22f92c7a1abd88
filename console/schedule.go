package console

import (
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var schedulePages = []page{{path: "schedule", name: "schedule", title: "Schedule", section: "schedule", times: []string{"after"}, show: (*view).trySchedule}}

// previewed is the number of instants that the page Schedule shows.
const previewed = 30

// scheduleData is the data of the page Schedule.
type scheduleData struct {
	Expression, Dialect, In string
	Refused                 *problem
	Preview                 *perceptorv1.PreviewScheduleResponse
	Instants                []instantIn
}

// instantIn is an instant in the zone of the schedule.
type instantIn struct {
	At     *timestamppb.Timestamp
	Local  string
	Offset string
	// Change says how the clock has changed since the instant before; "": it has not.
	Change string
	Gap    string
}

func (v *view) trySchedule() (any, error) {
	d := &scheduleData{Expression: v.Query("expression"), Dialect: v.Query("dialect"), In: v.Query("zone")}
	if d.In == "" && v.Query("expression") == "" {
		d.In = v.ZoneName()
	}
	ctx, err := v.asTenant()
	if err != nil || d.Expression == "" {
		return d, err
	}
	r := &perceptorv1.PreviewScheduleRequest{Count: previewed, Task: &perceptorv1.Task{
		Type:     perceptorv1.Task_NON_BLOCKING,
		Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: d.Expression, TimeZone: d.In, Dialect: perceptorv1.Cron_Dialect(perceptorv1.Cron_Dialect_value[d.Dialect])}},
	}}
	var ok bool
	if r.AfterTime, ok = v.instantOf(v.Query("after")); !ok {
		d.Refused = &problem{Text: "after is an instant such as 2026-01-31T12:00"}
		return d, nil
	}
	if r.AfterTime == nil {
		r.AfterTime = timestamppb.Now()
	}
	if id, err := strconv.ParseInt(v.Query("id"), 10, 64); err == nil {
		r.TaskId = id
	}
	d.Preview, err = v.tasks.PreviewSchedule(ctx, r)
	switch status.Code(err) {
	case codes.OK:
		d.Instants = inZone(d.Preview.Instants, d.In)
		return d, nil
	case codes.InvalidArgument, codes.FailedPrecondition:
		p := problemOf(err)
		d.Refused = &p
		return d, nil
	}
	return nil, err
}

// inZone writes instants in a zone, with the changes of its clock.
func inZone(instants []*timestamppb.Timestamp, name string) []instantIn {
	zone, err := time.LoadLocation(name)
	if err != nil {
		zone = time.UTC
	}
	list := make([]instantIn, len(instants))
	for i, t := range instants {
		at := t.AsTime().In(zone)
		list[i] = instantIn{At: t, Local: at.Format("Mon 2 Jan 2006 15:04:05"), Offset: at.Format("MST -07:00")}
		if i == 0 {
			continue
		}
		before := instants[i-1].AsTime().In(zone)
		list[i].Gap = duration(at.Sub(before))
		_, was := before.Zone()
		_, is := at.Zone()
		switch {
		case is > was:
			list[i].Change = "the clock goes forward by " + duration(time.Duration(is-was)*time.Second)
		case is < was:
			list[i].Change = "the clock goes back by " + duration(time.Duration(was-is)*time.Second)
		}
	}
	return list
}
