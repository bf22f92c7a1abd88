package assign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	core "github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/migrations"
)

// Where members meet.
const (
	InZooKeeper = "zookeeper"
	InPostgres  = "postgres"
)

// A meeting is the servers in which members meet, with the means to observe and disturb what is
// stored there. Its changes of what is stored ignore the rules of members, as an operator might.
type meeting interface {
	// addr returns the server of the nth member.
	addr(n int) string
	// join tells a member how to reach the servers through a proxy.
	join(c *memberConfig, p *testenv.Proxy) error
	// crowd returns what makes members of an environment that nobody else uses.
	crowd(name string, c core.Config) (newMember func(core.Worker) (core.Assigner, error))
	admin() (*core.Admin, error)
	// plan returns the stored plan, and a stamp that grows with each one. ok is false if none can
	// be read now.
	plan(ctx context.Context) (stamp int64, data []byte, ok bool)
	// garble overwrites the plan, the strategy or a member. remove deletes a member or something
	// that all members need. n chooses.
	garble(ctx context.Context, n int) error
	remove(ctx context.Context, n int) error
	// unlist removes a member from the list, by its id.
	unlist(ctx context.Context, id string) error

	hurt(r *rand.Rand) error
	kill() error
	restart(ctx context.Context) error
	stop(ctx context.Context) error
}

func startMeeting(ctx context.Context, o Options, dir string) (meeting, error) {
	if o.Assignment == InPostgres {
		return startHome(ctx, filepath.Join(dir, "home"))
	}
	return startEnsemble(ctx, filepath.Join(dir, "zookeeper"), o.Servers)
}

// An ensemble is a meeting in ZooKeeper.
type ensemble struct {
	*testenv.ZooKeeperEnsemble
	conn *zk.Conn // bypasses all proxies
}

func startEnsemble(ctx context.Context, dir string, servers int) (*ensemble, error) {
	e := &ensemble{}
	var err error
	if e.ZooKeeperEnsemble, err = testenv.StartZooKeeperEnsemble(ctx, dir, servers); err != nil {
		return nil, err
	}
	conn, events, err := zk.Connect(e.Addrs(), 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		return e, err
	}
	go func() {
		for range events { // until the connection is closed
		}
	}()
	e.conn = conn
	return e, nil
}

// silent discards the log of the ZooKeeper client.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (e *ensemble) addr(n int) string { return e.Addrs()[n%len(e.Addrs())] }

func (e *ensemble) join(c *memberConfig, p *testenv.Proxy) error {
	c.Servers, c.Root = []string{p.Addr()}, root
	return nil
}

func (e *ensemble) crowd(name string, c core.Config) func(core.Worker) (core.Assigner, error) {
	c.Servers, c.Root = e.Addrs(), root+"-"+name
	return func(w core.Worker) (core.Assigner, error) { return core.NewZooKeeper(c, w) }
}

func (e *ensemble) admin() (*core.Admin, error) {
	return core.NewAdmin(core.AdminConfig{Servers: e.Addrs(), Root: root})
}

// plan's stamp is the transaction that wrote it: a server that lags has a smaller one.
func (e *ensemble) plan(context.Context) (int64, []byte, bool) {
	data, stat, err := e.conn.Get(node("plan"))
	if err != nil {
		return 0, nil, false
	}
	return stat.Mzxid, data, true
}

func node(parts ...string) string {
	return path.Join(append([]string{root, "env", "BASE"}, parts...)...)
}

func (e *ensemble) garble(_ context.Context, n int) error {
	p := node([]string{"plan", "strategy", "members"}[n%3])
	if n%3 == 2 {
		var err error
		if p, err = e.childOf(p, n/3); p == "" {
			return err
		}
	}
	_, err := e.conn.Set(p, []byte("garbage"), -1)
	return err
}

// childOf returns the path of the child of a node that n selects, or "" if it has no children.
func (e *ensemble) childOf(node string, n int) (string, error) {
	names, _, err := e.conn.Children(node)
	if err != nil || len(names) == 0 {
		return "", err
	}
	slices.Sort(names)
	return path.Join(node, names[n%len(names)]), nil
}

// remove deletes the node of a member, of leaving members, or of the format.
func (e *ensemble) remove(_ context.Context, n int) error {
	p := []string{node("leaving"), root + "/format", node("members")}[n%3]
	if n%3 == 2 {
		var err error
		if p, err = e.childOf(p, n/3); p == "" {
			return err
		}
	}
	return e.conn.Delete(p, -1)
}

func (e *ensemble) unlist(_ context.Context, id string) error {
	names, _, err := e.conn.Children(node("members"))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "m-"+id+"-") })
	if i < 0 {
		return fmt.Errorf("%s is not listed", id)
	}
	return e.conn.Delete(node("members", names[i]), -1)
}

func (e *ensemble) hurt(r *rand.Rand) error {
	server := e.Servers[r.IntN(len(e.Servers))]
	if r.IntN(2) == 0 {
		return server.Pause()
	}
	return server.Kill()
}

func (e *ensemble) kill() error { return e.Kill() }

func (e *ensemble) restart(ctx context.Context) error { return e.Restart(ctx) }

func (e *ensemble) stop(ctx context.Context) error {
	if e.conn != nil {
		e.conn.Close()
	}
	return e.Stop(ctx)
}

// A home is a meeting in PostgreSQL, on a server that has nothing else.
type home struct {
	server *testenv.PostgresServer
	pool   *pgxpool.Pool // bypasses all proxies
	paused bool
}

// homeSchema has the tables.
const homeSchema = "perceptor_00"

func startHome(ctx context.Context, dir string) (*home, error) {
	h := &home{}
	var err error
	if h.server, err = testenv.StartPostgres(ctx, dir); err != nil {
		return nil, err
	}
	conf, err := pgx.ParseConfig(h.server.DSN())
	if err != nil {
		return h, err
	}
	if _, err := migrations.Up(ctx, conf, homeSchema); err != nil {
		return h, err
	}
	h.pool, err = openHome(ctx, h.server.DSN(), 30)
	return h, err
}

// openHome opens a pool whose connections find the tables.
func openHome(ctx context.Context, dsn string, conns int32) (*pgxpool.Pool, error) {
	conf, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read the connection string: %w", err)
	}
	conf.MaxConns = conns
	conf.ConnConfig.RuntimeParams["search_path"] = homeSchema
	return pgxpool.NewWithConfig(ctx, conf)
}

func (h *home) addr(int) string { return h.server.Addr() }

func (h *home) join(c *memberConfig, p *testenv.Proxy) (err error) {
	c.Home, err = p.Through(h.server.DSN())
	return err
}

func (h *home) crowd(name string, c core.Config) func(core.Worker) (core.Assigner, error) {
	c.Environment = name
	return func(w core.Worker) (core.Assigner, error) { return core.NewMember(c, postgres.New(h.pool), w) }
}

func (h *home) admin() (*core.Admin, error) { return core.NewRegistryAdmin(postgres.New(h.pool), "") }

func (h *home) plan(ctx context.Context) (stamp int64, data []byte, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := h.pool.QueryRow(ctx, "SELECT xmin::text::int8, data FROM assign_document WHERE environment = 'BASE' AND kind = 'plan'").Scan(&stamp, &data)
	return stamp, data, err == nil
}

func (h *home) change(ctx context.Context, statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := h.pool.Exec(ctx, statement, args...)
	return err
}

const oneMember = "id = (SELECT id FROM assign_member WHERE environment = 'BASE' ORDER BY id OFFSET $1 % (SELECT count(*) FROM assign_member WHERE environment = 'BASE') LIMIT 1)"

func (h *home) garble(ctx context.Context, n int) error {
	if n%3 == 2 {
		return h.change(ctx, "UPDATE assign_member SET data = 'garbage', version = version / 2 WHERE environment = 'BASE' AND "+oneMember, n/3)
	}
	return h.change(ctx, "UPDATE assign_document SET data = 'garbage', version = version / 2 WHERE environment = 'BASE' AND kind = $1", []string{"plan", "strategy"}[n%3])
}

// remove deletes a member, its lease, or the documents.
func (h *home) remove(ctx context.Context, n int) error {
	switch n % 3 {
	case 0:
		return h.change(ctx, "DELETE FROM assign_document WHERE environment = 'BASE' AND kind = 'plan'")
	case 1:
		return h.change(ctx, "DELETE FROM assign_lease WHERE environment = 'BASE' AND "+oneMember, n/3)
	}
	return h.change(ctx, "DELETE FROM assign_member WHERE environment = 'BASE' AND "+oneMember, n/3)
}

func (h *home) unlist(ctx context.Context, id string) error {
	return h.change(ctx, "DELETE FROM assign_member WHERE environment = 'BASE' AND id = $1", id)
}

func (h *home) hurt(r *rand.Rand) error {
	if r.IntN(2) == 0 {
		h.paused = true
		return h.server.Pause()
	}
	return h.kill()
}

func (h *home) kill() error { return h.server.Kill() }

// restart makes the server serve again, whatever was done to it.
func (h *home) restart(ctx context.Context) error {
	if h.paused {
		h.paused = false
		if err := h.server.Resume(); err != nil {
			return err
		}
	}
	if h.server.Answers(ctx) == nil {
		return nil
	}
	return h.server.Restart(ctx)
}

func (h *home) stop(ctx context.Context) error {
	if h.pool != nil {
		h.pool.Close()
	}
	return h.server.Stop(ctx)
}
