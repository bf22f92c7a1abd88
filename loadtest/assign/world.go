package assign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgxpool"

	core "github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/internal/testenv"
)

const root = "/storm"

// Options say how large the world is.
type Options struct {
	// Member starts a member process: this program, with arguments that end in
	// [ServeMember].
	Member []string
	// Items are shared, in Groups; Servers is the size of the ensemble.
	Items, Groups, Servers int
	// Session, Takeover and Settle are those of all members.
	Session, Takeover, Settle time.Duration
	// MaxMembers bounds how many run at a time.
	MaxMembers int
	// Seed of everything random.
	Seed uint64
	// Progress is told what happens; Keep leaves data and logs behind.
	Progress func(format string, args ...any)
	Keep     bool
}

// DefaultOptions are those of the storm.
func DefaultOptions() Options {
	return Options{
		Items: 64, Groups: 4, Servers: 3, MaxMembers: 6,
		Session: 2 * time.Second, Takeover: time.Second, Settle: 300 * time.Millisecond,
	}
}

// A world is what members need: servers, and who looks at them.
type world struct {
	o        Options
	dir      *tempdir.Dir
	postgres *testenv.PostgresServer
	db       *pgxpool.Pool
	ensemble *testenv.ZooKeeperEnsemble
	hands    *zk.Conn // that change nodes
	byHand   sync.WaitGroup
	admin    *core.Admin
	members  []*member // alive, by age
	born     int
}

// A member is one process, and the proxy that it sees ZooKeeper through.
type member struct {
	name    string
	process *subprocess.Process
	proxy   *testenv.Proxy
	resume  time.Time // zero: it is not suspended
}

func newWorld(ctx context.Context, o Options) (w *world, err error) {
	w = &world{o: o}
	if w.dir, err = tempdir.New("perceptor-assign-", o.Keep); err != nil {
		return nil, err
	}
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) start(ctx context.Context) (err error) {
	w.o.Progress("starting PostgreSQL and %d ZooKeepers", w.o.Servers)
	if w.postgres, err = testenv.StartPostgres(ctx, filepath.Join(w.dir.Path, "postgres")); err != nil {
		return err
	}
	if w.db, err = openPostgres(ctx, w.postgres.DSN(), 4); err != nil {
		return err
	}
	if err := makeTables(ctx, w.db, w.o.Items); err != nil {
		return err
	}
	if w.ensemble, err = testenv.StartZooKeeperEnsemble(ctx, filepath.Join(w.dir.Path, "zookeeper"), w.o.Servers); err != nil {
		return err
	}
	conn, events, err := zk.Connect(w.ensemble.Addrs(), 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		return err
	}
	go func() {
		for range events { // until it is closed
		}
	}()
	w.hands = conn
	w.admin, err = core.NewAdmin(core.AdminConfig{Servers: w.ensemble.Addrs(), Root: root})
	return err
}

// silent keeps the log of the ZooKeeper client to itself.
type silent struct{}

func (silent) Printf(string, ...any) {}

// close ends everything; errors of members do not matter any more.
func (w *world) close() error {
	for _, m := range w.members {
		_ = m.process.Kill()
		m.proxy.Close()
	}
	if w.hands != nil {
		w.hands.Close()
	}
	w.byHand.Wait()
	if w.db != nil {
		w.db.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if w.ensemble != nil {
		errs = append(errs, w.ensemble.Stop(ctx))
	}
	if w.postgres != nil {
		errs = append(errs, w.postgres.Stop(ctx))
	}
	return errors.Join(append(errs, w.dir.Close(ctx))...)
}

// birth starts a member. Each begins with another server of the ensemble.
func (w *world) birth() (*member, error) {
	w.born++
	addrs := w.ensemble.Addrs()
	proxy, err := testenv.StartProxy(addrs[w.born%len(addrs)])
	if err != nil {
		return nil, err
	}
	m := &member{name: fmt.Sprintf("m%03d", w.born), proxy: proxy}
	conf, err := json.Marshal(memberConfig{
		Name: m.name, Servers: []string{proxy.Addr()}, Root: root, Postgres: w.postgres.DSN(), Items: w.o.Items, Groups: w.o.Groups,
		Session: w.o.Session, Takeover: w.o.Takeover, Settle: w.o.Settle, Pause: 120 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(w.dir.Path, m.name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(w.o.Member[0], w.o.Member[1:]...)
	cmd.Stdin, cmd.Stderr, cmd.Stdout = bytes.NewReader(conf), log, io.Discard
	if m.process, err = subprocess.Start(cmd, syscall.SIGKILL); err != nil {
		proxy.Close()
		return nil, err
	}
	w.members = append(w.members, m)
	return m, nil
}

// bury forgets a member whose process has ended.
func (w *world) bury(m *member) {
	m.proxy.Close()
	w.members = slices.DeleteFunc(w.members, func(o *member) bool { return o == m })
}

// suspend stops a member's process for a while; see [world.wakeUp].
func (w *world) suspend(m *member, d time.Duration) error {
	if err := m.process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	m.resume = time.Now().Add(d)
	return nil
}

// wakeUp lets members go on whose time has come; all of them, if asked.
func (w *world) wakeUp(all bool) error {
	for _, m := range w.members {
		if m.resume.IsZero() || !all && time.Now().Before(m.resume) {
			continue
		}
		m.resume = time.Time{}
		if err := m.process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
	}
	return nil
}

// died names members that have ended without being told to. That one which
// starts while the format's node is missing refuses the root is right.
func (w *world) died() error {
	var errs []error
	for _, m := range slices.Clone(w.members) {
		switch {
		case m.process.Running():
		case strings.Contains(w.lastWords(m), core.ErrFormat.Error()):
			w.bury(m)
		default:
			errs = append(errs, fmt.Errorf("member %s has ended: %s: %s", m.name, m.process.Exit(), w.lastWords(m)))
		}
	}
	return errors.Join(errs...)
}

func (w *world) lastWords(m *member) string {
	text, err := os.ReadFile(filepath.Join(w.dir.Path, m.name+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// await asks cond now and then until it is nil; else the last error is answered.
func await(ctx context.Context, limit time.Duration, cond func() error) (took time.Duration, err error) {
	began := time.Now()
	for {
		err := cond()
		if took = time.Since(began); err == nil || took > limit || ctx.Err() != nil {
			return took, err
		}
		sleep(ctx, 20*time.Millisecond)
	}
}
