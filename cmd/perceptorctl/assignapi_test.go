package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// assignments is an API that has an assignment and keeps the last request to change it.
type assignments struct {
	perceptorv1.UnimplementedAssignmentServiceServer
	asked *perceptorv1.UpdateStrategyRequest
}

func (*assignments) GetAssignment(context.Context, *perceptorv1.GetAssignmentRequest) (*perceptorv1.Assignment, error) {
	at := &timestamppb.Timestamp{Seconds: 1_769_860_800}
	return &perceptorv1.Assignment{
		Leader: "id-1", Generation: 7, PlanTime: at,
		Members: []*perceptorv1.AssignmentMember{
			{Id: "id-1", Name: "d1", Host: "h1", RequestedCount: 3, Held: "0-2", StartTime: at, HeartbeatTime: at, Figures: map[string]int64{"records": 5}},
			{Id: "id-2", Name: "d2", Barred: true},
		},
		Items: []*perceptorv1.AssignmentItem{
			{Item: 0, Current: []string{"d1"}, Requested: "d1", Epoch: 4}, {Item: 1, Current: []string{"d1"}, Requested: "d1", Epoch: 6},
			{Item: 2, WithoutOwner: "paused"}, {Item: 512, Current: []string{"d1"}, Requested: "d1"},
		},
		Rebalances: []*perceptorv1.Rebalance{{Generation: 7, Writer: "id-1", WriteTime: at, Members: 1, Moved: 2, WithoutOwner: 1}},
		Strategy:   &perceptorv1.Strategy{Drained: []string{"d2"}, Pins: map[string]string{"h1": "0-1"}, PausedItems: "2", MaxItems: 9},
	}, nil
}

func (a *assignments) UpdateStrategy(_ context.Context, r *perceptorv1.UpdateStrategyRequest) (*perceptorv1.Strategy, error) {
	a.asked = r
	return &perceptorv1.Strategy{Drained: r.Drain}, nil
}

// api serves services on loopback, and sets address and token for commands.
func api(t *testing.T, register func(*grpc.Server)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	go s.Serve(l) //nolint:errcheck // it ends with Stop
	t.Cleanup(s.Stop)
	t.Setenv("PERCEPTOR_ADDRESS", l.Addr().String())
	t.Setenv("PERCEPTOR_TOKEN", "pct_1_x")
}

func TestWithoutServersTheAssignmentIsThatOfTheAPI(t *testing.T) {
	api(t, func(s *grpc.Server) { perceptorv1.RegisterAssignmentServiceServer(s, &assignments{}) })
	ctl := ctlOver(t)
	for command, want := range map[string][]string{
		"members":         {"d1    id-1  h1", "leader  3          3", "2026-01-31T12:00:00Z  records=5", "barred"},
		"members -o json": {`"held": "0-2"`, `"state": "leader"`},
		"items":           {"0-1       2      d1       d1         -              h1         4-6", "paused", "chores 0  1      d1"},
		"items --all":     {"0         1      d1       d1         -              h1         4"},
		"rebalances":      {"7           2026-01-31T12:00:00Z  d1      1        2      1"},
		"strategy":        {`"max_items": 9`, `"drained": [`, `"paused_items": "2"`},
	} {
		out := ctl(0, append([]string{"assign"}, strings.Fields(command)...)...)
		for _, part := range want {
			if !strings.Contains(out, part) {
				t.Errorf("assign %s has no %q:\n%s", command, part, out)
			}
		}
	}
	if out := ctl(cli.Usage, "assign", "environments"); !strings.Contains(out, "postgres.servers: is missing") {
		t.Errorf("environments, which no API has: %s", out)
	}
}

func TestWithoutServersTheAPIChangesTheStrategy(t *testing.T) {
	a := &assignments{}
	api(t, func(s *grpc.Server) { perceptorv1.RegisterAssignmentServiceServer(s, a) })
	ctl := ctlOver(t)
	for command, want := range map[string]*perceptorv1.UpdateStrategyRequest{
		"drain d1 h2":                   {Drain: []string{"d1", "h2"}},
		"undrain d1":                    {Undrain: []string{"d1"}},
		"pin h1 0-31":                   {Pin: map[string]string{"h1": "0-31"}},
		"unpin 0-31":                    {Unpin: "0-31"},
		"pause":                         {Paused: proto.Bool(true)},
		"pause 1-2":                     {PauseItems: "1-2"},
		"resume":                        {Paused: proto.Bool(false)},
		"resume 1-2":                    {ResumeItems: "1-2"},
		"limit --hosts a,b --members 0": {Hosts: []string{"a", "b"}, Members: proto.Int32(0)},
		"reset":                         {Reset_: true},
	} {
		a.asked = nil
		out := ctl(0, append([]string{"assign"}, strings.Fields(command)...)...)
		if !proto.Equal(a.asked, want) {
			t.Errorf("assign %s asks %v, want %v", command, a.asked, want)
		}
		if command == "drain d1 h2" && (!strings.Contains(out, `"drained": [`) || !strings.Contains(out, "hint: no dispatcher that runs now has this name, id, host or address: h2;")) {
			t.Errorf("the new strategy, with a name that nobody has, is not shown: %s", out)
		}
	}
	a.asked = nil
	if out := ctl(cli.Usage, "assign", "pause", "3-1"); a.asked != nil || !strings.Contains(out, "ITEMS: ") {
		t.Errorf("nonsense is sent: %v %s", a.asked, out)
	}
}
