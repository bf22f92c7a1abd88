package assign

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// Errors of an [Admin].
var (
	// ErrNotFound: the environment does not exist, because no member has ever
	// registered in it.
	ErrNotFound = errors.New("assign: no such environment")
	// ErrNoAnswer: the server did not answer in time. It is unknown whether a
	// change was made; repeating it is safe.
	ErrNoAnswer = errNoAnswer
	// ErrContended: other callers kept changing the strategy at the same time.
	ErrContended = errors.New("assign: other callers keep changing the strategy")
)

// adminTries is the number of servers that a call tries.
const adminTries = 3

// editTries bounds how often an edit is repeated because another caller changed
// the strategy first.
const editTries = 20

// An AdminConfig selects the environment of an [Admin]. The fields are those of
// [Config] with the same name.
type AdminConfig struct {
	Servers        []string
	Root           string
	Environment    string
	User, Password string
	// Timeout bounds each request to ZooKeeper, including the wait for a
	// connection (default 5s). A call without an answer is repeated through
	// another server; up to three servers are tried.
	Timeout time.Duration
	Log     *slog.Logger
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// An Admin reads an environment from outside and changes its [Strategy]. It is
// not a member. With ZooKeeper each call opens and closes a connection of its own.
// All methods may be called concurrently.
type Admin struct {
	cfg  Config
	rows Registry // nil: ZooKeeper
}

// NewAdmin returns all faults of cfg at once. It does not connect.
func NewAdmin(cfg AdminConfig) (*Admin, error) {
	defaultTo(&cfg.Timeout, 5*time.Second)
	c := Config{
		Servers: cfg.Servers, Root: cfg.Root, Environment: cfg.Environment, User: cfg.User, Password: cfg.Password,
		SessionTimeout: max(4*cfg.Timeout, time.Second), Log: cfg.Log, Dial: cfg.Dial, Items: []Item{{}},
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Admin{cfg: c.withDefaults()}, nil
}

// NewRegistryAdmin returns an Admin of an environment of a registry; empty: of BASE.
func NewRegistryAdmin(r Registry, environment string) (*Admin, error) {
	c := Config{Environment: environment}.withDefaults()
	if !validName(c.Environment) {
		return nil, c.environmentFault()
	}
	return &Admin{cfg: c, rows: r}, nil
}

// An Overview is the content of an environment's nodes at one moment.
type Overview struct {
	State
	// Items are the items that the plan, the strategy or a member names, by id.
	// Only members know the groups, parameters and phases of items.
	Items []ItemState
}

// Overview reads the environment. It returns [ErrNotFound] if no member has
// ever registered.
func (a *Admin) Overview(ctx context.Context) (Overview, error) {
	var o Overview
	err := a.with(ctx, func(e outside) error {
		if err := e.check(ctx); err != nil {
			return err
		}
		v, err := e.read(ctx, reading{all: true})
		if missing(err) {
			return fmt.Errorf("%w: %s", ErrNotFound, a.cfg.Environment)
		}
		if err != nil {
			return err
		}
		o = Overview{State: v.state(), Items: v.items()}
		return nil
	})
	return o, err
}

// items returns the items that anything in the view names.
func (v *view) items() []ItemState {
	plan := v.proposal()
	current, _ := v.currentOwners("")
	known := map[int]bool{}
	for _, ids := range []func(func(int) bool){maps.Keys(plan.Owners), maps.Keys(plan.Without), maps.Keys(current)} {
		for id := range ids {
			known[id] = true
		}
	}
	var items []ItemState
	for id := range known {
		items = append(items, ItemState{
			Item: Item{ID: id}, Requested: plan.Owners[id], Without: plan.Without[id], Current: current[id],
		})
	}
	sortItems(items)
	return items
}

// Edit reads the strategy, passes it to change and writes the result, unless
// another caller has written it meanwhile; then it starts again, so change may
// be called more than once. It returns the stored strategy. If change modifies
// nothing, Edit writes nothing. After an error of change or of
// [Strategy.Validate] the strategy stays as it is. Edit creates an environment
// that does not exist.
func (a *Admin) Edit(ctx context.Context, change func(*Strategy) error) (Strategy, error) {
	var written Strategy
	err := a.with(ctx, func(e outside) error {
		if err := e.prepare(ctx); err != nil {
			return err
		}
		for range editTries {
			s, version, err := toEdit(ctx, e)
			if err != nil {
				return err
			}
			before := encodeStrategy(s)
			if err := change(s); err != nil {
				return err
			}
			if err := s.Validate(); err != nil {
				return err
			}
			if bytes.Equal(encodeStrategy(s), before) {
				written = *s
				return nil
			}
			if err := e.writeStrategy(ctx, s, version); !changed(err) {
				written = *s
				return err
			}
		}
		return ErrContended
	})
	return written, err
}

// Reset writes the zero strategy. It works even if the stored one cannot be
// read.
func (a *Admin) Reset(ctx context.Context) error {
	return a.with(ctx, func(e outside) error {
		if err := e.prepare(ctx); err != nil {
			return err
		}
		return e.writeStrategy(ctx, &Strategy{}, anyVersion)
	})
}

// strategyNow reads the strategy to change it.
func (t *tree) strategyNow(ctx context.Context) ([]byte, int64, error) {
	data, stat, err := t.get(ctx, t.strategy, false)
	return data, int64(stat.Version), err
}

// toEdit returns the strategy with its version.
func toEdit(ctx context.Context, e outside) (*Strategy, int64, error) {
	data, version, err := e.strategyNow(ctx)
	if err != nil || len(data) == 0 {
		return &Strategy{}, version, err
	}
	s, err := decodeStrategy(data)
	return s, version, err
}

// An EnvironmentState is an element of [Admin.Environments].
type EnvironmentState struct {
	Name    string `json:"name"`
	Members int    `json:"members"`
}

// Environments lists the environments of the root that this user may read, by
// name.
func (a *Admin) Environments(ctx context.Context) ([]EnvironmentState, error) {
	var all []EnvironmentState
	err := a.with(ctx, func(e outside) error {
		if err := e.check(ctx); err != nil {
			return err
		}
		var err error
		all, err = e.environments(ctx)
		return err
	})
	slices.SortFunc(all, func(a, b EnvironmentState) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

func (t *tree) environments(ctx context.Context) (all []EnvironmentState, err error) {
	names, err := t.children(ctx, t.envs, false)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, err
	}
	for _, name := range names {
		members, err := t.children(ctx, t.of(name).members, false)
		if errors.Is(err, zk.ErrNoAuth) {
			continue
		}
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		all = append(all, EnvironmentState{name, len(members)})
	}
	return all, nil
}

// check refuses a root of another program. It creates nothing.
func (t *tree) check(ctx context.Context) error {
	data, _, err := t.get(ctx, t.format, false)
	if errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: %s", ErrNotFound, t.env)
	}
	if err != nil {
		return err
	}
	return checkFormat(data)
}

// with calls f with the environment. With ZooKeeper it uses a session of its own,
// and if a server does not answer, it tries another one. So f may be called more
// than once and must be idempotent.
func (a *Admin) with(ctx context.Context, f func(outside) error) (err error) {
	if a.rows != nil {
		return f(rowsOutside{a.rows, a.cfg.Environment})
	}
	cfg := a.cfg
	at := rand.IntN(len(cfg.Servers))
	for range min(adminTries, len(cfg.Servers)) {
		cfg.Servers = slices.Concat(a.cfg.Servers[at:], a.cfg.Servers[:at])
		if err = a.once(ctx, cfg, f); !errors.Is(err, ErrNoAnswer) || ctx.Err() != nil {
			return err
		}
		at = (at + 1) % len(cfg.Servers)
	}
	return err
}

func (a *Admin) once(ctx context.Context, cfg Config, f func(outside) error) error {
	s, err := newSession(cfg, nil)
	if err != nil {
		return err
	}
	defer s.close()
	t := newTree(s, cfg)
	if err := t.authenticate(ctx); err != nil {
		return err
	}
	return f(t)
}
