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

	"github.com/jackc/pgx/v5/pgxpool"

	core "github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/internal/testenv"
)

const root = "/storm"

// Options describe a world.
type Options struct {
	// Member is the command line of a member process: this program, with arguments that
	// make it call [ServeMember].
	Member []string
	// Items is the number of items, Groups the number of their groups, and Servers the
	// size of the ensemble.
	Items, Groups, Servers int
	// Assignment is where members meet: [InZooKeeper] or [InPostgres].
	Assignment string
	// Session is the session timeout of all members, Takeover their take-over delay, and
	// Settle their rebalance delay.
	Session, Takeover, Settle time.Duration
	// MaxMembers bounds the number of members at a time.
	MaxMembers int
	// Seed makes all random choices repeatable.
	Seed uint64
	// Progress receives messages about each step. Keep keeps data and logs at the end.
	Progress func(format string, args ...any)
	Keep     bool
}

// DefaultOptions returns the options of the storm.
func DefaultOptions() Options {
	return Options{
		Items: 64, Groups: 4, Servers: 3, MaxMembers: 6, Assignment: InZooKeeper,
		Session: 2 * time.Second, Takeover: time.Second, Settle: 300 * time.Millisecond,
	}
}

// A world is a set of members with their servers and the clients that observe and disturb them.
type world struct {
	o        Options
	dir      *tempdir.Dir
	postgres *testenv.PostgresServer
	db       *pgxpool.Pool
	meeting  meeting
	byHand   sync.WaitGroup // direct changes of what is stored
	admin    *core.Admin
	members  []*member // alive, the oldest first
	born     int
}

// A member is one process with the proxy through which it meets others.
type member struct {
	name    string
	process *subprocess.Process
	proxy   *testenv.Proxy
	resume  time.Time // end of the suspension; zero: not suspended
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
	w.o.Progress("starting PostgreSQL, and the servers of the assignment in %s", w.o.Assignment)
	if w.postgres, err = testenv.StartPostgres(ctx, filepath.Join(w.dir.Path, "postgres")); err != nil {
		return err
	}
	if w.db, err = openPostgres(ctx, w.postgres.DSN(), 4); err != nil {
		return err
	}
	if err := makeTables(ctx, w.db, w.o.Items); err != nil {
		return err
	}
	if w.meeting, err = startMeeting(ctx, w.o, w.dir.Path); err != nil {
		return err
	}
	w.admin, err = w.meeting.admin()
	return err
}

// close ends all members, connections and servers. It ignores errors of members.
func (w *world) close() error {
	for _, m := range w.members {
		_ = m.process.Kill()
		m.proxy.Close()
	}
	w.byHand.Wait()
	if w.db != nil {
		w.db.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if w.meeting != nil {
		errs = append(errs, w.meeting.stop(ctx))
	}
	if w.postgres != nil {
		errs = append(errs, w.postgres.Stop(ctx))
	}
	return errors.Join(append(errs, w.dir.Close(ctx))...)
}

// startMember starts a member. The members take the servers in turn.
func (w *world) startMember() (*member, error) {
	w.born++
	proxy, err := testenv.StartProxy(w.meeting.addr(w.born))
	if err != nil {
		return nil, err
	}
	m := &member{name: fmt.Sprintf("m%03d", w.born), proxy: proxy}
	mc := memberConfig{
		Name: m.name, Postgres: w.postgres.DSN(), Items: w.o.Items, Groups: w.o.Groups,
		Session: w.o.Session, Takeover: w.o.Takeover, Settle: w.o.Settle, Pause: 120 * time.Millisecond,
	}
	if err := w.meeting.join(&mc, proxy); err != nil {
		return nil, err
	}
	conf, err := json.Marshal(mc)
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

// forgetMember removes a member whose process has ended.
func (w *world) forgetMember(m *member) {
	m.proxy.Close()
	w.members = slices.DeleteFunc(w.members, func(o *member) bool { return o == m })
}

// suspend stops a member's process; [world.wakeUp] resumes it after d. A process that has ended
// is left to [world.died], which knows why.
func (w *world) suspend(m *member, d time.Duration) error {
	switch err := m.process.Signal(syscall.SIGSTOP); {
	case errors.Is(err, os.ErrProcessDone):
		return nil
	case err != nil:
		return err
	}
	m.resume = time.Now().Add(d)
	return nil
}

// wakeUp resumes the members whose suspension is over, or all suspended members.
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

// died returns an error that names the members that ended without a signal. A member that
// starts while the node of the format is missing rightly refuses the root: died only
// forgets it.
func (w *world) died() error {
	var errs []error
	for _, m := range slices.Clone(w.members) {
		switch {
		case m.process.Running():
		case strings.Contains(w.lastWords(m), core.ErrFormat.Error()):
			w.forgetMember(m)
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

// await calls cond until it returns nil, limit is over or ctx ends. It returns cond's last error.
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

// A checker observes a world from outside. Its figures may be read after run has returned.
type checker struct {
	w        *world
	maxIdle  time.Duration // the longest idle time of an item that is allowed
	mu       sync.Mutex
	broken   []string
	reported map[string]bool

	plan       int64 // stamp of the last plan seen
	generation int64
	epochs     map[int]int64
	idlest     time.Duration
	looks      int
}

func newChecker(w *world, maxIdle time.Duration) *checker {
	return &checker{w: w, maxIdle: maxIdle, reported: map[string]bool{}, epochs: map[int]int64{}}
}

// violate records a violation, once for each key.
func (c *checker) violate(key, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reported[key] {
		return
	}
	c.reported[key] = true
	what := fmt.Sprintf(format, args...)
	c.broken = append(c.broken, what)
	c.w.o.Progress("VIOLATION: %s", what)
}

func (c *checker) violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.broken)
}

// run checks plans and work until ctx ends.
func (c *checker) run(ctx context.Context) error {
	var err error
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			c.lookAtPlan(ctx)
			sleep(ctx, 25*time.Millisecond)
		}
	})
	for ctx.Err() == nil {
		err = c.lookAtWork(ctx)
		if err != nil && ctx.Err() == nil {
			break
		}
		sleep(ctx, 100*time.Millisecond)
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lookAtPlan requires that each new plan has a higher generation.
func (c *checker) lookAtPlan(ctx context.Context) {
	stamp, data, ok := c.w.meeting.plan(ctx)
	if !ok || stamp <= c.plan {
		return // the server is down, or lags
	}
	var p struct {
		Generation int64  `json:"generation"`
		Writer     string `json:"writer"`
	}
	if json.Unmarshal(data, &p) != nil || p.Generation == 0 {
		return // no plan yet, or the storm has overwritten it
	}
	if c.plan = stamp; p.Generation <= c.generation {
		c.violate(fmt.Sprint("plan", p.Generation), "plan %d of %s replaced plan %d", p.Generation, p.Writer, c.generation)
	}
	c.generation = max(c.generation, p.Generation)
}

// lookAtWork reads the work on each item and checks epochs and idle times.
func (c *checker) lookAtWork(ctx context.Context) error {
	rows, err := c.w.db.Query(ctx, `SELECT w.item, o.epoch, w.epoch, w.overtaken, w.name,
		extract(epoch FROM clock_timestamp() - w.worked_at)::float8 FROM item_work w JOIN item_owner o USING (item)`)
	if err != nil {
		return fmt.Errorf("read the work: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var item int
		var epoch, worked, overtaken int64
		var name string
		var seconds float64
		if err := rows.Scan(&item, &epoch, &worked, &overtaken, &name, &seconds); err != nil {
			return err
		}
		idle := time.Duration(seconds * float64(time.Second))
		c.idlest = max(c.idlest, idle)
		if overtaken > 0 {
			c.violate(fmt.Sprint("overtaken", item), "item %d: work was done with an epoch that was no longer the newest (last work by %s with epoch %d, the owner has epoch %d)", item, name, worked, epoch)
		}
		if epoch < c.epochs[item] {
			c.violate(fmt.Sprint("epoch", item), "item %d: epoch %d follows epoch %d", item, epoch, c.epochs[item])
		}
		if worked > epoch {
			c.violate(fmt.Sprint("worked", item), "item %d: work was done with epoch %d, but the newest epoch is %d", item, worked, epoch)
		}
		if idle > c.maxIdle {
			c.violate(fmt.Sprint("idle", item), "item %d: idle for %v, at most %v is allowed", item, idle.Round(time.Millisecond), c.maxIdle)
		}
		c.epochs[item] = epoch
	}
	c.looks++
	return rows.Err()
}

// settled returns nil if every item has one owner, a living member, according to both
// the list of members and the epochs, and the loads of members differ by at most one.
func (w *world) settled(ctx context.Context) error {
	o, err := w.overview(ctx)
	if err != nil {
		return err
	}
	if len(o.Members) != len(w.members) {
		return fmt.Errorf("%d members are listed, want the %d that are alive", len(o.Members), len(w.members))
	}
	names, loads := map[string]string{}, map[string]int{}
	for _, m := range o.Members {
		if !slices.ContainsFunc(w.members, func(own *member) bool { return own.name == m.Info.Name }) {
			return fmt.Errorf("%s is listed, but it is dead", m.Info.Name) // its session has not ended yet
		}
		names[m.ID], loads[m.Info.Name] = m.Info.Name, 0
	}
	if len(loads) != len(w.members) {
		return fmt.Errorf("%d of %d members are listed", len(loads), len(w.members))
	}
	owners, err := w.owners(ctx)
	if err != nil {
		return err
	}
	if len(o.Items) != w.o.Items {
		return fmt.Errorf("%d of %d items are planned", len(o.Items), w.o.Items)
	}
	for _, it := range o.Items {
		name := names[it.Requested]
		switch {
		case name == "":
			return fmt.Errorf("item %d is planned for %q, which is not a member", it.ID, it.Requested)
		case len(it.Current) != 1 || it.Current[0] != it.Requested:
			return fmt.Errorf("item %d is planned for %s, but its current owners are %v", it.ID, name, it.Current)
		case owners[it.ID] != name:
			return fmt.Errorf("item %d is planned for %s, but %q works for it", it.ID, name, owners[it.ID])
		}
		loads[name]++
	}
	least, most := w.o.Items, 0
	for _, n := range loads {
		least, most = min(least, n), max(most, n)
	}
	if most-least > 1 {
		return fmt.Errorf("loads %v differ by more than one", loads)
	}
	return nil
}

func (w *world) overview(ctx context.Context) (core.Overview, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return w.admin.Overview(ctx)
}

// owners returns the name of the member that worked for each item with the newest epoch.
func (w *world) owners(ctx context.Context) (map[int]string, error) {
	rows, err := w.db.Query(ctx, "SELECT w.item, w.name FROM item_work w JOIN item_owner o USING (item) WHERE w.epoch = o.epoch AND w.name = o.name")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	owners := map[int]string{}
	for rows.Next() {
		var item int
		var name string
		if err := rows.Scan(&item, &name); err != nil {
			return nil, err
		}
		owners[item] = name
	}
	return owners, errors.Join(rows.Err())
}
