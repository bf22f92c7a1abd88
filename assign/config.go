package assign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
)

// A Config configures an [Assigner]. Zero fields have the default given for
// them. Fields without a default are required.
type Config struct {
	// Servers lists the ZooKeeper servers, host:port. Required with ZooKeeper. Names are
	// resolved at each attempt to connect.
	Servers []string
	// Root is the path of all nodes (default /assign). It must be empty,
	// missing, or created by this package.
	Root string
	// Environment separates clusters that share a root (default BASE; called
	// OwnSign in tbschedule). Letters, digits, '-', '_' and '.', at most 64.
	Environment string
	// Items lists the items to distribute, at most [MaxItems]. Required. It
	// should be the same for all members; if not, the leader's list counts.
	Items []Item

	// Name, Host, Address and Version are published for people. Two members may
	// have the same name.
	Name, Host, Address, Version string

	// MaxItems is the maximum number of items of one member (default 0: no
	// limit). The leader's value counts, unless the [Strategy] has one. Items
	// beyond the limits have no owner; the leader logs them, and [Snapshot] and
	// [Admin] report them.
	MaxItems int
	// Figures, if set, returns figures about the work that are published with
	// each heartbeat, at most [MaxFigures]. It is called from Run's goroutine
	// and must not block.
	Figures func() map[string]int64
	// HeartbeatEvery is the interval at which this member publishes a heartbeat
	// and its figures (default 5s).
	HeartbeatEvery time.Duration
	// StaleAfter is how long an environment of the root must be without members
	// before the leaders of other environments remove it with its strategy
	// (default 24h).
	StaleAfter time.Duration

	// Fenced says that the worker's Acquire fences off former owners, by an
	// epoch in a database that every transaction asserts. A fenced member keeps
	// working during any outage of ZooKeeper or the registry, and may take over items from a
	// connected member that does not release them. An unfenced member releases
	// its items when nobody has answered for two thirds of the session,
	// and waits for other members as long as their sessions last.
	Fenced bool
	// TakeoverAfter is how long a fenced member waits for another one to
	// release an item, from when it first saw the request (default 5s).
	TakeoverAfter time.Duration
	// SessionTimeout is how long a member is listed without contact (default 10s,
	// at least 1s). ZooKeeper may grant another one, which is then used.
	SessionTimeout time.Duration
	// RebalanceDelay is how long the leader waits for members that vanished to
	// return, and for others to join, before it writes a new plan (default
	// 500ms). It does not wait for members that announce that they leave.
	RebalanceDelay time.Duration
	// Reconcile is the interval at which everything is read again even if no
	// watch has fired (default 10s).
	Reconcile time.Duration
	// CallTimeout bounds each call of the worker (default 30s). After that the
	// call's context ends and the call counts as failed.
	CallTimeout time.Duration
	// StopTimeout bounds the hand-over after Run was cancelled (default 30s).
	StopTimeout time.Duration

	// User and Password, if set, are the digest credentials for ZooKeeper. All
	// nodes are then accessible to this user only. Nodes that were created without
	// a user are restricted when all members have one.
	User, Password string

	// Log gets messages about items that change their owner (default:
	// slog.Default()).
	Log *slog.Logger
	// Events are callbacks for metrics and tests.
	Events Events
	// Dial opens connections (default: net.Dialer).
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (c Config) withDefaults() Config {
	if c.Root == "" {
		c.Root = "/assign"
	}
	if c.Environment == "" {
		c.Environment = "BASE"
	}
	defaultTo(&c.TakeoverAfter, 5*time.Second)
	defaultTo(&c.SessionTimeout, 10*time.Second)
	defaultTo(&c.RebalanceDelay, 500*time.Millisecond)
	defaultTo(&c.Reconcile, 10*time.Second)
	defaultTo(&c.HeartbeatEvery, 5*time.Second)
	defaultTo(&c.StaleAfter, 24*time.Hour)
	defaultTo(&c.CallTimeout, 30*time.Second)
	defaultTo(&c.StopTimeout, 30*time.Second)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	return c
}

func defaultTo(d *time.Duration, v time.Duration) {
	if *d == 0 {
		*d = v
	}
}

// Validate returns all faults for a member that uses ZooKeeper at once, each with
// field, value and rule.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf("assign: "+format, a...)) }
	if len(c.Servers) == 0 {
		fault("Servers: empty: must name at least one host:port")
	}
	for _, s := range c.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			fault("Servers: %q: must be host:port", s)
		}
	}
	if !validRoot(c.Root) {
		fault("Root: %q: must be an absolute path without empty, \".\" or \"..\" parts, and not /zookeeper", c.Root)
	}
	if (c.User == "") != (c.Password == "") || strings.Contains(c.User, ":") {
		fault("User, Password: must be given both or neither, and User has no colon")
	}
	return errors.Join(append(faults, c.validateShared())...)
}

// validateShared validates the fields that do not depend on where members meet.
func (c Config) validateShared() error {
	c = c.withDefaults()
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf("assign: "+format, a...)) }
	if !validName(c.Environment) {
		faults = append(faults, c.environmentFault())
	}
	if err := validateItems(c.Items); err != nil {
		faults = append(faults, err)
	}
	if c.SessionTimeout < time.Second {
		fault("SessionTimeout: %v: must be at least 1s", c.SessionTimeout)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"TakeoverAfter", c.TakeoverAfter}, {"RebalanceDelay", c.RebalanceDelay}, {"Reconcile", c.Reconcile},
		{"CallTimeout", c.CallTimeout}, {"StopTimeout", c.StopTimeout},
		{"HeartbeatEvery", c.HeartbeatEvery}, {"StaleAfter", c.StaleAfter},
	} {
		if f.d < 0 {
			fault("%s: %v: must be positive", f.name, f.d)
		}
	}
	if c.MaxItems < 0 {
		fault("MaxItems: %d: must not be negative", c.MaxItems)
	}
	return errors.Join(faults...)
}

func (c Config) environmentFault() error {
	return fmt.Errorf("assign: Environment: %q: must be 1 to 64 letters, digits, '-', '_' or '.', and start with a letter or digit", c.Environment)
}

func validateItems(items []Item) error {
	if len(items) == 0 || len(items) > MaxItems {
		return fmt.Errorf("assign: Items: %d items: must be 1 to %d", len(items), MaxItems)
	}
	seen := make(map[int]bool, len(items))
	for _, it := range items {
		if it.ID < 0 {
			return fmt.Errorf("assign: Items: id %d: must not be negative", it.ID)
		}
		if seen[it.ID] {
			return fmt.Errorf("assign: Items: id %d: must be unique", it.ID)
		}
		seen[it.ID] = true
	}
	return nil
}

func validRoot(root string) bool {
	if !strings.HasPrefix(root, "/") || len(root) > 512 || root == "/" {
		return false
	}
	for part := range strings.SplitSeq(root[1:], "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return false
		}
	}
	return root != "/zookeeper" && !strings.HasPrefix(root, "/zookeeper/")
}

func validName(s string) bool {
	if s == "" || len(s) > 64 || s[0] == '-' || s[0] == '_' || s[0] == '.' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		return !letter && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

func (c Config) info(started time.Time) MemberInfo {
	return MemberInfo{Name: c.Name, Host: c.Host, Address: c.Address, Version: c.Version, Started: started}
}
