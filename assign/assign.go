package assign

import (
	"context"
	"errors"
	"time"
)

// MaxItems bounds the items of one environment: the plan is one znode, and a
// znode holds at most 1 MiB.
const MaxItems = 10_000

// Errors that [Assigner.Run] may return or wrap.
var (
	// ErrRunning: Run was called a second time. An Assigner runs once.
	ErrRunning = errors.New("assign: already run")
	// ErrFormat: the root belongs to another program or to a newer version of
	// this package. Nothing was changed in it.
	ErrFormat = errors.New("assign: root has a foreign or newer format")
	// ErrUnreleased: the stop time was spent before the worker let go of all
	// its items.
	ErrUnreleased = errors.New("assign: items not released in time")
)

// An Item is one share of the work. All members of an environment are given
// the same items.
type Item struct {
	// ID names the item; unique, not negative.
	ID int `json:"id"`
	// Group says which items belong together (the shards of one database, for
	// example): they stay on one member where that costs no extra move, and
	// each call to the [Worker] is about items of one group.
	Group int `json:"group,omitempty"`
	// Param is handed to the worker as it is.
	Param string `json:"param,omitempty"`
}

// A Worker does the work of the items that this member has. Calls for
// different groups run concurrently; calls for one group never do.
type Worker interface {
	// Acquire starts the work of items, all of one group. It is called when
	// the plan names this member and no other member has them, or when another
	// one has kept them for longer than [Config.TakeoverAfter]; a [Config.Fenced]
	// worker must make former owners powerless here, before it does anything
	// else. It returns nil when it has all items, else an error and has none:
	// it is called again, after a growing delay, while the current plan names
	// this member. Items that it believes to have already are taken anew.
	Acquire(ctx context.Context, items []Item) error

	// Release ends the work of items, all of one group, that Acquire has
	// taken. It returns nil when the current batch is finished and nothing will
	// be done for them any more: the next owner starts then. After an error it
	// is called again. When ctx ends the time is up.
	Release(ctx context.Context, items []Item) error
}

// An Assigner shares items between members and tells its [Worker] which ones
// this member has. All methods may be called concurrently.
type Assigner interface {
	// Run takes part until ctx is cancelled; then it hands over all items and
	// returns nil. It returns an error at once for what waiting cannot mend
	// ([ErrFormat]), and [ErrUnreleased] if the worker did not let go in time.
	Run(ctx context.Context) error

	// Lost says that the worker has found, by its fence, that it no longer has
	// these items, and does nothing for them any more. They are dropped, and
	// acquired again only if the plan as it is now names this member. Items
	// that this member does not have are ignored.
	Lost(ids ...int)

	// Snapshot says how things stand, as far as this member knows. It never
	// blocks and needs no connection.
	Snapshot() Snapshot
}

// Events are told to feed logs, metrics and tests. Each may be nil. They are
// called from Run's goroutine and must not block.
type Events struct {
	// Registered: this member has entered (again) with a sequence number.
	Registered func(seq int64)
	// Expired: the session is over; ZooKeeper has forgotten this member.
	Expired func()
	// Connected tells each change of contact with ZooKeeper.
	Connected func(bool)
	// Leading tells each change of this member's leadership.
	Leading func(bool)
	// Planned: this member, leading, has written a plan that moves items away
	// from live members.
	Planned func(generation int64, moved int)
	// PlanRefused: a plan of this member came too late, another was there.
	PlanRefused func()
	// Acquired: the worker has taken items; those in takenOver (part of ids)
	// from a live member that had kept them for too long.
	Acquired func(ids []int, takenOver []int, took time.Duration)
	// Released: the worker has let go of items.
	Released func(ids []int, took time.Duration)
	// Lost: the worker has reported items as lost.
	Lost func(ids []int)
	// CallFailed: Acquire or Release ("acquire", "release") returned an error.
	CallFailed func(call string, ids []int, err error)
}

// A Phase says what one member does with one item.
type Phase uint8

// The phases, in the order in which an item goes through them.
const (
	// Absent: not here, and not to come here.
	Absent Phase = iota
	// Waiting: the plan names this member; another one still has the item, or
	// nothing can be announced at the moment.
	Waiting
	// Announced: no other member may start; Acquire is about to be called (again).
	Announced
	// Acquiring: Acquire is running.
	Acquiring
	// Owned: Acquire has returned.
	Owned
	// Releasing: Release is running.
	Releasing
)

var phaseNames = [...]string{"absent", "waiting", "announced", "acquiring", "owned", "releasing"}

// String is the phase's name in small letters.
func (p Phase) String() string { return phaseNames[p] }

// A Snapshot is what one member knows at one moment.
type Snapshot struct {
	// Self is the id of this member, random for each Assigner.
	Self string
	// At is when the snapshot was made.
	At time.Time
	// Connected: the coordinator has answered within two thirds of the session.
	Connected bool
	// Registered: this member is listed.
	Registered bool
	// Fault says why the last exchange with the coordinator has failed; empty
	// if it has not.
	Fault string
	// State is what all members know.
	State
	// Items are all items of this member's configuration, by id.
	Items []ItemState
	// Counts since the start.
	Counts Counts
}

// A State is what everybody who reads the environment can know.
type State struct {
	// Leader is the id of the leading member, empty if unknown.
	Leader string
	// Generation is the number of the plan; 0 if none is known.
	Generation int64
	// PlannedAt is when the plan was written, by its writer's clock.
	PlannedAt time.Time
	// Recent are the last plans, this one last.
	Recent []Rebalancing
	// Strategy is the last one that could be read.
	Strategy Strategy
	// Faults say what stored data could not be read.
	Faults []string
	// Members are all registered members, by sequence number. What they hold
	// and publish may be as old as [Config.Reconcile].
	Members []MemberState
}

// Leading says whether this member leads.
func (s Snapshot) Leading() bool { return s.Leader != "" && s.Leader == s.Self }

// Owned are the ids that this member owns, ascending.
func (s Snapshot) Owned() []int {
	var ids []int
	for _, it := range s.Items {
		if it.Phase == Owned {
			ids = append(ids, it.ID)
		}
	}
	return ids
}

// A MemberState is what is known about one member.
type MemberState struct {
	ID      string
	Seq     int64
	Leaving bool
	Info    MemberInfo
	// Requested is how many items the plan gives it.
	Requested int
	// Barred: the strategy does not let it have items (drained, or not among
	// the hosts).
	Barred bool
	// Holds are the items that it holds, by its own account.
	Holds []int
	// Heartbeat is when it has published what it holds and its figures, by its
	// own clock.
	Heartbeat time.Time
	// Figures are its own, by name; see [Config.Figures].
	Figures map[string]int64
}

// MemberInfo is what a member says about itself.
type MemberInfo struct {
	Name    string    `json:"name"`
	Host    string    `json:"host,omitempty"`
	Address string    `json:"address,omitempty"`
	Version string    `json:"version,omitempty"`
	Started time.Time `json:"started"`
}

// An ItemState is what is known about one item.
type ItemState struct {
	Item
	// Requested is the member that the plan names; empty if none.
	Requested string
	// Without says why the plan names nobody; empty if it names somebody, or
	// does not know the item.
	Without Reason
	// Current are the members that hold it by their own account: none between
	// two owners, two only while one takes over. For other members it may be
	// as old as [Config.Reconcile].
	Current []string
	// Phase is what this member does with it.
	Phase Phase
}

// Counts only grow.
type Counts struct {
	Registrations int64 // own nodes made: one per session, and one for each that was found missing
	Plans         int64 // plans written
	PlansRefused  int64 // plans that came too late
	Moves         int64 // items moved away from live members by own plans
	Acquired      int64 // items
	TakenOver     int64 // items, out of Acquired, that a live member had kept for too long
	Released      int64 // items
	Lost          int64 // items
	FailedCalls   int64 // calls of the worker
	FailedSteps   int64 // exchanges with ZooKeeper
	GarbledPlans  int64 // plans that could not be read
	CutOff        int64 // times that an unfenced member stopped at its deadline
}
