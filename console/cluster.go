package console

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var (
	clusterPages   = []page{{path: "cluster", name: "cluster", title: "Cluster", section: "cluster", live: 5, show: (*view).cluster}}
	clusterActions = []action{{path: "cluster/strategy", back: "cluster", do: changeStrategy}}
)

// shardCount is the number of shards. Items from there on are the chores of databases.
const shardCount = 512

// clusterData is the data of the page Cluster.
type clusterData struct {
	Assignment *perceptorv1.Assignment
	Figures    *perceptorv1.ClusterFigures
	Owners     []ownerOf
	Problems   map[string]*problem
}

// ownerOf has the items of one owner, as the databases know them.
type ownerOf struct {
	Name           string // "": nobody
	Shards, Chores []int32
	// Lowest and Highest are the epochs of the items.
	Lowest, Highest int64
}

func (v *view) cluster() (any, error) {
	ctx, err := v.asOperator()
	if err != nil {
		return nil, err
	}
	d := &clusterData{Problems: map[string]*problem{}}
	var asking sync.WaitGroup // at once: each waits for what does not answer
	var ofAssignment error
	asking.Go(func() {
		d.Assignment, ofAssignment = v.assignment.GetAssignment(ctx, &perceptorv1.GetAssignmentRequest{})
	})
	d.Figures, err = v.monitoring.GetClusterFigures(ctx, &perceptorv1.GetClusterFiguresRequest{OmitFindings: true})
	asking.Wait()
	if status.Code(err) == codes.PermissionDenied {
		return nil, err
	}
	if err := v.missingPart(d.Problems, "figures", err); err != nil {
		return nil, err
	}
	if err := v.missingPart(d.Problems, "assignment", ofAssignment); err != nil {
		return nil, err
	}
	d.Owners = ownersOf(d.Figures, d.Assignment)
	return d, nil
}

// ownersOf groups the items by owner. The databases know the owners even without a
// coordinator.
func ownersOf(f *perceptorv1.ClusterFigures, a *perceptorv1.Assignment) []ownerOf {
	by := map[string]*ownerOf{}
	add := func(item int32, name string, epoch int64) {
		o := by[name]
		if o == nil {
			o = &ownerOf{Name: name, Lowest: epoch}
			by[name] = o
		}
		if item < shardCount {
			o.Shards = append(o.Shards, item)
		} else {
			o.Chores = append(o.Chores, item-shardCount)
		}
		o.Lowest, o.Highest = min(o.Lowest, epoch), max(o.Highest, epoch)
	}
	for _, db := range f.GetDatabases() {
		for _, i := range db.Owners {
			add(i.Item, i.Owner, i.Epoch)
		}
	}
	if len(by) == 0 {
		for _, i := range a.GetItems() {
			name := ""
			if len(i.Current) > 0 {
				name = i.Current[0]
			}
			add(i.Item, name, i.Epoch)
		}
	}
	var owners []ownerOf
	for _, name := range slices.Sorted(maps.Keys(by)) {
		o := by[name]
		slices.Sort(o.Shards)
		slices.Sort(o.Chores)
		owners = append(owners, *o)
	}
	return owners
}

// Rebalances returns the last rebalances, the newest first.
func (d *clusterData) Rebalances() []*perceptorv1.Rebalance {
	list := slices.Clone(d.Assignment.GetRebalances())
	slices.SortFunc(list, func(a, b *perceptorv1.Rebalance) int { return cmp.Compare(b.Generation, a.Generation) })
	return list
}

// Drained reports whether the strategy drains a member.
func (d *clusterData) Drained(m *perceptorv1.AssignmentMember) bool {
	drained := d.Assignment.GetStrategy().GetDrained()
	return slices.Contains(drained, m.Name) || slices.Contains(drained, m.Id) || slices.Contains(drained, m.Host) || slices.Contains(drained, m.Address)
}

// changeStrategy drains, undrains, pins, unpins, pauses or resumes.
func changeStrategy(v *view) (done, error) {
	ctx, err := v.asOperator()
	if err != nil {
		return done{}, err
	}
	r, text := &perceptorv1.UpdateStrategyRequest{}, ""
	member, items := v.Query("member"), v.Query("items")
	switch v.Query("do") {
	case "drain":
		r.Drain, text = []string{member}, member+" hands over its items and stays connected."
	case "undrain":
		r.Undrain, text = []string{member}, member+" may have items again."
	case "pin":
		r.Pin, text = map[string]string{member: items}, "Only "+member+" may have the items "+items+"."
	case "unpin":
		r.Unpin, text = items, "The items "+items+" are not pinned any more."
	case "pause":
		r.PauseItems, text = items, "The items "+items+" are paused: they have no owner."
	case "resume":
		r.ResumeItems, text = items, "The items "+items+" are resumed."
	case "pause-all", "resume-all":
		paused := v.Query("do") == "pause-all"
		r.Paused, text = &paused, "All items are "+map[bool]string{true: "paused.", false: "resumed."}[paused]
	default:
		return done{}, status.Error(codes.InvalidArgument, "unknown change of the strategy")
	}
	_, err = v.assignment.UpdateStrategy(ctx, r)
	return done{text: text, to: v.URL("cluster")}, err
}

// Count is the number of items of an owner, in words.
func (o *ownerOf) Count() string {
	return strconv.Itoa(len(o.Shards)) + " shards, " + strconv.Itoa(len(o.Chores)) + " chores"
}
