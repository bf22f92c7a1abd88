package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/compare/phase"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	// unlimited is above what two callers can add per second: the quota is counted and refuses
	// nothing.
	unlimited = 1_000_000
	// readyLimit bounds the wait for the listener's partitions.
	readyLimit = time.Minute
)

// A Peer has the figures of a contestant in the phase burst. Those of several rounds are medians,
// each figure by itself.
type Peer struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// WholePerS is the number of jobs by the time from the first add to the last completion,
	// InsertedPerS by that of the adds.
	WholePerS    float64 `json:"whole_per_s"`
	InsertedPerS float64 `json:"inserted_per_s"`
	// UsPerJob is the processor time of all processes, PostgresUs that of PostgreSQL.
	UsPerJob   float64 `json:"us_per_job"`
	PostgresUs float64 `json:"postgres_us_per_job"`
	// P50Ms, P99Ms and MaxMs are of the lateness.
	P50Ms float64 `json:"p50_ms"`
	P99Ms float64 `json:"p99_ms"`
	MaxMs float64 `json:"max_ms"`
	// WholePerSOf has the rate of each round.
	WholePerSOf []float64 `json:"whole_per_s_of"`
	Violations  int64     `json:"violations"`
	Failed      string    `json:"failed,omitempty"`

	rounds []*Peer
}

// analyzed is the contestant that is the full stack with an ANALYZE of the whole database when the
// last job was added, as a cron job of an operator may do it.
const analyzed = "full-stack, ANALYZE"

// bursts measures all contestants, which take turns.
func (r *runner) bursts(ctx context.Context) (peers []*Peer) {
	w := phase.Work{Phase: phase.Burst, Jobs: r.Jobs, ParamsBytes: r.ParamsBytes, Ahead: r.burstAhead, Spread: r.burstSpread}
	type turn struct {
		*Peer
		measure func() (measured, error)
	}
	var turns []turn
	for _, c := range contestants() {
		if len(r.Only) > 0 && !slices.Contains(r.Only, c.name) || c.noBurst {
			continue
		}
		if c.prepare == nil {
			for _, name := range []string{c.name, analyzed} {
				turns = append(turns, turn{&Peer{Name: name}, func() (measured, error) { return r.stackBurst(ctx, w, name == analyzed) }})
			}
			continue
		}
		p := &Peer{Name: c.name}
		program, err := c.prepare(ctx, r)
		if err != nil {
			p.Failed = err.Error()
		}
		turns = append(turns, turn{p, func() (measured, error) { return r.measure(ctx, program, c.name, w) }})
	}
	for round := range r.Rounds {
		for _, t := range turns {
			if t.Failed != "" || ctx.Err() != nil {
				continue
			}
			r.Say("round %d, %s: %s", round+1, t.Name, w)
			if m, err := t.measure(); err != nil {
				t.Failed = err.Error()
				r.Say("%s: %s", t.Name, t.Failed)
			} else {
				t.add(w, m)
			}
		}
	}
	for _, t := range turns {
		t.settle()
		peers = append(peers, t.Peer)
	}
	return peers
}

// add adds the figures of a round.
func (p *Peer) add(w phase.Work, m measured) {
	jobs := float64(w.Jobs)
	if m.Version != "" {
		p.Version = m.Version
	}
	p.Violations += m.Violations
	p.rounds = append(p.rounds, &Peer{
		WholePerS: jobs / m.WholeS, InsertedPerS: jobs / m.EnqueueS,
		UsPerJob: (m.CPUS + m.postgres.Seconds()) * 1e6 / jobs, PostgresUs: m.postgres.Seconds() * 1e6 / jobs,
		P50Ms: m.LatenessMs.P50, P99Ms: m.LatenessMs.P99, MaxMs: m.LatenessMs.Max,
	})
}

// settle sets the figures to the medians of the rounds.
func (p *Peer) settle() {
	if len(p.rounds) == 0 {
		return
	}
	median := func(of func(*Peer) float64) float64 {
		all := make([]float64, len(p.rounds))
		for i, round := range p.rounds {
			all[i] = of(round)
		}
		slices.Sort(all)
		return harness.Round((all[(len(all)-1)/2] + all[len(all)/2]) / 2)
	}
	for _, round := range p.rounds {
		p.WholePerSOf = append(p.WholePerSOf, harness.Round(round.WholePerS))
	}
	p.WholePerS = median(func(r *Peer) float64 { return r.WholePerS })
	p.InsertedPerS = median(func(r *Peer) float64 { return r.InsertedPerS })
	p.UsPerJob = median(func(r *Peer) float64 { return r.UsPerJob })
	p.PostgresUs = median(func(r *Peer) float64 { return r.PostgresUs })
	p.P50Ms = median(func(r *Peer) float64 { return r.P50Ms })
	p.P99Ms = median(func(r *Peer) float64 { return r.P99Ms })
	p.MaxMs = median(func(r *Peer) float64 { return r.MaxMs })
}

func (r *Report) burstTable(b *harness.Table) {
	fmt.Fprintf(b, "\na burst of %d jobs of %d bytes by two callers in batches of 1,000, each due %g to %g s after its batch was built; PostgreSQL %s, %d cores\n",
		r.Jobs, r.ParamsBytes, r.BurstS[0], r.BurstS[1], r.Versions["postgres"], r.Machine.Cores)
	fmt.Fprintf(b, "  whole/s: from the first add to the last completion; µs: processor time per job of all processes, and of PostgreSQL; lateness in ms\n\n")
	const format = "  %-20s %-8s %9s %9s %7s %9s %9s %9s %9s %11s\n"
	fmt.Fprintf(b, format, "", "version", "whole/s", "adds/s", "µs", "postgres", "p50", "p99", "max", "violations")
	for _, p := range r.Peers {
		fmt.Fprintf(b, format, p.Name, p.Version, orDash("%.0f", p.WholePerS), orDash("%.0f", p.InsertedPerS), orDash("%.0f", p.UsPerJob), orDash("%.0f", p.PostgresUs),
			orDash("%.0f", p.P50Ms), orDash("%.0f", p.P99Ms), orDash("%.0f", p.MaxMs), fmt.Sprint(p.Violations))
		if p.Failed != "" {
			fmt.Fprintf(b, "    failed: %s\n", p.Failed)
		}
	}
}

// stackBurst measures a burst on a new stack with the defaults of an installation. One process, this
// one, adds the jobs and handles them by the SDK, as the programs of the others do.
func (r *runner) stackBurst(ctx context.Context, w phase.Work, analyze bool) (m measured, err error) {
	o := r.Setup
	if o.Real.Taskds == 0 || o.Real.Dispatchers == 0 {
		d := harness.DefaultStack()
		o.Real.Taskds, o.Real.Dispatchers, o.Real.Session, o.Real.Kafka = d.Taskds, d.Dispatchers, d.Session, d.Kafka
	}
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	return harness.WithStack(ctx, &o, func(ctx context.Context, s *stack.Stack) (m measured, err error) {
		p, err := r.newStackProgram(ctx, s, w, analyze)
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, p.close()) }()
		var stretch *harness.Stretch
		var used harness.Usage
		meter := harness.NewMeter(s, nil)
		out := &output{
			begin: func() (err error) {
				stretch, err = harness.BeginStretch(ctx, meter, s.Postgres())
				return err
			},
			end: func() (err error) {
				used, err = stretch.End(ctx)
				stretch = nil
				return err
			},
		}
		defer func() {
			if stretch != nil {
				_, _ = stretch.End(ctx)
			}
		}()
		runner := phase.Runner{Work: w, Program: p, Tally: p.tally, Batch: addTasks, Adders: addCalls, Out: lines{out}}
		if err := runner.Run(ctx); err != nil {
			return m, err
		}
		if m.Result, err = out.done(w); err != nil {
			return m, err
		}
		m.postgres, m.wal = harness.TimeOf(used.CPU, "postgres"), used.WAL
		m.CPUS = 0 // that of this process is among the others
		for _, d := range used.CPU {
			m.CPUS += d.Seconds()
		}
		m.CPUS -= m.postgres.Seconds()
		return m, nil
	})
}

// lines passes the events of a program in this process on.
type lines struct{ *output }

// Write implements [io.Writer]. Each event is one write.
func (l lines) Write(p []byte) (int, error) { return len(p), l.line(bytes.TrimSpace(p)) }

var _ io.Writer = lines{}

// stackProgram implements [phase.Program] by the SDK.
type stackProgram struct {
	stack   *stack.Stack
	token   string
	work    phase.Work
	analyze bool
	tally   *phase.Tally
	pad     string
	client  *client.Client
	ready   chan struct{}
	stop    func() error
}

func (r *runner) newStackProgram(ctx context.Context, s *stack.Stack, w phase.Work, analyze bool) (*stackProgram, error) {
	token, err := s.CreateTenantAs(ctx, &perceptorv1.Tenant{Name: "burst", AddRate: unlimited})
	if err != nil {
		return nil, err
	}
	c, err := client.New(s.Client(token))
	if err != nil {
		return nil, err
	}
	return &stackProgram{
		stack: s, token: token, work: w, analyze: analyze, tally: phase.NewTally(w.Jobs), client: c, ready: make(chan struct{}), stop: func() error { return nil },
		pad: strings.Repeat("x", max(0, w.ParamsBytes-len(`{"n":"","pad":""}`)-len(strconv.Itoa(w.Jobs)))),
	}, nil
}

func (p *stackProgram) close() error { return errors.Join(p.stop(), p.client.Close()) }

// Add implements [phase.Program].
func (p *stackProgram) Add(ctx context.Context, from, to int, due func(n int) time.Time) error {
	list := make([]client.Task, 0, to-from)
	for n := from; n < to; n++ {
		list = append(list, client.Task{
			Kind: engineKind, Type: client.OneShot, Begin: due(n), Params: map[string]string{"n": strconv.Itoa(n), "pad": p.pad},
		})
	}
	added, err := p.client.AddTasks(ctx, list)
	if err != nil {
		return err
	}
	for _, a := range added {
		if a.Err != nil {
			return a.Err
		}
	}
	return nil
}

// Added implements [phase.Program].
func (p *stackProgram) Added(ctx context.Context) error {
	if !p.analyze {
		return nil
	}
	return harness.Exec(ctx, p.stack.Postgres(), "ANALYZE")
}

// Start implements [phase.Program]. It returns when the listener has its partitions.
func (p *stackProgram) Start(ctx context.Context) error {
	accepted, ready := task.Accepted.String(), sync.OnceFunc(func() { close(p.ready) })
	l, err := p.client.NewListener(client.ListenerConfig{Workers: stackWorkers, Events: client.Events{
		Assigned: func([]int) { ready() },
		Reported: func(_ client.Delivery, code string) {
			if code == accepted {
				p.tally.Completed(1)
			}
		},
	}})
	if err != nil {
		return err
	}
	l.Handle(engineKind, p.handle)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	p.stop = func() error { cancel(); return <-done }
	select {
	case <-p.ready:
		return nil
	case <-time.After(readyLimit):
		return fmt.Errorf("the listener has no partitions after %v", readyLimit)
	}
}

func (p *stackProgram) handle(_ context.Context, run *client.Run) error {
	n, err := strconv.Atoi(run.Params["n"])
	if err != nil || run.Params["pad"] != p.pad {
		n = -1
	}
	p.tally.LateBy(float64(time.Since(run.ScheduledAt).Microseconds()) / 1000)
	p.tally.Ran(n)
	return nil
}

// AwaitAll implements [phase.Program].
func (p *stackProgram) AwaitAll(ctx context.Context) error {
	select {
	case <-p.tally.All:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wrong implements [phase.Program].
func (p *stackProgram) Wrong(ctx context.Context) (int64, error) {
	counts, err := p.stack.SumOf(ctx, p.token)
	wrong := counts.Completed + counts.PurgedCompleted - int64(p.work.Jobs)
	return max(wrong, -wrong), err
}
