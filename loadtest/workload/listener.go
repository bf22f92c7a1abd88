package workload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/task"
)

// ListenerConfig is the configuration that a listener process reads from its standard input.
type ListenerConfig struct {
	// Index is the unique number of the process.
	Index   uint16
	Address string
	Token   string
	// Others are tokens of further tenants. The process has a client and a listener of the SDK
	// for each, as if it were as many services.
	Others []string
	// CAFile is the file of the CA of the stack's links; empty if they are open.
	CAFile string
	Kind   string
	// Pad is the value of [Plan.Pad].
	Pad string
	// History is the directory of the history.
	History string
	// Workers is the number of handlers that run at the same time.
	Workers int
	// Work is the mean duration of a handler: durations are uniform from 0 to twice that.
	Work time.Duration
	// Check says which runs are checked with the API before their handler is called.
	Check client.CheckPolicy
	// Fail is the share of runs whose first attempt fails.
	Fail float64
	// Mortal says that the process may be killed. It then writes each record to disk at
	// once, and a record at the begin of each call in addition to the one at its end.
	Mortal bool
}

// HistoryName returns the name of a listener's part of the history.
func HistoryName(index uint16) string { return fmt.Sprintf("listener-%d", index) }

// Progress is one line of a listener process's standard output.
type Progress struct {
	// Ready says that the listener has joined its group, or those of all its tenants.
	Ready bool `json:"ready"`
	// Callbacks is the number of callbacks and Accepted the number of accepted results
	// since the start.
	Callbacks int64 `json:"callbacks"`
	Accepted  int64 `json:"accepted"`
	// LatestMs is the largest lateness since the previous line.
	LatestMs float64 `json:"latest_ms"`
}

const (
	progressEvery = 200 * time.Millisecond
	stopGrace     = 15 * time.Second

	// Delays that scripts ask for.
	failBackoff = 200 * time.Millisecond
	snoozeFor   = 700 * time.Millisecond
	retryAfter  = 400 * time.Millisecond
)

// errPlanned is the failure of a first attempt.
var errPlanned = errors.New("planned failure")

// ServeListener runs a listener process: it reads its configuration from in, handles runs
// until ctx ends, and writes its progress to out.
func ServeListener(ctx context.Context, in io.Reader, out io.Writer) error {
	var cfg ListenerConfig
	if err := json.NewDecoder(in).Decode(&cfg); err != nil {
		return fmt.Errorf("read the listener's configuration: %w", err)
	}
	h, err := history.Create(cfg.History, HistoryName(cfg.Index))
	if err != nil {
		return err
	}
	if cfg.Mortal {
		h.Through()
	}
	l := &listener{ListenerConfig: cfg, history: h}
	return errors.Join(l.run(ctx, out), h.Close())
}

type listener struct {
	ListenerConfig
	history   *history.Writer
	joined    atomic.Int64 // tenants whose listener has joined its group
	callbacks atomic.Int64
	accepted  atomic.Int64
	latest    atomic.Int64 // largest lateness since the last line, µs
}

func (l *listener) run(ctx context.Context, out io.Writer) error {
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	var reported sync.WaitGroup
	reported.Go(func() { l.reportProgress(reporting, out) })
	defer reported.Wait()
	defer stop()
	all, listening := errgroup.WithContext(ctx)
	for _, token := range l.tokens() {
		all.Go(func() error { return l.listen(listening, token) })
	}
	return all.Wait()
}

// tokens returns the tokens of all tenants.
func (l *listener) tokens() []string { return append([]string{l.Token}, l.Others...) }

// listen runs the listener of one tenant.
func (l *listener) listen(ctx context.Context, token string) error {
	trust, err := testenv.Trust(l.CAFile)
	if err != nil {
		return err
	}
	c, err := client.New(client.Config{Address: l.Address, Token: token, TLS: trust, Kafka: client.KafkaConfig{TLS: trust}})
	if err != nil {
		return err
	}
	defer c.Close()
	var joined sync.Once
	sdk, err := c.NewListener(client.ListenerConfig{
		Workers: l.Workers, Check: l.Check, StopGrace: stopGrace, Logger: slog.Default(),
		Events: client.Events{
			Assigned: func([]int) { joined.Do(func() { l.joined.Add(1) }) },
			Started:  func(d client.Delivery, code string) { l.reply(check.Start, d, code) },
			Reported: func(d client.Delivery, code string) { l.reply(check.Report, d, code) },
		},
	})
	if err != nil {
		return err
	}
	sdk.Handle(l.Kind, l.handle)
	return sdk.Run(ctx)
}

func (l *listener) handle(ctx context.Context, run *client.Run) error {
	start := time.Now()
	e := check.Execution{
		Number: numberOf(run.Params, l.Pad), ID: task.ID(run.TaskID), Seq: run.Seq, Attempt: int32(run.Attempt),
		Listener: l.Index, ScheduledAt: task.At(run.ScheduledAt), Missed: run.Missed,
		Start: check.At(start), Outcome: task.Success, Version: int32(run.Version), Mark: markOf(run.Params),
	}
	if l.Mortal {
		begun := e
		begun.End, begun.Unfinished = begun.Start, true
		l.history.Execution(begun)
	}
	l.callbacks.Add(1)
	l.late(start.Sub(run.ScheduledAt))
	chance := mix(uint64(e.Number), run.Seq)
	var err error
	if l.Work > 0 {
		err = harness.Sleep(ctx, time.Duration(chance%uint64(2*l.Work)))
	}
	if script := run.Params[scriptParam]; err == nil && script != "" && run.ReplayOf == "" {
		err = follow(script, run.Attempt, &e)
	} else if err == nil && run.Attempt == 1 && float64(mix(chance, 1))/math.MaxUint64 < l.Fail {
		err = errPlanned
	}
	if err != nil && e.Outcome == task.Success {
		e.Outcome = task.Fail
	}
	e.End = check.At(time.Now())
	l.history.Execution(e)
	return err
}

// follow ends an attempt as its letter in the script says, and records the outcome in e.
func follow(script string, attempt int, e *check.Execution) error {
	if attempt > len(script) {
		return nil
	}
	switch script[attempt-1] {
	case 'f':
		e.Outcome, e.After = task.Fail, failBackoff
		return errPlanned
	case 'r':
		e.Outcome, e.After = task.Fail, retryAfter
		return client.Retry(errPlanned, retryAfter)
	case 'p':
		e.Outcome, e.Permanent = task.Fail, true
		return client.Permanent(errPlanned)
	case 'z':
		e.Outcome, e.After = task.Snooze, snoozeFor
		return client.Snooze(snoozeFor)
	}
	return nil
}

func (l *listener) late(d time.Duration) {
	for {
		seen := l.latest.Load()
		if d.Microseconds() <= seen || l.latest.CompareAndSwap(seen, d.Microseconds()) {
			return
		}
	}
}

// codes has the codes of replies by their names in the API.
var codes = func() map[string]task.Code {
	m := map[string]task.Code{}
	for _, c := range task.Codes {
		m[c.String()] = c
	}
	return m
}()

// reply records the answer to a start or a report.
func (l *listener) reply(call check.Call, d client.Delivery, code string) {
	r := check.Reply{
		ID: task.ID(d.TaskID), Seq: d.Seq, Attempt: int32(d.Attempt), Listener: l.Index,
		Call: call, Code: codes[code], Answered: check.At(time.Now()),
	}
	if call == check.Report && r.Code == task.Accepted {
		l.accepted.Add(1)
	}
	if r.Code != task.Retry { // such an answer decides nothing
		l.history.Reply(r)
	}
}

// reportProgress writes progress until ctx ends, and then once more.
func (l *listener) reportProgress(ctx context.Context, out io.Writer) {
	lines := json.NewEncoder(out)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			open = false
		}
		p := Progress{
			Ready: l.joined.Load() == int64(len(l.tokens())), Callbacks: l.callbacks.Load(), Accepted: l.accepted.Load(),
			LatestMs: float64(l.latest.Swap(0)) / 1000,
		}
		if lines.Encode(p) != nil {
			return // the reader has gone
		}
	}
}

const lastWords = 4 << 10

// Listener is a listener process as seen by the process that started it.
type Listener struct {
	process *subprocess.Process
	logPath string
	ready   chan struct{}
	closed  chan struct{} // closed when its output has ended

	mu   sync.Mutex
	last Progress
	late float64 // largest lateness not returned yet, ms
}

// StartListener starts a process with command, which must call [ServeListener]. The log of
// the process goes to logPath.
func StartListener(command []string, cfg ListenerConfig, logPath string) (*Listener, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start listener: open log: %w", err)
	}
	defer log.Close()
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("start listener: %w", err)
	}
	output, input, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start listener: %w", err)
	}
	defer input.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), input, log
	process, err := subprocess.Start(cmd, syscall.SIGKILL)
	if err != nil {
		output.Close()
		return nil, err
	}
	l := &Listener{process: process, logPath: logPath, ready: make(chan struct{}), closed: make(chan struct{})}
	go l.read(output)
	return l, nil
}

// read reads the progress until the process has ended.
func (l *Listener) read(output io.ReadCloser) {
	defer close(l.closed)
	defer output.Close()
	lines := bufio.NewScanner(output)
	var once sync.Once
	for lines.Scan() {
		var p Progress
		if json.Unmarshal(lines.Bytes(), &p) != nil {
			continue
		}
		l.mu.Lock()
		l.last, l.late = p, max(l.late, p.LatestMs)
		l.mu.Unlock()
		if p.Ready {
			once.Do(func() { close(l.ready) })
		}
	}
}

// AwaitReady waits until the listener has joined its group.
func (l *Listener) AwaitReady(ctx context.Context) error {
	select {
	case <-l.ready:
		return nil
	case <-l.process.Done():
		return fmt.Errorf("the listener ended before it was ready (%s): %s", l.process.Exit(), l.said())
	case <-ctx.Done():
		return fmt.Errorf("the listener is not ready (%w): %s", ctx.Err(), l.said())
	}
}

// Progress returns the last progress of the listener, with the largest lateness since the
// previous call.
func (l *Listener) Progress() Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.last
	p.LatestMs, l.late = l.late, 0
	return p
}

// Callbacks returns the number of calls of the handler that the listener has reported.
func (l *Listener) Callbacks() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.Callbacks
}

// PID returns the process id.
func (l *Listener) PID() int { return l.process.PID() }

// CPUTime returns the processor time that the process has used.
func (l *Listener) CPUTime() (time.Duration, error) { return subprocess.CPUTime(l.process.PID()) }

// Died returns an error if the listener has ended. It must be called before Stop.
func (l *Listener) Died() error {
	if l.process.Running() {
		return nil
	}
	return fmt.Errorf("the listener ended by itself (%s): %s", l.process.Exit(), l.said())
}

// Pause suspends the listener with SIGSTOP and returns when it stands still.
func (l *Listener) Pause() error {
	if err := l.process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return subprocess.AwaitStopped(l.process.PID())
}

// Resume ends a Pause.
func (l *Listener) Resume() error { return l.process.Signal(syscall.SIGCONT) }

// Kill ends the listener with SIGKILL and returns when it is gone.
func (l *Listener) Kill() error {
	err := l.process.Kill()
	<-l.closed
	return err
}

// Stop waits until the listener has finished its handlers and written its history.
func (l *Listener) Stop(ctx context.Context) error {
	err := l.process.Stop(ctx, syscall.SIGTERM)
	select {
	case <-l.closed:
	case <-ctx.Done():
	}
	if exit := l.process.Exit(); err == nil && exit != "exit status 0" {
		err = errors.New(exit)
	}
	if err != nil {
		return fmt.Errorf("stop the listener: %w: %s", err, l.said())
	}
	return nil
}

func (l *Listener) said() string {
	text, err := os.ReadFile(l.logPath)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-lastWords):]))
}
