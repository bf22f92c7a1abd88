package main

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestATimelineTellsWhyARunWasLate(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(due.Add(d)) }
	for want, e := range map[string]*perceptorv1.RunEvent{
		"due 10:00:00.000, claimed +12 ms by dispatcher-1, published +3 ms, received +2 ms by listener web-1 (host, v1.2), handler begun +310 µs, ran 1.2 s, reported +4 ms SUCCEEDED": {
			Type: perceptorv1.RunEvent_SUCCEEDED, ScheduledTime: at(0), ClaimTime: at(12 * time.Millisecond), PublishTime: at(15 * time.Millisecond),
			ReceiveTime: at(17 * time.Millisecond), HandlerBeginTime: at(17310 * time.Microsecond), HandlerEndTime: at(1217310 * time.Microsecond),
			EventTime: at(1221310 * time.Microsecond), Dispatcher: "dispatcher-1", Listener: &perceptorv1.Listener{Name: "web-1", Host: "host", Version: "v1.2"},
		},
		"due 10:00:00.000, claimed +0 ms by d-2, published 80 ms before, received 75 ms before by listener web-1, handler begun +3 ms, REDELIVERY +2.0 s": {
			ScheduledTime: at(0), ClaimTime: at(0), PublishTime: at(-80 * time.Millisecond), ReceiveTime: at(-75 * time.Millisecond),
			HandlerBeginTime: at(3 * time.Millisecond), EventTime: at(2003 * time.Millisecond), Dispatcher: "d-2", Listener: &perceptorv1.Listener{Name: "web-1"}, Type: perceptorv1.RunEvent_REDELIVERY,
		},
		"due 10:00:00.000, REDELIVERY +5m0s by d-2": {
			Type: perceptorv1.RunEvent_REDELIVERY, ScheduledTime: at(0), EventTime: at(5 * time.Minute), Dispatcher: "d-2",
		},
		`reported FAILED: "a\nb"`: {Type: perceptorv1.RunEvent_FAILED, EventTime: at(0), Detail: "a\nb"},
	} {
		if got := timeline(e); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
