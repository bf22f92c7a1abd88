package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store"
)

// homeDatabase is the number of the database in which dispatchers agree, or which says that they
// agree in ZooKeeper.
const homeDatabase = 0

// placesFigure is the figure of a dispatcher that counts the places in which it can agree.
const placesFigure = "places"

// places returns the names of the places for which a process is configured.
func places(c *config.Config) []string {
	if len(c.ZooKeeper.Servers) == 0 {
		return []string{config.InPostgres}
	}
	return []string{config.InPostgres, config.InZooKeeper}
}

// newMember returns the member of a dispatcher, which follows the place that is in force.
func newMember(c *config.Config, cluster *store.Cluster, conf assign.Config, w assign.Worker) (*assign.Follower, error) {
	registry := postgres.New(cluster.Pool(homeDatabase))
	makers := map[string]func(assign.Worker) (assign.Assigner, error){
		config.InPostgres: func(w assign.Worker) (assign.Assigner, error) { return newTableMember(c, registry, conf, w) },
		config.InZooKeeper: func(w assign.Worker) (assign.Assigner, error) {
			return newZooKeeperMember(c, conf, w)
		},
	}
	follow := assign.FollowConfig{
		Ask:    registry.Authority,
		Places: map[string]func(assign.Worker) (assign.Assigner, error){}, Default: c.Coordinator(), Items: conf.Items, Log: conf.Log,
	}
	for _, place := range places(c) {
		follow.Places[place] = makers[place]
	}
	return assign.NewFollower(follow, w)
}

func newZooKeeperMember(c *config.Config, conf assign.Config, w assign.Worker) (assign.Assigner, error) {
	dial, err := zookeeperDial(c.ZooKeeper.TLS, conf.Log)
	if err != nil {
		return nil, err
	}
	z := &c.ZooKeeper
	conf.Servers, conf.Root, conf.Environment, conf.User, conf.Password = z.Servers, z.Root, z.Environment, z.User, z.Password
	conf.TakeoverAfter, conf.SessionTimeout, conf.Dial = z.TakeoverAfter, z.SessionTimeout, dial
	return assign.NewZooKeeper(conf, w)
}

func newTableMember(c *config.Config, registry assign.Registry, conf assign.Config, w assign.Worker) (assign.Assigner, error) {
	conf.TakeoverAfter, conf.SessionTimeout = c.Leases.TakeoverAfter, c.Leases.SessionTimeout
	return assign.NewMember(conf, registry, w)
}

// An Assignment reads and changes the assignment of the dispatchers, wherever they agree. All
// methods may be called concurrently.
type Assignment struct {
	config   *config.Config
	timeout  time.Duration
	registry *postgres.Registry // nil: Postgres is not configured
}

// NewAssignment returns an Assignment. It opens no connection. timeout bounds each request to
// ZooKeeper. cluster may be nil if dispatchers agree in ZooKeeper and were never moved.
func NewAssignment(c *config.Config, cluster *store.Cluster, timeout time.Duration) *Assignment {
	a := &Assignment{config: c, timeout: timeout}
	if cluster != nil {
		a.registry = postgres.New(cluster.Pool(homeDatabase))
	}
	return a
}

// Place returns where dispatchers agree: [config.InPostgres] or [config.InZooKeeper].
func (a *Assignment) Place(ctx context.Context) (string, error) {
	if a.registry != nil {
		if now, err := a.registry.Authority(ctx); err != nil || now.Place != "" {
			return now.Place, err
		}
	}
	return a.config.Coordinator(), nil
}

// Admin returns what works in the place where dispatchers agree now. If that is not known
// because database 0 does not answer, it is the configured one.
func (a *Assignment) Admin(ctx context.Context) (admin *assign.Admin, place string, err error) {
	asking, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if place, err = a.Place(asking); err != nil {
		place = a.config.Coordinator()
	}
	admin, err = a.in(place)
	return admin, place, err
}

// in returns what works in a place.
func (a *Assignment) in(place string) (*assign.Admin, error) {
	switch {
	case place == config.InPostgres && a.registry != nil:
		return assign.NewRegistryAdmin(a.registry, "")
	case place == config.InPostgres:
		return nil, errors.New("postgres.servers: is missing, and dispatchers agree in Postgres")
	case len(a.config.ZooKeeper.Servers) == 0:
		return nil, errors.New("zookeeper.servers: is missing, and dispatchers agree in ZooKeeper")
	}
	z := &a.config.ZooKeeper
	dial, err := zookeeperDial(z.TLS, slog.Default())
	if err != nil {
		return nil, err
	}
	admin, err := assign.NewAdmin(assign.AdminConfig{
		Servers: z.Servers, Root: z.Root, Environment: z.Environment, User: z.User, Password: z.Password, Timeout: a.timeout, Dial: dial,
	})
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	return admin, nil
}

// ErrUnmovable says that a dispatcher could not follow a move.
var ErrUnmovable = errors.New("not every dispatcher can follow")

// Move makes the dispatchers agree in another place, and waits until all of them do. It takes the
// strategy along. Nothing is changed unless every dispatcher can follow. If ctx ends while it
// waits, the move goes on, and calling Move again waits for its end.
func (a *Assignment) Move(ctx context.Context, to string, progress func(format string, args ...any)) error {
	if a.registry == nil {
		return errors.New("postgres.servers: is missing, and database 0 says where dispatchers agree")
	}
	now, err := a.registry.Authority(ctx)
	if err != nil {
		return fmt.Errorf("read where dispatchers agree: %w", err)
	}
	from := now.Place
	if from == "" {
		from = a.config.Coordinator()
	}
	target, err := a.in(to)
	if err != nil {
		return err
	}
	if from == to {
		progress("dispatchers agree in %s already", to)
		return a.awaitMembers(ctx, target, nil, progress)
	}
	source, err := a.in(from)
	if err != nil {
		return err
	}
	before, err := source.Overview(ctx)
	if err != nil && !errors.Is(err, assign.ErrNotFound) {
		return err
	}
	if err := a.prepareMove(ctx, target, before); err != nil {
		return err
	}
	if err := a.registry.MoveAuthority(ctx, to, now.Version); err != nil {
		return fmt.Errorf("say where dispatchers agree: %w", err)
	}
	progress("dispatchers agree in %s from now on; waiting for %d of them", to, len(before.Members))
	return a.awaitMembers(ctx, target, before.Members, progress)
}

// prepareMove checks that all members can follow, and takes the strategy along.
func (a *Assignment) prepareMove(ctx context.Context, target *assign.Admin, before assign.Overview) error {
	if len(before.Faults) > 0 {
		return fmt.Errorf("%w: %s", assign.ErrStrategy, strings.Join(before.Faults, "; "))
	}
	var stay []string
	for _, m := range before.Members {
		if m.Figures[placesFigure] < 2 {
			stay = append(stay, m.Info.Name)
		}
	}
	if len(stay) > 0 {
		return fmt.Errorf("%w: configure postgres.servers and zookeeper.servers and restart: %s", ErrUnmovable, strings.Join(stay, ", "))
	}
	_, err := target.Edit(ctx, func(s *assign.Strategy) error { *s = before.Strategy; return nil })
	return err
}

// moveLook is how often Move looks whether dispatchers have followed.
const moveLook = 250 * time.Millisecond

// awaitMembers waits until the members named are in the target, and all planned items have their owners.
func (a *Assignment) awaitMembers(ctx context.Context, target *assign.Admin, members []assign.MemberState, progress func(string, ...any)) error {
	for {
		left, err := missingIn(ctx, target, members)
		if err == nil && left == "" {
			progress("all dispatchers have followed, and all planned items have their owners")
			return nil
		}
		if err != nil {
			left = err.Error()
		}
		if !ctxtime.Sleep(ctx, moveLook) {
			return fmt.Errorf("the move goes on, and is not complete: %s: %w", left, ctx.Err())
		}
	}
}

// missingIn says what is missing until members have moved; empty: nothing.
func missingIn(ctx context.Context, target *assign.Admin, members []assign.MemberState) (string, error) {
	o, err := target.Overview(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range members {
		if !slices.ContainsFunc(o.Members, func(n assign.MemberState) bool { return n.Info.Name == m.Info.Name }) {
			return fmt.Sprintf("dispatcher %s has not followed", m.Info.Name), nil
		}
	}
	waiting := 0
	for _, it := range o.Items {
		if it.Requested != "" && !slices.Equal(it.Current, []string{it.Requested}) {
			waiting++
		}
	}
	if waiting > 0 || len(o.Members) > 0 && o.Generation == 0 {
		return fmt.Sprintf("%d of %d items are still moving", waiting, len(o.Items)), nil
	}
	return "", nil
}
