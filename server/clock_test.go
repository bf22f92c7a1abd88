package server

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// fakeClock accepts every target.
type fakeClock struct{ now time.Time }

func (f *fakeClock) Clock(context.Context) (*perceptorv1.Clock, error) {
	return &perceptorv1.Clock{Time: timestamppb.New(f.now), Frozen: true}, nil
}

func (f *fakeClock) Advance(_ context.Context, r *perceptorv1.AdvanceClockRequest) (*perceptorv1.AdvanceClockResponse, error) {
	if f.now = f.now.Add(r.GetDuration().AsDuration()); r.GetTime() != nil {
		f.now = r.GetTime().AsTime()
	}
	return &perceptorv1.AdvanceClockResponse{Time: timestamppb.New(f.now), Reached: true}, nil
}

func (f *fakeClock) Set(_ context.Context, r *perceptorv1.SetClockRequest) (*perceptorv1.AdvanceClockResponse, error) {
	f.now = r.GetTime().AsTime()
	return &perceptorv1.AdvanceClockResponse{Time: timestamppb.New(f.now), Reached: true}, nil
}

const (
	getClock     = perceptorv1.ClockService_GetClock_FullMethodName
	advanceClock = perceptorv1.ClockService_AdvanceClock_FullMethodName
	setClock     = perceptorv1.ClockService_SetClock_FullMethodName
)

func TestTheVirtualClockIsForAdminsAlone(t *testing.T) {
	f := &fakeClock{now: time.Unix(1000, 0)}
	b := setupWith(t, func(d *Deps) { d.Clock = f })
	for _, method := range []string{getClock, advanceClock, setClock} {
		if a := b.overHTTP("acme-secret", method, &perceptorv1.GetClockRequest{}, nil); a.code != codes.PermissionDenied {
			t.Errorf("%s by a tenant: %v", method, a.code)
		}
	}
	var moved perceptorv1.AdvanceClockResponse
	hour := &perceptorv1.AdvanceClockRequest{To: &perceptorv1.AdvanceClockRequest_Duration{Duration: durationpb.New(time.Hour)}}
	if a := b.overHTTP("admin-secret", advanceClock, hour, &moved); a.http != http.StatusOK || moved.Time.Seconds != 4600 {
		t.Errorf("%d %s %v", a.http, a.message, &moved)
	}
	if a := b.overGRPC("admin-secret", setClock, &perceptorv1.SetClockRequest{Time: &timestamppb.Timestamp{Seconds: 9000}}, &moved); a.code != codes.OK || moved.Time.Seconds != 9000 {
		t.Errorf("%v %s %v", a.code, a.message, &moved)
	}
	var shown perceptorv1.Clock
	if a := b.overHTTP("admin-secret", getClock, &perceptorv1.GetClockRequest{}, &shown); a.http != http.StatusOK || shown.Time.Seconds != 9000 || !shown.Frozen {
		t.Errorf("%d %s %v", a.http, a.message, &shown)
	}
}

func TestMovesOfTheClockThatSayNothingAreRefused(t *testing.T) {
	b := setupWith(t, func(d *Deps) { d.Clock = &fakeClock{} })
	second := &perceptorv1.AdvanceClockRequest_Duration{Duration: durationpb.New(time.Second)}
	for want, r := range map[string]*perceptorv1.AdvanceClockRequest{
		"time: either duration or time is required": {},
		"duration: ":     {To: &perceptorv1.AdvanceClockRequest_Duration{Duration: &durationpb.Duration{Seconds: 1, Nanos: -1}}},
		"time: ":         {To: &perceptorv1.AdvanceClockRequest_Time{Time: &timestamppb.Timestamp{Nanos: -1}}},
		"wait.settle: ":  {To: second, Wait: &perceptorv1.ClockWait{Settle: &durationpb.Duration{Nanos: 2e9}}},
		"wait.no_wait: ": {To: second, Wait: &perceptorv1.ClockWait{NoWait: true, LeaveOpen: true}},
	} {
		if a := b.overGRPC("admin-secret", advanceClock, r, nil); a.code != codes.InvalidArgument || !strings.Contains(a.message, want) {
			t.Errorf("%v %s, want %q", a.code, a.message, want)
		}
	}
	if a := b.overGRPC("admin-secret", setClock, &perceptorv1.SetClockRequest{}, nil); a.code != codes.InvalidArgument || !strings.Contains(a.message, "time: is required") {
		t.Errorf("%v %s", a.code, a.message)
	}
}

func TestTheRealClockCannotBeMoved(t *testing.T) {
	b := setup(t)
	for _, method := range []string{getClock, advanceClock, setClock} {
		if a := b.overHTTP("admin-secret", method, &perceptorv1.GetClockRequest{}, nil); a.code != codes.FailedPrecondition || !strings.Contains(a.message, "real clock") {
			t.Errorf("%s: %v %s", method, a.code, a.message)
		}
	}
}
