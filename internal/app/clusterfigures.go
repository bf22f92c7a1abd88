package app

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/figures"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/identity"
	"github.com/perceptor/perceptor/store/place"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// Cluster implements [server.Monitoring].
func (m *monitoring) Cluster(ctx context.Context, findings bool) (*perceptorv1.ClusterFigures, error) {
	state, _, err := m.state.get(ctx)
	if err != nil {
		return nil, err
	}
	out := proto.CloneOf(state)
	if !findings {
		return out, nil
	}
	list, at, err := m.finding.get(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range slices.Concat(list, m.examineFigures(ctx)) {
		out.Findings = append(out.Findings, &perceptorv1.Finding{Severity: severities[f.State], Part: f.Part, Text: f.What, Cure: f.Cure})
	}
	out.ExamineTime = timestamppb.New(at)
	return out, nil
}

var severities = map[State]perceptorv1.Finding_Severity{OK: perceptorv1.Finding_OK, Warning: perceptorv1.Finding_WARNING, Failed: perceptorv1.Finding_FAILED}

// examine finds what is wrong, over the connections of this process.
func (m *monitoring) examine(ctx context.Context) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, examineWithin)
	defer cancel()
	e := &examination{config: m.api.o.Config, virtual: m.api.o.VirtualClock, single: m.api.o.Hints != nil, itself: true}
	e.certificates()
	e.all(ctx, m.api.cluster)
	return e.findings, nil
}

// examineFigures finds what the newest figures show.
func (m *monitoring) examineFigures(ctx context.Context) []Finding {
	r, _, err := m.latest.get(ctx)
	if err != nil {
		return []Finding{{State: Warning, Part: "figures", What: "not checked: " + oneLine(err)}}
	}
	e := &examination{}
	e.judgeFigures(r, func(id int32) (string, error) {
		t, err := m.api.names.Tenant(ctx, id)
		return t.Name, err
	})
	return e.findings
}

// readState reads the state of processes and databases.
func (m *monitoring) readState(ctx context.Context) (*perceptorv1.ClusterFigures, error) {
	r, _, err := m.latest.get(ctx)
	if err != nil {
		return nil, err
	}
	out := &perceptorv1.ClusterFigures{Databases: m.databases(ctx)}
	if r.newest > 0 {
		out.MeasureTime = timestamppb.New(r.newest.Add(figures.Every).Time())
	}
	broken := map[int32]bool{}
	for _, s := range r.running() {
		out.Processes = append(out.Processes, processReply(&s))
		for _, tenant := range s.Broken {
			broken[tenant] = true
		}
	}
	slices.SortFunc(out.Processes, func(a, b *perceptorv1.ProcessFigures) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	for tenant := range broken {
		if t, err := m.api.names.Tenant(ctx, tenant); err == nil && len(out.BrokenTopics) < figures.MaxBroken {
			out.BrokenTopics = append(out.BrokenTopics, t.Name)
		}
	}
	slices.Sort(out.BrokenTopics)
	return out, nil
}

func processReply(s *selfAt) *perceptorv1.ProcessFigures {
	kind := perceptorv1.ProcessFigures_TASKD
	if s.Kind == figures.Dispatcher {
		kind = perceptorv1.ProcessFigures_DISPATCHER
	}
	return &perceptorv1.ProcessFigures{
		Kind: kind, Name: s.Name, Host: s.Host, Version: s.Version, StartTime: timestamppb.New(s.Started.Time()),
		MeasureTime: timestamppb.New(s.at.Add(figures.Every).Time()), Shards: int32(s.Shards), Chores: numbers(s.Chores),
		Records: int64(s.Records), ClaimsStopped: s.Stopped,
	}
}

// databases asks all databases at once.
func (m *monitoring) databases(ctx context.Context) []*perceptorv1.DatabaseFigures {
	ctx, cancel := context.WithTimeout(ctx, stateWithin)
	defer cancel()
	all := make([]*perceptorv1.DatabaseFigures, task.Databases)
	var asking sync.WaitGroup
	for d := range task.Databases {
		asking.Go(func() {
			full, err := m.database(ctx, d)
			if err != nil {
				full = &perceptorv1.DatabaseFigures{Database: int32(d)} // it does not answer
			}
			number, at := m.api.cluster.Place(d)
			full.Server, _, _ = strings.Cut(m.api.cluster.Address(d), "/")
			full.PlaceNumber, full.PlaceAddress = max(number, full.PlaceNumber), string(at)
			all[d] = full
		})
	}
	asking.Wait()
	return all
}

func (m *monitoring) database(ctx context.Context, d int) (*perceptorv1.DatabaseFigures, error) {
	s := m.api.shards
	out := &perceptorv1.DatabaseFigures{Database: int32(d), Answers: true}
	owners, err := s.Owners(ctx, d)
	if err != nil {
		return nil, err
	}
	out.Owners = ownersReply(owners)
	outbox, err := s.OutboxStats(ctx, d)
	if err != nil {
		return nil, err
	}
	if out.OutboxRows = int64(outbox.Rows); outbox.Rows > 0 {
		out.OutboxOldestAge = durationpb.New(outbox.Now.Sub(outbox.Oldest))
	}
	far, err := s.FarStats(ctx, d)
	if err != nil {
		return nil, err
	}
	out.FarPacks, out.FarTasks = far.Level0+far.Packs, far.Level0Tasks+far.PackedTasks
	if out.SizeBytes, err = s.Size(ctx, d); err != nil {
		return nil, err
	}
	oldest, err := s.OldestSnapshot(ctx, d)
	if err != nil {
		return nil, err
	}
	out.OldestSnapshotAge = durationpb.New(oldest)
	adopted, err := identity.Last(ctx, m.api.cluster.Pool(d), d)
	if err == nil && adopted.Reason != "" {
		out.AdoptTime, out.AdoptReason = timestamppb.New(adopted.At()), string(adopted.Reason)
	}
	if err != nil {
		return nil, err
	}
	return out, m.placeReply(ctx, d, out)
}

// placeReply adds the place of a database, and the move that is not finished.
func (m *monitoring) placeReply(ctx context.Context, d int, out *perceptorv1.DatabaseFigures) error {
	says, err := place.Read(ctx, m.api.cluster.Pool(d))
	if err != nil {
		return err
	}
	out.PlaceNumber, out.MoveTarget, out.MoveStep = says.Number, string(says.Target), says.Step
	if says.Target == "" && says.Address != "" {
		out.MoveStep = place.Uncleaned
	}
	return nil
}

func ownersReply(owners []shards.ItemOwner) (out []*perceptorv1.ItemOwner) {
	for _, o := range owners {
		one := &perceptorv1.ItemOwner{Item: int32(o.Item), Owner: o.Name, Epoch: o.Epoch}
		if o.AcquiredAt > 0 {
			one.AcquireTime = timestamppb.New(o.AcquiredAt.Time())
		}
		out = append(out, one)
	}
	return out
}
