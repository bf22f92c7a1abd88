package server

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// fakeAssignment records its calls.
type fakeAssignment struct {
	asked *perceptorv1.UpdateStrategyRequest
}

func (f *fakeAssignment) Assignment(context.Context) (*perceptorv1.Assignment, error) {
	return &perceptorv1.Assignment{Leader: "a", Items: []*perceptorv1.AssignmentItem{{Item: 7, Requested: "d1", Epoch: 1 << 40}}}, nil
}

func (f *fakeAssignment) UpdateStrategy(_ context.Context, r *perceptorv1.UpdateStrategyRequest) (*perceptorv1.Strategy, error) {
	if r.PerHost != nil && *r.PerHost < 0 {
		return nil, task.Errorf(task.ReasonInvalidField, "per_host: %d: must not be negative", *r.PerHost)
	}
	f.asked = r
	return &perceptorv1.Strategy{Drained: r.Drain, Pins: r.Pin}, nil
}

func TestTheAssignmentIsForAdminsAlone(t *testing.T) {
	f := &fakeAssignment{}
	b := setupWith(t, func(d *Deps) { d.Assignment = f })
	get, update := perceptorv1.AssignmentService_GetAssignment_FullMethodName, perceptorv1.AssignmentService_UpdateStrategy_FullMethodName
	var got perceptorv1.Assignment
	if a := b.overHTTP("admin-secret", get, &perceptorv1.GetAssignmentRequest{}, &got); a.http != http.StatusOK || got.Items[0].Epoch != 1<<40 {
		t.Errorf("%d %v", a.http, &got)
	}
	if a := b.overHTTP("acme-secret", get, &perceptorv1.GetAssignmentRequest{}, nil); a.code != codes.PermissionDenied {
		t.Errorf("a tenant: %v", a.code)
	}
	limit := int32(2)
	request := &perceptorv1.UpdateStrategyRequest{Drain: []string{"d1"}, Pin: map[string]string{"h1": "0-3"}, MaxItems: &limit}
	var strategy perceptorv1.Strategy
	b.overHTTP("admin-secret", update, request, &strategy)
	if diff := cmp.Diff(request, f.asked, protocmp.Transform()); diff != "" || strategy.Pins["h1"] != "0-3" {
		t.Errorf("(-want +got)\n%s\n%v", diff, &strategy)
	}
	bad := int32(-1)
	if a := b.overGRPC("admin-secret", update, &perceptorv1.UpdateStrategyRequest{PerHost: &bad}, &strategy); a.code != codes.InvalidArgument {
		t.Errorf("a faulty strategy: %v", a.code)
	}
}

func TestWithoutACoordinatorThereIsNoAssignment(t *testing.T) {
	b := setup(t)
	if a := b.overHTTP("admin-secret", perceptorv1.AssignmentService_GetAssignment_FullMethodName, &perceptorv1.GetAssignmentRequest{}, nil); a.code != codes.FailedPrecondition {
		t.Errorf("%v %s", a.code, a.message)
	}
}

// fakeEpochs has databases of which number 7 does not answer.
type fakeEpochs struct{}

func (fakeEpochs) RaiseEpochs(_ context.Context, d int) ([]task.Ownership, error) {
	if d == 7 {
		return nil, task.Errorf(task.ReasonDatabaseUnavailable, "database 7 does not answer")
	}
	return []task.Ownership{{Shard: task.ChoresShard(d), Epoch: int64(100 + d)}, {Epoch: 9}, {Epoch: 11}}, nil
}

func TestEpochsAreRaisedInTheDatabasesThatAnswer(t *testing.T) {
	log := &fakeAudit{}
	b := setupWith(t, func(d *Deps) { d.Audit = log })
	raise := perceptorv1.AssignmentService_RaiseEpochs_FullMethodName
	var got perceptorv1.RaiseEpochsResponse
	if a := b.overHTTP("admin-secret", raise, &perceptorv1.RaiseEpochsRequest{Databases: []int32{7, 3, 15, 3}}, &got); a.http != http.StatusOK {
		t.Fatalf("%d %s", a.http, a.message)
	}
	want := &perceptorv1.RaiseEpochsResponse{MissingDatabases: []int32{7}, Raised: []*perceptorv1.RaisedEpochs{
		{Database: 3, Items: 3, LowestEpoch: 9, HighestEpoch: 103}, {Database: 15, Items: 3, LowestEpoch: 9, HighestEpoch: 115},
	}}
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if e := log.one(t); e.Action != "AssignmentService/RaiseEpochs" || e.Object != "[7,3,15,3]" || e.Result != "OK" {
		t.Errorf("recorded: %+v", e)
	}
	for what, databases := range map[string][]int32{"databases: is empty": nil, "databases: 16: must be 0 to 15": {0, 16}, "databases: -1": {-1}} {
		if a := b.overGRPC("admin-secret", raise, &perceptorv1.RaiseEpochsRequest{Databases: databases}, &got); a.code != codes.InvalidArgument || !strings.Contains(a.message, what) {
			t.Errorf("%v: %v %s, want %s", databases, a.code, a.message, what)
		}
	}
	for _, secret := range []string{"acme-secret", "scope-ADMIN_READ"} {
		if a := b.overGRPC(secret, raise, &perceptorv1.RaiseEpochsRequest{Databases: []int32{3}}, &got); a.code != codes.PermissionDenied {
			t.Errorf("%s: %v", secret, a.code)
		}
	}
}
