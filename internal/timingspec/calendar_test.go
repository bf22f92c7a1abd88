package timingspec

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// post calls the API over HTTP and returns the status.
func (e *stage) post(path string, r proto.Message) int {
	e.Helper()
	body, err := protojson.Marshal(r)
	if err != nil {
		e.Fatal(err)
	}
	request, err := http.NewRequestWithContext(e.Context(), http.MethodPost, "http://"+e.stack.HTTP+path, bytes.NewReader(body))
	if err != nil {
		e.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+e.tenant.Token)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		e.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // only the status matters
	return response.StatusCode
}

// calendar stores the calendar of the story with ranges, "2h-4h", in place of one that is
// there. All processes know it.
func (e *stage) calendar(ranges ...string) []string {
	e.Helper()
	e.noCalendar()
	c := &perceptorv1.Calendar{Name: e.kind}
	for _, r := range ranges {
		from, until, _ := strings.Cut(r, "-")
		c.Ranges = append(c.Ranges, &perceptorv1.Calendar_Range{StartTime: timestamppb.New(e.at(from)), EndTime: timestamppb.New(e.at(until))})
	}
	if status := e.post("/v1/calendars", &perceptorv1.CreateCalendarRequest{Calendar: c}); status != http.StatusOK {
		e.Fatalf("create the calendar: status %d", status)
	}
	e.tenant.ShareCalendars(e.T, e.kind)
	return []string{e.kind}
}

// noCalendar deletes the calendar of the story.
func (e *stage) noCalendar() {
	e.Helper()
	e.post("/v1/calendars/"+e.kind+":delete", &perceptorv1.DeleteCalendarRequest{})
	e.tenant.ShareCalendars(e.T, e.kind)
}

// update gives the calendar of the story other ranges, by which tasks are recomputed.
func (e *stage) update(ranges ...string) {
	e.Helper()
	c := &perceptorv1.Calendar{}
	for _, r := range ranges {
		from, until, _ := strings.Cut(r, "-")
		c.Ranges = append(c.Ranges, &perceptorv1.Calendar_Range{StartTime: timestamppb.New(e.at(from)), EndTime: timestamppb.New(e.at(until))})
	}
	body, err := protojson.Marshal(&perceptorv1.UpdateCalendarRequest{Calendar: c})
	if err != nil {
		e.Fatal(err)
	}
	e.call(http.MethodPatch, "/v1/calendars/"+e.kind, body)
	e.tenant.ShareCalendars(e.T, e.kind)
}

// recomputed moves the clock on until the newest operation has ended. Chores sleep in real time, but a step that
// found a row locked or a calendar unread is repeated when the clock says so.
func (e *stage) recomputed() {
	e.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var page perceptorv1.ListBulkOperationsResponse
		if err := protojson.Unmarshal(e.call(http.MethodGet, "/v1/bulkOperations?page_size=1", nil), &page); err != nil {
			e.Fatal(err)
		}
		o := page.Operations[0]
		switch {
		case o.Action != perceptorv1.BulkOperation_RECOMPUTE || time.Now().After(deadline):
			e.Fatalf("the newest operation is %v", o)
		case o.State == perceptorv1.BulkOperation_DONE:
			return
		}
		e.stack.Advance(e.T, 100*time.Millisecond)
	}
}

// call calls the API over HTTP and returns the answer.
func (e *stage) call(method, path string, body []byte) []byte {
	e.Helper()
	request, err := http.NewRequestWithContext(e.Context(), method, "http://"+e.stack.HTTP+path, bytes.NewReader(body))
	if err != nil {
		e.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+e.tenant.Token)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		e.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		e.Fatalf("%s %s: status %d, %v: %s", method, path, response.StatusCode, err, answer)
	}
	return answer
}

// excluding is an hourly task that excludes the calendar of the story.
func excluding(names []string) client.Task {
	t := hourly(client.NonBlocking)
	t.ExcludeCalendars = names
	return t
}

// calendarStories show what day calendars do to schedules.
var calendarStories = []story{
	{"excluded instants do not exist", "timing: T19.1", func(e *stage) {
		id := e.add(excluding(e.calendar("2h-4h")))
		e.until("4h30m")
		e.fired("0s 1h 4h")
		e.is(id, client.Scheduled, 3, 0)
	}},
	{"a task may be limited to a calendar", "timing: T19.2", func(e *stage) {
		t := hourly(client.NonBlocking)
		t.OnlyCalendars = e.calendar("1h-3h", "5h-6h")
		id := e.add(t)
		e.until("6h30m")
		e.fired("1h 2h 5h")
		e.is(id, client.Scheduled, 3, 0)
	}},
	{"excluded instants are not missed", "timing: T19.3", func(e *stage) {
		outage(e, "0s 1h@5h30m 6h", 2, func(t *client.Task) { t.ExcludeCalendars = e.calendar("2h-4h") })
	}},
	{"a BLOCKING goes on outside of a calendar", "timing: T19.4", func(e *stage) {
		names := e.calendar("1h-3h")
		finish := e.open("20m", func() {
			e.add(client.Task{Type: client.Blocking, Interval: time.Hour, AckTimeout: 24 * time.Hour, ExcludeCalendars: names})
		})
		finish()
		e.until("4h")
		e.fired("0s 3h20m")
	}},
	{"what a change closes does not fire", "timing: T19.5", func(e *stage) {
		id := e.add(excluding(e.calendar()))
		e.until("1h30m")
		e.calendar("2h-4h")
		e.until("4h30m")
		e.fired("0s 1h 4h")
		e.is(id, client.Scheduled, 3, 0)
	}},
	{"what a change opens is found at once", "timing: T19.6", func(e *stage) {
		chosen := e.at("4h30m")
		e.answers(func(_ context.Context, r *client.Run) error {
			if r.Type == client.Blocking {
				r.SetNext(chosen)
			}
			return nil
		})
		id := e.add(excluding(e.calendar("2h-4h")))
		blocking := e.add(client.Task{Type: client.Blocking, Interval: 10 * time.Minute, ExcludeCalendars: []string{e.kind}})
		e.until("1h30m")
		e.update()
		e.until("1h31m")
		e.recomputed()
		e.is(id, client.Scheduled, 2, 0)
		if at := e.task(blocking).ScheduledAt; !at.Equal(chosen) {
			e.Errorf("the next run that a result has chosen is at %s", at)
		}
		e.until("3h30m")
		e.fired("0s 0s 1h 2h 3h")
	}},
	{"a new calendar of the name opens later", "timing: T19.6", func(e *stage) {
		edited := e.add(excluding(e.calendar("2h-4h")))
		e.until("1h30m")
		e.calendar()
		e.until("1h45m")
		e.edit(edited, client.Task{Interval: 30 * time.Minute})
		e.until("2h50m")
		e.fired("0s 1h 2h15m 2h45m")
	}},
	{"a task waits for new days", "timing: T19.7", func(e *stage) {
		t := hourly(client.NonBlocking)
		t.OnlyCalendars = e.calendar("1h-2h")
		id := e.add(t)
		e.until("3h30m")
		e.is(id, client.Scheduled, 1, 0)
		e.calendar("1h-2h", "5h-6h")
		e.until("6h30m")
		e.fired("1h 5h")
		e.is(id, client.Scheduled, 2, 0)
	}},
	{"a task waits for a calendar that is gone", "timing: T19.8", func(e *stage) {
		id := e.add(excluding(e.calendar("8h-9h")))
		e.until("50m")
		e.noCalendar()
		e.until("1h10m")
		e.fired("0s")
		e.calendar("8h-9h")
		e.until("2h30m")
		calls := e.log.all()
		if len(calls) != 3 || calls[1].ScheduledAt != e.at("1h") || calls[1].At.After(e.at("1h10m10s")) || calls[2].At != e.at("2h") {
			e.Errorf("calls: %v", calls)
		}
		e.is(id, client.Scheduled, 3, 0)
	}},
	{"a trigger fires in spite of a calendar", "timing: T19.9", func(e *stage) {
		id := e.add(excluding(e.calendar("1h-4h")))
		e.until("1h30m")
		e.answers(next(2, e.at("2h30m")))
		e.trigger(id)
		e.until("5h")
		e.fired("0s 1h30m 4h30m")
	}},
	{"a task that cannot fire is refused", "timing: T19.10", func(e *stage) {
		e.refused("exclude_calendars", excluding([]string{"no such"}))
		t := hourly(client.NonBlocking)
		t.OnlyCalendars = e.calendar()
		e.refused("only_calendars", t)
		e.refused("only_calendars", client.Task{Type: client.OneShot, OnlyCalendars: t.OnlyCalendars})
	}},
}
