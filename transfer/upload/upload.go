// Package upload sends the chunks of an import to the service, through its failures.
//
// The service stores a chunk once, whatever number of times it is sent, because it knows its number. So
// the protocol is simple: up to [Config.Window] chunks are under way on one stream; answers come in the order of the
// chunks. When the stream breaks, or an answer does not come within [Config.AnswerLimit], a new stream is opened after a pause,
// and all chunks without an answer are sent again. The pauses grow, and when nothing has been answered for
// [Config.PatientFor] the upload fails. An error that repeating cannot change fails it at once.
package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/ctxtime"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer"
)

const (
	// maxPart is the size of the parts into which a chunk is cut. With what is around it a part is less than the least
	// taskd.max_request_bytes, 64 KiB: a larger one would be refused for as long as the upload is patient.
	maxPart = 60 << 10
	// firstPause and longestPause bound the pause before a stream is opened again.
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	// longestYield bounds the pause that the service may ask for after a chunk.
	longestYield = time.Hour
)

// Config says how chunks are sent. Zero values are defaults.
type Config struct {
	// Import is the id of the import.
	Import int64
	// Window is how many chunks may be without an answer. Default: 4.
	Window int
	// AnswerLimit is how long an answer may take. Default: 2 minutes.
	AnswerLimit time.Duration
	// PatientFor is how long the service may be away. Default: 10 minutes.
	PatientFor time.Duration
	// Answered is called for each chunk, in order, with its answer. An error ends the upload.
	Answered func(*transfer.Chunk, *perceptorv1.WriteImportResponse) error
	// Away is called when the service does not answer, before a pause. May be nil.
	Away func(err error, pause time.Duration)
	// Reset is called before each try, so that the connection does not wait on its own. May be nil.
	Reset func()
}

func (c *Config) setDefaults() {
	if c.Window == 0 {
		c.Window = 4
	}
	if c.AnswerLimit == 0 {
		c.AnswerLimit = 2 * time.Minute
	}
	if c.PatientFor == 0 {
		c.PatientFor = 10 * time.Minute
	}
	if c.Reset == nil {
		c.Reset = func() {}
	}
	if c.Away == nil {
		c.Away = func(error, time.Duration) {}
	}
}

// Run sends the chunks of a channel until it is closed and all are answered. Answers of a call that ends
// with an error may be missing; repeating the chunks is safe.
func Run(ctx context.Context, api perceptorv1.ImportServiceClient, c Config, chunks <-chan *transfer.Chunk) error {
	c.setDefaults()
	u := &upload{Config: c, api: api, chunks: chunks}
	return Retry(ctx, c, func(ctx context.Context) (progress bool, err error) {
		before := u.answered
		err = u.stream(ctx)
		return u.answered > before, err
	})
}

// Retry calls f until it succeeds, fails for good, or the service was away for too long. f tells whether there was
// progress. Of c, it uses PatientFor, Away and Reset.
func Retry(ctx context.Context, c Config, f func(context.Context) (progress bool, err error)) error {
	c.setDefaults()
	pause, since := firstPause, time.Now()
	for {
		c.Reset()
		progress, err := f(ctx)
		if progress {
			pause, since = firstPause, time.Now()
		}
		switch {
		case err == nil || ctx.Err() != nil || !temporary(err):
			return err
		case time.Since(since) > c.PatientFor:
			return fmt.Errorf("the service has not answered for %s: %w", c.PatientFor, err)
		}
		wait := max(askedFor(err), pause/2+rand.N(pause/2))
		c.Away(err, wait)
		if !ctxtime.Sleep(ctx, wait) {
			return ctx.Err()
		}
		pause = min(2*pause, longestPause)
	}
}

// temporary reports whether an error may be gone when the call is repeated.
func temporary(err error) bool {
	var own permanent
	if errors.As(err, &own) {
		return false
	}
	st, ok := status.FromError(err)
	if !ok {
		return errors.Is(err, io.EOF)
	}
	switch st.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted, codes.Internal, codes.Unknown:
		return true
	}
	return false
}

// askedFor returns how long the service wants a caller to wait, within bounds.
func askedFor(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return min(max(0, r.RetryDelay.AsDuration()), longestYield)
		}
	}
	return 0
}

// upload is the state that outlives a stream.
type upload struct {
	Config
	api    perceptorv1.ImportServiceClient
	chunks <-chan *transfer.Chunk
	// pending are the chunks without an answer, in order.
	pending  []*transfer.Chunk
	answered int64
	closed   bool
}

// answer is what a stream has received.
type answer struct {
	*perceptorv1.WriteImportResponse
	err error
}

// permanent is an error of the caller's own functions.
type permanent struct{ error }

// Unwrap returns the error of the function.
func (p permanent) Unwrap() error { return p.error }

// stream sends chunks on one stream until it breaks, or all are answered.
func (u *upload) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(u.AnswerLimit, func() { cancel(errSlow) })
	defer limit.Stop()
	s, err := u.api.WriteImport(ctx)
	if err != nil {
		return err
	}
	answers := make(chan answer, u.Window+1)
	go receive(s, answers)
	t := &sending{upload: u, s: s, limit: limit, answers: answers}
	err = t.run(ctx)
	if errors.Is(context.Cause(ctx), errSlow) {
		return status.Errorf(codes.DeadlineExceeded, "a chunk was not answered within %s", u.AnswerLimit)
	}
	return err
}

var errSlow = errors.New("slow")

// receive reads answers until the stream ends. There is room for all answers, so it never waits for their reader.
func receive(s perceptorv1.ImportService_WriteImportClient, to chan<- answer) {
	for {
		r, err := s.Recv()
		to <- answer{r, err}
		if err != nil {
			return
		}
	}
}

// sending is one stream.
type sending struct {
	*upload
	s       perceptorv1.ImportService_WriteImportClient
	limit   *time.Timer
	answers <-chan answer
	begun   bool
}

func (t *sending) run(ctx context.Context) error {
	for _, c := range t.pending {
		if err := t.send(c); err != nil {
			return err
		}
	}
	var resume <-chan time.Time
	for {
		if t.closed && len(t.pending) == 0 {
			return t.end(ctx)
		}
		chunks := t.chunks
		if len(t.pending) == t.Window || t.closed || resume != nil {
			chunks = nil
		}
		if len(t.pending) == 0 {
			t.limit.Stop()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-resume:
			resume = nil
		case a := <-t.answers:
			if a.err != nil {
				return a.err
			}
			pause, err := t.take(a.WriteImportResponse)
			if err != nil {
				return err
			}
			if pause > 0 {
				resume = time.After(pause)
			}
		case c, ok := <-chunks:
			if !ok {
				t.closed = true
				continue
			}
			t.pending = append(t.pending, c)
			if len(t.pending) == 1 {
				t.limit.Reset(t.AnswerLimit)
			}
			if err := t.send(c); err != nil {
				return err
			}
		}
	}
}

// send sends a chunk in parts. An error of the stream is what its answer says.
func (t *sending) send(c *transfer.Chunk) error {
	for wire := c.Wire; ; {
		n := min(len(wire), maxPart)
		r := &perceptorv1.WriteImportRequest{Part: wire[:n], Last: n == len(wire)}
		if !t.begun {
			r.Id, t.begun = t.Import, true
		}
		if err := t.s.Send(r); err != nil {
			return t.why(err)
		}
		if wire = wire[n:]; len(wire) == 0 {
			return nil
		}
	}
}

// why returns the error for which a stream has ended. Answers before it are dropped; their chunks are sent again.
func (t *sending) why(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for {
		if a := <-t.answers; a.err != nil {
			return a.err
		}
	}
}

// take passes on the answer to the first chunk that has none. It returns the pause that the service asks for.
func (t *sending) take(a *perceptorv1.WriteImportResponse) (time.Duration, error) {
	if len(t.pending) == 0 || t.pending[0].Number != a.Number {
		return 0, permanent{fmt.Errorf("the service has answered chunk %d, which is not the next one", a.Number)}
	}
	c := t.pending[0]
	t.pending = t.pending[1:]
	t.answered++
	t.limit.Reset(t.AnswerLimit)
	if err := t.Answered(c, a); err != nil {
		return 0, permanent{err}
	}
	return min(time.Duration(a.PauseMs)*time.Millisecond, longestYield), nil
}

// end closes the stream and awaits its end.
func (t *sending) end(ctx context.Context) error {
	t.limit.Reset(t.AnswerLimit)
	if err := t.s.CloseSend(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case a := <-t.answers:
		if errors.Is(a.err, io.EOF) {
			return nil
		}
		return a.err
	}
}
