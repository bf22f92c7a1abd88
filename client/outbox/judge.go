package outbox

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/client"
)

// A fate is what becomes of an operation.
type fate int

const (
	moved fate = iota
	refused
	postponed
)

// judgement returns the fate of an operation whose call ended with err.
func judgement(op Op, err error) fate {
	switch {
	case err == nil:
		return moved
	case op == opCancel && errors.Is(err, client.ErrNotFound):
		return moved // there is nothing left to cancel
	case errors.Is(err, errStale):
		return refused
	}
	for _, kind := range []error{client.ErrInvalidArgument, client.ErrAlreadyExists, client.ErrNotFound, client.ErrFailedPrecondition} {
		if errors.Is(err, kind) {
			return refused
		}
	}
	return postponed
}

// judge records what becomes of an operation.
func (m *mover) judge(x *row, err error) {
	if m.judged(x, err) == postponed {
		m.r.failed(stepSend, err)
		m.postpone([]*row{x})
	}
}

// judged records what becomes of an operation, unless it is to be postponed.
func (m *mover) judged(x *row, err error) fate {
	f := judgement(x.op, err)
	if errors.Is(err, client.ErrInternal) {
		if x.errors++; x.errors >= internalTries {
			f = refused
		}
	}
	switch f {
	case moved:
		m.out.done = append(m.out.done, x.position)
		m.finished(x)
		if m.r.cfg.Events.Moved != nil {
			m.r.cfg.Events.Moved(x.op, 1, seconds(x.age)+time.Since(x.readAt))
		}
	case refused:
		m.refuse(x, reasonOf(err), messageOf(err))
	default:
		if !errors.Is(err, errLost) {
			x.unknown = !errors.Is(err, client.ErrResourceExhausted) && !answered(err)
		}
	}
	return f
}

// answered reports whether the service has answered that it did nothing.
func answered(err error) bool {
	return errors.Is(err, client.ErrUnauthenticated) || errors.Is(err, client.ErrPermissionDenied)
}

// refuse sets an operation aside.
func (m *mover) refuse(x *row, reason, message string) {
	o := &m.out
	o.refused = append(o.refused, x.position)
	o.reasons, o.messages = append(o.reasons, reason), append(o.messages, plain(message))
	m.finished(x)
	m.r.cfg.Log.Warn("an operation of the outbox was set aside", "position", x.position, "op", x.op.String(), "reason", reason, "err", message)
	if m.r.cfg.Events.Refused != nil {
		m.r.cfg.Events.Refused(x.op, reason)
	}
}

// finished counts down the operations of a batch.
func (m *mover) finished(x *row) {
	if x.batch.left--; x.batch.left == 0 {
		m.closed = append(m.closed, x.batch.number)
	}
}

const maxMessageBytes = 2000

// plain shortens a message and removes what a text of PostgreSQL cannot hold.
func plain(s string) string {
	out := []rune(s[:min(len(s), maxMessageBytes)])
	return string(slices.DeleteFunc(out, func(r rune) bool { return r == 0 || r == '\uFFFD' }))
}

func reasonOf(err error) string {
	var e *client.Error
	switch {
	case errors.Is(err, errStale):
		return ReasonOutcomeUnknown
	case errors.As(err, &e) && e.Reason != "":
		return e.Reason
	case errors.As(err, &e):
		return status.Code(err).String()
	}
	return "UNKNOWN"
}

func messageOf(err error) string {
	var e *client.Error
	if errors.As(err, &e) && e.Message != "" {
		return e.Message
	}
	return err.Error()
}

// retryRows is the most operations of a retry that are in memory at once.
const retryRows = 200

// retry sends what waits for a retry: all of it, in the order of positions. The delay before the next one
// grows only while none of it succeeds.
func (m *mover) retry() {
	failures, before := m.failures, m.waiting()
	stuck, later := m.stuck, m.later
	m.stuck, m.later, m.held = nil, nil, map[string]int{}
	for _, group := range stuck {
		m.sendAgain(group)
	}
	for chunk := range slices.Chunk(later, retryRows) {
		m.sendAgain(chunk)
	}
	if m.failures = 0; m.waits() {
		if m.failures = failures + 1; m.waiting() < before {
			m.failures = 1
		}
		m.retryAt = time.Now().Add(backoff(m.failures, maxBackoff))
	}
}

// waiting returns the number of operations that wait for a retry.
func (m *mover) waiting() int {
	n := len(m.later)
	for _, group := range m.stuck {
		n += len(group)
	}
	return n
}

// sendAgain reads operations again and sends them. Tasks without keys are of one batch.
func (m *mover) sendAgain(group []*row) {
	positions := make([]int64, len(group))
	known := map[int64]*row{}
	for i, x := range group {
		positions[i], known[x.position] = x.position, x
	}
	rows, err := m.read(nil, positions)
	if err != nil {
		m.r.failed(stepRead, err)
		m.postpone(group)
		return
	}
	for _, x := range rows {
		old := known[x.position]
		x.batch, x.unknown, x.errors = old.batch, old.unknown, old.errors
		delete(known, x.position)
	}
	for _, x := range known { // another relay has finished it
		m.finished(x)
	}
	m.send(rows)
}
