package assign

import (
	"context"
	"errors"
	"time"
)

// MaxItems is the maximum number of items of one environment. The plan is one
// znode, and a znode has at most 1 MiB.
const MaxItems = 10_000

// Errors that [Assigner.Run] may return or wrap.
var (
	// ErrRunning: Run was called a second time. An Assigner runs once.
	ErrRunning = errors.New("assign: already run")
	// ErrFormat: the root belongs to another program or to a newer version of
	// this package. Run has not changed anything in it.
	ErrFormat = errors.New("assign: root has a foreign or newer format")
	// ErrUnreleased: the stop timeout passed before the worker had released all
	// items.
	ErrUnreleased = errors.New("assign: items not released in time")
)

// An Item is one share of the work. All members of an environment have the same
// list of items.
type Item struct {
	// ID identifies the item; unique, not negative.
	ID int `json:"id"`
	// Group says which items belong together, for example the shards of one
	// database. Items of a group stay on one member where that costs no
	// additional move, and each call of the [Worker] has items of one group.
	Group int `json:"group,omitempty"`
	// Param is passed to the worker unchanged.
	Param string `json:"param,omitempty"`
}

// A Worker does the work for the items of this member. Calls for different
// groups run concurrently; calls for one group do not.
type Worker interface {
	// Acquire starts the work for items, all of one group. It is called when
	// the plan names this member and no other member has the items, or when
	// another member did not release them within [Config.TakeoverAfter]. A
	// [Config.Fenced] worker must first fence off former owners, before it does
	// anything else. Acquire returns nil if it has acquired all items. After an
	// error the worker has none of them, and Acquire is called again with
	// increasing delay as long as the plan names this member. Acquire must
	// accept items that the worker already has.
	Acquire(ctx context.Context, items []Item) error

	// Release ends the work for items, all of one group, that were acquired. It
	// returns nil when the current batch is finished and the worker will do
	// nothing more for the items; then the next owner starts. After an error it
	// is called again. It must return when ctx ends.
	Release(ctx context.Context, items []Item) error
}

// An Assigner distributes items over members and calls its [Worker] for the
// items of this member. All methods may be called concurrently.
type Assigner interface {
	// Run takes part until ctx is cancelled; then it hands over all items and
	// returns nil. It returns an error at once if waiting cannot help
	// ([ErrFormat]), and [ErrUnreleased] if the worker did not release its
	// items in time.
	Run(ctx context.Context) error

	// Lost reports that the worker has found, by its fence, that it no longer
	// owns these items, and that it has stopped working for them. The member
	// acquires them again only if the current plan names it. Items that this
	// member does not have are ignored.
	Lost(ids ...int)

	// Snapshot returns the state as this member knows it. It never blocks and
	// needs no connection.
	Snapshot() Snapshot
}

// Events are callbacks for logs, metrics and tests. Each may be nil. They are
// called from Run's goroutine and must not block.
type Events struct {
	// Registered: this member has registered, possibly again, with a sequence
	// number.
	Registered func(seq int64)
	// Expired: the session has ended; this member is no longer listed.
	Expired func()
	// Connected is called when contact with ZooKeeper or the registry begins or ends.
	Connected func(bool)
	// Leading is called when this member becomes or stops being the leader.
	Leading func(bool)
	// Planned: this member, as the leader, has written a plan that moves items
	// away from connected members.
	Planned func(generation int64, moved int)
	// PlanRefused: this member's plan was refused because another one was
	// written first.
	PlanRefused func()
	// Acquired: the worker has acquired items. takenOver is the part of ids
	// that a connected member did not release in time.
	Acquired func(ids []int, takenOver []int, took time.Duration)
	// Released: the worker has released items.
	Released func(ids []int, took time.Duration)
	// Lost: the worker has reported items as lost.
	Lost func(ids []int)
	// CallFailed: Acquire or Release ("acquire", "release") returned an error.
	CallFailed func(call string, ids []int, err error)
}

// A Phase is the state of one item at one member.
type Phase uint8

// The phases, in the order in which an item passes through them.
const (
	// Absent: this member does not have the item and should not have it.
	Absent Phase = iota
	// Waiting: the plan names this member, but another one still has the item,
	// or nothing can be announced at the moment.
	Waiting
	// Announced: no other member may start; Acquire will be called.
	Announced
	// Acquiring: Acquire is running.
	Acquiring
	// Owned: Acquire has returned.
	Owned
	// Releasing: Release is running.
	Releasing
)

var phaseNames = [...]string{"absent", "waiting", "announced", "acquiring", "owned", "releasing"}

// String returns the name of the phase in lower case.
func (p Phase) String() string { return phaseNames[p] }

// A Snapshot is the state as one member knows it at one moment.
type Snapshot struct {
	// Self is the id of this member. It is random for each Assigner.
	Self string
	// At is when the snapshot was made.
	At time.Time
	// Connected: ZooKeeper or the registry has answered within two thirds of the
	// session.
	Connected bool
	// Registered: this member is listed.
	Registered bool
	// Fault is the error of the last exchange with ZooKeeper or the registry.
	// Empty: it succeeded.
	Fault string
	// State is the part that all members share.
	State
	// Items are all items of this member's configuration, by id.
	Items []ItemState
	// Counts since the start.
	Counts Counts
}

// A State is what every reader of the environment can know.
type State struct {
	// Leader is the id of the leader. Empty: unknown.
	Leader string
	// Generation is the number of the plan. 0: unknown.
	Generation int64
	// PlannedAt is when the plan was written, by the clock of its writer.
	PlannedAt time.Time
	// Recent lists the last plans, the current one last.
	Recent []Rebalancing
	// Strategy is the last strategy that could be read.
	Strategy Strategy
	// Faults describe stored data that could not be read.
	Faults []string
	// Members lists all registered members by sequence number. Their items and
	// figures may be as old as [Config.Reconcile].
	Members []MemberState
}

// Leading reports whether this member is the leader.
func (s Snapshot) Leading() bool { return s.Leader != "" && s.Leader == s.Self }

// Owned returns the ids of the items that this member owns, in ascending order.
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
	// Requested is the number of items that the plan assigns to it.
	Requested int
	// Barred: the strategy does not allow it to have items, because it is
	// drained or not among the hosts.
	Barred bool
	// Current lists the items that the member has, as it has announced them.
	Current []int
	// Heartbeat is when the member last published its items and figures, by its
	// own clock.
	Heartbeat time.Time
	// Figures are the member's own figures by name; see [Config.Figures].
	Figures map[string]int64
}

// MemberInfo is what a member publishes about itself.
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
	// Requested is the member that the plan names. Empty: none.
	Requested string
	// Without is the reason why the plan names no member. Empty: the plan names
	// one, or does not know the item.
	Without Reason
	// Current lists the members that have announced the item: none between two
	// owners, two only during a take-over. For other members it may be as old
	// as [Config.Reconcile].
	Current []string
	// Phase is the state of the item at this member.
	Phase Phase
}

// Counts are counters since the start.
type Counts struct {
	Registrations int64 // nodes created: one per session, and one for each node that was missing
	Plans         int64 // plans written
	PlansRefused  int64 // plans refused because another one was written first
	Moves         int64 // items that own plans moved away from connected members
	Acquired      int64 // items
	TakenOver     int64 // items, included in Acquired, that a connected member did not release in time
	Released      int64 // items
	Lost          int64 // items
	FailedCalls   int64 // calls of the worker
	FailedSteps   int64 // exchanges with ZooKeeper or the registry
	GarbledPlans  int64 // plans that could not be read
	CutOff        int64 // times that an unfenced member stopped at its deadline
}
