package storm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// followLimit bounds the start of standbys, failLimit a promotion or a restore.
const followLimit, failLimit = 2 * time.Minute, 2 * time.Minute

// failOverSync replaces a primary by its synchronous standby. Nothing may be lost.
func (r *runner) failOverSync(ctx context.Context, h *happening) error {
	return r.replaced(ctx, h, func(ctx context.Context, p *stack.Replicas) error {
		standby, _ := p.Standbys()
		_, err := p.FailOver(ctx, standby, func(*testenv.PostgresServer) error { return nil })
		h.tookOver(time.Since(h.at))
		return err
	})
}

// failOverAsync replaces a primary by its asynchronous standby, which has followed it until
// some time before. What was committed since is lost.
func (r *runner) failOverAsync(ctx context.Context, h *happening) error {
	return r.replaced(ctx, h, func(ctx context.Context, p *stack.Replicas) error {
		_, standby := p.Standbys()
		if err := errors.Join(standby.Unfollow(ctx), harness.Sleep(ctx, h.Lasts)); err != nil {
			return err
		}
		return r.losing(ctx, h, p, func(compare func(*testenv.PostgresServer) error) (*testenv.PostgresServer, error) {
			return p.FailOver(ctx, standby, compare)
		})
	})
}

// restore replaces a primary and its standbys by the base backup with the log up to some
// time before. What was committed since is lost.
func (r *runner) restore(ctx context.Context, h *happening) error {
	return r.replaced(ctx, h, func(ctx context.Context, p *stack.Replicas) error {
		point := fmt.Sprintf("storm_%d", h.At.Milliseconds())
		if err := errors.Join(p.RestorePoint(ctx, point), harness.Sleep(ctx, h.Lasts)); err != nil {
			return err
		}
		return r.losing(ctx, h, p, func(compare func(*testenv.PostgresServer) error) (*testenv.PostgresServer, error) {
			return p.Restore(ctx, point, compare)
		})
	})
}

// killStandby kills the synchronous standby and starts it again later. No commit of the
// primary ends meanwhile.
func (r *runner) killStandby(ctx context.Context, h *happening) error {
	return r.disturbed(ctx, h, func(ctx context.Context, _ part) error {
		standby, _ := r.on.Replicas(h.Part).Standbys()
		if err := standby.Kill(); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, h.Lasts+restartLimit)
		defer cancel()
		return errors.Join(harness.Sleep(ctx, h.Lasts), standby.Restart(limited))
	})
}

// fullDisk takes all space of the disk of a server, gives it back later, and starts the
// server again.
func (r *runner) fullDisk(ctx context.Context, h *happening) error {
	if kind, _ := kindOf(h.Part); kind == "kafka" {
		return r.fullBrokerDisk(ctx, h)
	}
	server := r.on.Replicas(h.Part)
	before := server.DiskErrors()
	return r.disturbed(ctx, h, func(ctx context.Context, p part) error {
		err := errors.Join(server.FillDisk(ctx), harness.Sleep(ctx, h.Lasts), server.FreeDisk())
		if n := server.DiskErrors() - before; n > 0 {
			h.saw("the log of %s tells %d times that the disk is full", h.Part, n)
		}
		return errors.Join(err, restart(ctx, p))
	})
}

// fullBrokerDisk does the same to a broker. It returns when the broker has all replicas again.
func (r *runner) fullBrokerDisk(ctx context.Context, h *happening) error {
	return r.disturbed(ctx, h, func(ctx context.Context, p part) error {
		if err := errors.Join(r.on.FillBrokerDisk(), harness.Sleep(ctx, h.Lasts), r.on.FreeBrokerDisk(), restart(ctx, p)); err != nil {
			return err
		}
		return r.awaitReplicas(ctx)
	})
}

// clockStep is the size of a step of a clock.
const clockStep = 3 * time.Second

// stepClock sets the clock of a database wrong, and right again later. The clock of a
// database with an even number goes back first, the others go forward first. The fault has
// an effect if the database tells the wrong time.
func (r *runner) stepClock(ctx context.Context, h *happening) error {
	_, database := kindOf(h.Part)
	step := clockStep
	if database%2 == 0 {
		step = -step
	}
	r.stepped[database] = clockStep
	if err := r.on.StepClock(ctx, database, step); err != nil {
		return err
	}
	wrong, err := r.on.Wrong(ctx, database)
	if wrong.Abs() > clockStep/2 {
		h.saw("the clock of database %d is wrong by %v", database, wrong.Round(time.Millisecond))
	}
	return errors.Join(err, harness.Sleep(ctx, h.Lasts), r.on.StepClock(ctx, database, 0))
}

// skew returns how wrong the clock of a task's database has been.
func (r *runner) skew(id task.ID) time.Duration {
	return r.stepped[int(id%task.Shards)/task.ShardsPerDatabase]
}

// replaced calls act, which replaces a primary. The fault has an effect if the timeline of
// the log has changed. Then it starts new standbys.
func (r *runner) replaced(ctx context.Context, h *happening, act func(context.Context, *stack.Replicas) error) error {
	p := r.on.Replicas(h.Part)
	before, err := p.Timeline(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, failLimit)
	defer cancel()
	if err := act(limited, p); err != nil {
		return err
	}
	after, err := p.Timeline(ctx)
	if err != nil {
		return err
	}
	if after != before {
		h.saw("timeline %s became %s", before, after)
	}
	following, done := context.WithTimeout(ctx, followLimit)
	defer done()
	return p.Follow(following)
}

// losing calls replace, which replaces a primary by an older copy, and tells what that has lost.
func (r *runner) losing(ctx context.Context, h *happening, p *stack.Replicas, replace func(compare func(*testenv.PostgresServer) error) (*testenv.PostgresServer, error)) error {
	var is, had rows
	begin := time.Now()
	was, err := replace(func(now *testenv.PostgresServer) (err error) {
		is, err = readRows(ctx, now.DSN())
		return err
	})
	if err != nil {
		return err
	}
	h.tookOver(time.Since(begin))
	if err := was.Restart(ctx); err != nil { // nobody knows its address any more
		return fmt.Errorf("start the former primary: %w", err)
	}
	had, err = readRows(ctx, was.DSN())
	if err := errors.Join(err, was.Kill()); err != nil {
		return err
	}
	lost := r.told.add(had, is)
	h.saw("changes of %d tasks were lost", lost)
	return nil
}
