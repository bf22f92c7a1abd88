package console

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var (
	deadPages = []page{
		{path: "dead", name: "dead", title: "Dead runs", section: "dead", query: []string{"kind", "reason", "tags", "from", "until"}, times: []string{"from", "until"}, show: (*view).listDead},
		{path: "dead/{run}", name: "deadrun", title: "Dead run", section: "dead", show: (*view).showDead},
	}
	deadActions = []action{
		{path: "dead/{run}/replay", back: "dead", do: replayDead},
		{path: "dead/{run}/purge", back: "dead", do: purgeDead},
	}
)

// deadData is the data of the page Dead runs.
type deadData struct {
	Runs    []*perceptorv1.DeadRun
	Groups  []deadGroup
	Next    string
	Refused *problem
	// Total is the number of dead runs that are kept; -1: not known.
	Total int64
}

// deadGroup counts the loaded dead runs of one reason and kind.
type deadGroup struct {
	Reason perceptorv1.DeadRun_Reason
	Kind   string
	Count  int
}

// deadPageSize is larger than that of other lists, because the groups are of one page.
const deadPageSize = 200

func (v *view) listDead() (any, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	d := &deadData{Total: -1}
	r := &perceptorv1.ListDeadRunsRequest{PageSize: deadPageSize, PageToken: v.Query("page"), Kind: v.Query("kind"), Tags: v.tags()}
	if r.Reason, err = choice[perceptorv1.DeadRun_Reason](v, "reason", perceptorv1.DeadRun_Reason_value); err != nil {
		p := problemOf(err)
		d.Refused = &p
		return d, nil
	}
	if r.DiedFrom, r.DiedUntil, d.Refused = v.period(); d.Refused != nil {
		return d, nil
	}
	list, err := v.dead.ListDeadRuns(ctx, r)
	switch status.Code(err) {
	case codes.OK:
	case codes.InvalidArgument, codes.FailedPrecondition:
		p := problemOf(err)
		d.Refused = &p
		return d, nil
	default:
		return nil, err
	}
	d.Runs, d.Next, d.Groups = list.DeadRuns, list.NextPageToken, groupDead(list.DeadRuns)
	d.Total = v.deadTotal(ctx)
	return d, nil
}

// deadTotal returns the number of the tenant's dead runs, or -1.
func (v *view) deadTotal(ctx context.Context) int64 {
	counts, err := v.tasks.CountTasks(ctx, &perceptorv1.CountTasksRequest{})
	if err != nil {
		return -1
	}
	total := int64(0)
	for _, c := range counts.Counts {
		total += c.DeadRuns
	}
	return total
}

func groupDead(runs []*perceptorv1.DeadRun) []deadGroup {
	counts := map[deadGroup]int{}
	for _, r := range runs {
		counts[deadGroup{Reason: r.Reason, Kind: r.Kind}]++
	}
	groups := slices.Collect(maps.Keys(counts))
	for i := range groups {
		groups[i].Count = counts[groups[i]]
	}
	slices.SortFunc(groups, func(a, b deadGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Reason, b.Reason))
	})
	const maxGroups = 12
	return groups[:min(len(groups), maxGroups)]
}

func (v *view) showDead() (any, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	r, err := v.dead.GetDeadRun(ctx, &perceptorv1.GetDeadRunRequest{RunId: v.r.PathValue("run")})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func replayDead(v *view) (done, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return done{}, err
	}
	run := v.r.PathValue("run")
	a, err := v.dead.ReplayDeadRun(ctx, &perceptorv1.ReplayDeadRunRequest{RunId: run})
	if err != nil {
		return done{}, err
	}
	text := "Run " + run + " is replayed by a new task, due now."
	if a.Replayed {
		text = "Run " + run + " had been replayed before; nothing else was done."
	}
	return done{text: text, to: v.URL("dead"), link: v.taskURL(a.TaskId), linkText: "Show the task"}, nil
}

func purgeDead(v *view) (done, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return done{}, err
	}
	run := v.r.PathValue("run")
	_, err = v.dead.PurgeDeadRun(ctx, &perceptorv1.PurgeDeadRunRequest{RunId: run})
	return done{text: "Dead run " + run + " is deleted.", to: v.URL("dead")}, err
}
