package abuse

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/testenv"
)

// RivalName is the hidden command of this program that attacks, or is a polite tenant. Each has
// a process of its own, as other tenants have: in the victim's process, the victim would wait for
// the goroutines of its rival, and not for the service. It runs at the lowest priority, because a
// tenant uses the processors of its own machines, and not those of the service.
//
// The first line of the standard input is an order. The process prepares itself and writes a line.
// Each further line is a rate, with which it begins or goes on. It ends with its input.
const RivalName = "rival"

// order is what a rival does.
type order struct {
	Address, CAFile, Secret string
	// Attack is the name of an attack; empty for a polite tenant.
	Attack string
}

func (o *order) tls() (*tls.Config, error) {
	if o.CAFile == "" {
		return nil, nil
	}
	return testenv.Trust(o.CAFile)
}

func (o *order) transport() (credentials.TransportCredentials, error) {
	c, err := o.tls()
	if c == nil {
		return insecure.NewCredentials(), err
	}
	return credentials.NewTLS(c), nil
}

var errOrder = errors.New("rival: the first line of the input is not an order")

// ServeRival serves the process of a rival.
func ServeRival(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	var o order
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &o) != nil {
		return errOrder
	}
	act, leave, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { stop(); <-ended }()
	var rate atomic.Pointer[float64]
	for lines.Scan() {
		n, err := strconv.ParseFloat(lines.Text(), 64)
		if err != nil {
			return fmt.Errorf("rival: %w", err)
		}
		if rate.Swap(&n) == nil {
			go func() { defer close(ended); act(ctx, func() float64 { return *rate.Load() }) }()
		}
	}
	if rate.Load() == nil {
		close(ended)
	}
	return lines.Err()
}

// prepare connects and adds what an attack needs. act works until its ctx ends.
func (o *order) prepare(ctx context.Context) (act func(context.Context, func() float64), leave func(), err error) {
	if o.Attack == "" {
		c, err := o.client()
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, rate func() float64) { polite(ctx, c, rate) }, func() { _ = c.Close() }, nil
	}
	i := slices.IndexFunc(attacks, func(a *attack) bool { return a.name == o.Attack })
	if i < 0 {
		return nil, nil, fmt.Errorf("rival: there is no attack %q", o.Attack)
	}
	a := attacks[i]
	by, err := newAttacker(o, a.options...)
	if err != nil {
		return nil, nil, err
	}
	if a.prepare != nil {
		if err := a.prepare(ctx, by); err != nil {
			by.leave()
			return nil, nil, err
		}
	}
	return func(ctx context.Context, _ func() float64) { by.attack(ctx, a) }, by.leave, nil
}

func (o *order) client() (*client.Client, error) {
	c, err := o.tls()
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{Address: o.Address, Token: o.Secret, TLS: c})
}

// A rival is a process that attacks, or a polite tenant.
type rival struct {
	process *subprocess.Process
	input   *os.File
}

// preparedWithin bounds the time in which a rival prepares itself.
const preparedWithin = 2 * time.Minute

// startRival starts a process and waits until it has prepared itself.
func startRival(ctx context.Context, program string, o order) (r *rival, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	output, said, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	defer said.Close()
	cmd := exec.Command("nice", "-n", "19", program, RivalName)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = read, said, os.Stderr
	r = &rival{input: write}
	if r.process, err = subprocess.Start(cmd, syscall.SIGKILL); err != nil {
		return nil, errors.Join(err, write.Close(), output.Close())
	}
	ready := make(chan bool, 1)
	go func() {
		defer output.Close()
		ready <- bufio.NewScanner(output).Scan()
	}()
	if err := json.NewEncoder(r.input).Encode(o); err != nil {
		return nil, errors.Join(fmt.Errorf("start the rival: %w", err), r.end())
	}
	select {
	case ok := <-ready:
		if ok {
			return r, nil
		}
		err = errors.New("the rival ended before it was ready")
	case <-time.After(preparedWithin):
		err = fmt.Errorf("the rival was not ready within %v", preparedWithin)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, r.end())
}

// work lets the rival begin, or go on at another rate.
func (r *rival) work(rate float64) error {
	_, err := fmt.Fprintln(r.input, rate)
	return err
}

// endWithin bounds the end of a rival, which waits for some answers.
const endWithin = 30 * time.Second

func (r *rival) end() error {
	_ = r.input.Close() // the process ends with it
	select {
	case <-r.process.Done():
		return nil
	case <-time.After(endWithin):
		return r.process.Kill()
	}
}

// rivals is the source of the processor time of the present rival.
type rivals struct{ now atomic.Pointer[rival] }

// PID implements [harness.Source].
func (r *rivals) PID() int {
	if one := r.now.Load(); one != nil {
		return one.process.PID()
	}
	return 0
}

// CPUTime implements [harness.Source].
func (r *rivals) CPUTime() (time.Duration, error) { return subprocess.CPUTime(r.PID()) }
