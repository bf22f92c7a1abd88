package imports

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/tenantload"
	"github.com/perceptor/perceptor/loadtest/workload"
)

const (
	buildLimit  = 5 * time.Minute
	callLimit   = time.Minute
	sampleEvery = 500 * time.Millisecond
	othersCalm  = 5 * time.Second // before the other tenant is measured
	drainLimit  = 2 * time.Minute
	// ctlName is the name of perceptorctl among the parts.
	ctlName = "perceptorctl"
	// downFor is how long a killed part is away.
	downFor = 2 * time.Second
)

// build compiles perceptorctl. The working directory must be inside the module.
func (r *runner) build(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	r.program = filepath.Join(r.dir, ctlName)
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", r.program, "github.com/perceptor/perceptor/cmd/perceptorctl")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build perceptorctl: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// command returns a call of perceptorctl for the stack's tenant.
func (r *runner) command(args ...string) *exec.Cmd {
	address, _, _ := strings.Cut(r.stack.Address, ",")
	more := []string{"--address", address}
	if r.stack.CAFile != "" {
		more = append(more, "--tls-ca-file", r.stack.CAFile)
	}
	cmd := exec.Command(r.program, append(more, args...)...)
	cmd.Env = append(os.Environ(), "PERCEPTOR_TOKEN="+r.stack.Token)
	cmd.Dir = r.dir
	return cmd
}

// ctl is perceptorctl while it imports. It is a [harness.Source].
type ctl struct {
	mu      sync.Mutex
	process *subprocess.Process
	stdout  bytes.Buffer
	log     string
}

// start starts a process whose output is kept.
func (c *ctl) start(cmd *exec.Cmd) (*subprocess.Process, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the process has it
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stdout.Reset()
	cmd.Stdout, cmd.Stderr = &c.stdout, log
	c.process, err = subprocess.Start(cmd, syscall.SIGKILL)
	return c.process, err
}

func (c *ctl) now() *subprocess.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

// PID implements [harness.Source].
func (c *ctl) PID() int {
	if p := c.now(); p != nil && p.Running() {
		return p.PID()
	}
	return 0
}

// CPUTime implements [harness.Source].
func (c *ctl) CPUTime() (time.Duration, error) {
	pid := c.PID()
	if pid == 0 {
		return 0, errors.New("it does not run")
	}
	return subprocess.CPUTime(pid)
}

// importFile imports the file beside the load of the other tenant.
func (r *runner) importFile(ctx context.Context, name string, m made) (err error) {
	others, err := r.joinOthers(ctx)
	if err != nil {
		return err
	}
	alone := time.Now()
	if others != nil {
		defer others.Close(ctx) //nolint:errcheck // the next run removes leftovers
		r.Say("the other tenant is alone for %s", r.Alone)
		others.AddUntil(ctx, time.Now().Add(24*time.Hour))
		alone = time.Now().Add(othersCalm)
		if err := harness.SleepUntil(ctx, alone.Add(r.Alone)); err != nil {
			return err
		}
	}
	began := time.Now()
	err = r.measure(ctx, name, m, others)
	ended := time.Now()
	if others == nil {
		return err
	}
	others.StopAdds()
	drained := others.Drain(ctx, drainLimit)
	if err := errors.Join(err, drained, others.Leave(ctx)); err != nil {
		return err
	}
	return r.othersFigures(others, alone, began, ended)
}

func (r *runner) joinOthers(ctx context.Context) (*tenantload.Load, error) {
	if r.Others == 0 {
		return nil, nil
	}
	plan := workload.Plan{Kind: "others", Rate: r.Others, Delay: workload.Delay{Min: time.Second, Max: 3 * time.Second}, Seed: r.Seed}
	types, err := workload.Types("one_shot")
	if err != nil {
		return nil, err
	}
	plan.Types = types
	return tenantload.Join(ctx, r.stack, &r.Setup, tenantload.Config{Tenant: "others", Plan: plan, Workers: 64})
}

func (r *runner) othersFigures(l *tenantload.Load, alone, began, ended time.Time) error {
	before, err := l.Check(alone, began, nil)
	if err != nil {
		return err
	}
	during, err := l.Check(began, ended, nil)
	if err != nil {
		return err
	}
	r.report.OthersBefore, r.report.OthersDuring = harness.QuantilesOf(before.Figures.Lateness), harness.QuantilesOf(during.Figures.Lateness)
	r.report.OthersP99Before, r.report.OthersP99During = r.report.OthersBefore.P99, r.report.OthersDuring.P99
	for kind, n := range during.Violations {
		if n > 0 {
			r.report.fault("the other tenant: %s %d", kind, n)
		}
	}
	return nil
}

// measure imports the file and measures.
func (r *runner) measure(ctx context.Context, name string, m made, others *tenantload.Load) error {
	c := &ctl{log: filepath.Join(r.dir, "perceptorctl.log")}
	sources := map[string]harness.Source{ctlName: c}
	if others != nil {
		for name, s := range others.Sources() {
			sources[name] = s
		}
	}
	meter := harness.NewMeter(r.stack, sources)
	stop := r.sample(ctx, meter)
	defer stop()
	wal, err := r.wal(ctx)
	if err != nil {
		return err
	}
	counted, err := r.statements(ctx)
	if err != nil {
		return err
	}
	used, began := meter.Sample(), time.Now()
	err = r.drive(ctx, c, name, began)
	took := time.Since(began)
	r.report.ImportS = harness.Round(took.Seconds())
	if err != nil {
		return err
	}
	r.report.LinesPerS = harness.Round(float64(m.sum.Count) / took.Seconds())
	r.report.CPU = harness.NewCPU(harness.Used(used, meter.Sample()), m.sum.Count)
	executed, err := r.statements(ctx)
	if err != nil {
		return err
	}
	r.report.Statements = executed.Since(counted, took)
	written, err := r.wal(ctx)
	if err != nil {
		return err
	}
	r.report.WALBytesPerTask = harness.Round(float64(written-wal) / float64(m.sum.Count))
	return r.measureDisk(ctx, m.sum.Count)
}

// wal returns the bytes of write-ahead log, read by a connection of its own, because the server may be killed meanwhile.
func (r *runner) wal(ctx context.Context) (int64, error) {
	db, err := harness.Dial(ctx, r.stack.Postgres())
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return db.WAL(ctx)
}

// statements returns what PostgreSQL has executed, if that is counted.
func (r *runner) statements(ctx context.Context) (harness.StatementCounts, error) {
	if !r.Setup.Statements {
		return nil, nil
	}
	db, err := harness.Dial(ctx, r.stack.Postgres())
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return db.Statements(ctx)
}

// measureDisk measures what the tasks take on disk.
func (r *runner) measureDisk(ctx context.Context, tasks int64) error {
	db, err := harness.Dial(ctx, r.stack.Postgres())
	if err != nil {
		return err
	}
	defer db.Close()
	sizes, err := db.Sizes(ctx)
	if err != nil {
		return err
	}
	sum := int64(0)
	for kind, size := range sizes {
		if strings.HasPrefix(kind, "far_") || kind == "task" || kind == "task_key" || strings.HasPrefix(kind, "idempotency") {
			sum += size.Total()
		}
	}
	r.report.BytesPerTask = harness.Round(float64(sum) / float64(tasks))
	return nil
}

// sample records the largest memory of each process, and its processor time, which a process takes along, until it is
// stopped.
func (r *runner) sample(ctx context.Context, m *harness.Meter) (stop func()) {
	r.report.MaxRSS = map[string]float64{}
	return harness.Repeat(ctx, sampleEvery, func() {
		m.Sample()
		for name, bytes := range m.MemoryByName() {
			r.report.MaxRSS[name] = max(r.report.MaxRSS[name], harness.MiB(bytes))
		}
	})
}

// drive imports, and resumes as often as perceptorctl is killed.
func (r *runner) drive(ctx context.Context, c *ctl, name string, began time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	var killing sync.WaitGroup
	defer killing.Wait()
	defer cancel()
	killed := make(chan struct{}, len(r.Crashes)+1)
	failed := make(chan error, len(r.Crashes)+1)
	for _, d := range r.Crashes {
		killing.Go(func() { failed <- r.crash(ctx, c, d, began, killed) })
	}
	args := []string{"-o", "json", "import", name, "--max-rejects", "1"}
	for {
		p, err := c.start(r.command(args...))
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), p.Kill())
		case <-p.Done():
		}
		select {
		case <-killed:
			r.report.Resumed++
			id, err := r.open(ctx)
			if err != nil {
				return err
			}
			args = []string{"-o", "json", "import", "resume", id, "--max-rejects", "1"}
			if id == "" { // it was killed before it had made the import
				args = []string{"-o", "json", "import", name, "--max-rejects", "1"}
			}
			continue
		default:
		}
		select {
		case err := <-failed:
			if err != nil {
				return err
			}
		default:
		}
		return r.result(c, p)
	}
}

// result takes the result of an import that has ended.
func (r *runner) result(c *ctl, p *subprocess.Process) error {
	said, _ := os.ReadFile(c.log)
	var out struct {
		Import struct{ AddedCount, LineCount, Checksum string }
	}
	if err := json.Unmarshal(c.stdout.Bytes(), &out); err != nil {
		return fmt.Errorf("perceptorctl ended (%s) without a result: %s", p.Exit(), tail(said))
	}
	r.report.Said = out.Import.AddedCount
	if r.report.Said != fmt.Sprint(r.Tasks) {
		r.report.fault("the import says that %s tasks were added, and the file has %d lines", r.report.Said, r.Tasks)
	}
	return nil
}

func tail(text []byte) string { return string(text[max(0, len(text)-2000):]) }

// crash kills a part at its time, and starts it again.
func (r *runner) crash(ctx context.Context, c *ctl, d scenario.Disturbance, began time.Time, killed chan<- struct{}) error {
	if err := harness.SleepUntil(ctx, began.Add(d.After)); err != nil {
		return nil //nolint:nilerr // the import has ended before
	}
	r.Say("killing %s", d.Part)
	r.report.kill(d.Part)
	if d.Part == ctlName {
		killed <- struct{}{}
		return c.now().Kill()
	}
	part, err := r.stack.Part(d.Part)
	if err != nil {
		return err
	}
	if err := part.Kill(); err != nil {
		return err
	}
	_ = harness.Sleep(ctx, downFor) // it must run again, also if the import has ended
	restart, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	return part.Restart(restart)
}

// open returns the id of the import that is open, or "".
func (r *runner) open(ctx context.Context) (string, error) {
	var page struct{ Imports []struct{ ID, State string } }
	for until := time.Now().Add(callLimit); ; {
		text, err := r.command("-o", "json", "import", "list").Output()
		if err == nil {
			err = json.Unmarshal(text, &page)
		}
		if err == nil {
			break
		}
		if time.Now().After(until) {
			return "", fmt.Errorf("list the imports: %w", err)
		}
		if err := harness.Sleep(ctx, time.Second); err != nil {
			return "", err
		}
	}
	for _, i := range page.Imports {
		if i.State == "OPEN" {
			return i.ID, nil
		}
	}
	return "", nil
}

// fireAfter is when the tasks that fire are due.
const fireAfter = 5 * time.Second

// fire imports tasks that are due at once, and counts their calls.
func (r *runner) fire(ctx context.Context) error {
	const kind = "fire"
	c, err := client.New(r.stack.Client(r.stack.Token))
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // no call is in progress
	var mu sync.Mutex
	called := map[string]bool{}
	stop, err := harness.Listen(ctx, c, client.ListenerConfig{Workers: 64}, kind, func(_ context.Context, run *client.Run) error {
		mu.Lock()
		defer mu.Unlock()
		called[run.Params["n"]] = true
		return nil
	})
	if err != nil {
		return err
	}
	defer stop()
	text := []byte("kind,type,begin_time,params.n\n")
	begin := time.Now().Add(fireAfter).UTC().Format(timeForm)
	for i := range r.Fires {
		text = fmt.Appendf(text, "%s,ONE_SHOT,%s,%d\n", kind, begin, i)
	}
	cmd := r.command("-o", "json", "import", "-", "--format", "csv")
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, tail(out))
	}
	for until := time.Now().Add(drainLimit); ; {
		mu.Lock()
		r.report.Fired = len(called)
		mu.Unlock()
		if r.report.Fired == r.Fires {
			return nil
		}
		if time.Now().After(until) {
			r.report.fault("%d of %d tasks that were due were called", r.report.Fired, r.Fires)
			return nil
		}
		if err := harness.Sleep(ctx, sampleEvery); err != nil {
			return err
		}
	}
}
