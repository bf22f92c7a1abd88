package timingspec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/virtualclock"
	"github.com/perceptor/perceptor/internal/virtualtest"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// hasty is a listener without the SDK that commits the offset of each record before it
// handles it. Some runs it never answers.
type hasty struct {
	stack  *virtualtest.Stack
	tenant *virtualtest.Tenant
	silent func(p *task.Publication) bool

	mu   sync.Mutex
	read []task.Publication
}

// listen reads records until the test ends.
func (h *hasty) listen(t *testing.T) {
	t.Helper()
	var at struct {
		Topic, Group string
		Brokers      []string
	}
	if err := h.call(t.Context(), http.MethodGet, "/v1/delivery", nil, &at); err != nil {
		t.Fatal(err)
	}
	// ReadMessage commits before it returns.
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: at.Brokers, Topic: at.Topic, GroupID: at.Group, StartOffset: kafka.FirstOffset, JoinGroupBackoff: 100 * time.Millisecond, MaxWait: 50 * time.Millisecond,
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.readAll(ctx, reader) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (h *hasty) readAll(ctx context.Context, reader *kafka.Reader) error {
	for {
		m, err := reader.ReadMessage(ctx)
		if err != nil {
			return err
		}
		p, err := record.Decode(m.Value)
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.read = append(h.read, p)
		h.mu.Unlock()
		if h.silent(&p) {
			continue
		}
		if err := h.succeed(ctx, &p); err != nil {
			return err
		}
	}
}

func (h *hasty) succeed(ctx context.Context, p *task.Publication) error {
	type object = map[string]any
	return h.call(ctx, http.MethodPost, "/v1/runs:report", object{"holder": "7", "results": []object{{
		"attempt": object{"taskId": fmt.Sprint(int64(p.Task)), "seq": fmt.Sprint(p.Seq), "attempt": p.Attempt}, "outcome": "SUCCESS",
	}}}, nil)
}

func (h *hasty) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+h.stack.HTTP+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+h.tenant.Token)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(response.Body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(text, out)
}

// deliveries returns the numbers of the runs that were delivered at an attempt, and checks
// when each of them was claimed.
func (h *hasty) deliveries(t *testing.T, id int64, attempt int32, after time.Duration) (seqs []int64) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.read {
		if int64(p.Task) != id || p.Attempt != attempt {
			continue
		}
		seqs = append(seqs, p.Seq)
		if got := p.ClaimedAt.Sub(p.ScheduledAt); got != after {
			t.Errorf("run %d: attempt %d came after %s, want %s", p.Seq, p.Attempt, got, after)
		}
	}
	slices.Sort(seqs)
	return slices.Compact(seqs)
}

var silenceStories = []story{
	{"what a hasty listener never answers comes again", "timing: T9.6", func(e *stage) {
		h := &hasty{stack: e.stack, tenant: e.stack.Tenant(e.T)}
		h.silent = func(p *task.Publication) bool { return p.Seq%10 == 0 && p.Attempt == 1 }
		h.listen(e.T)
		id := h.tenant.Add(e.T, client.Task{Kind: "k", Type: client.NonBlocking, Begin: e.at("1h"), Interval: time.Hour, AckTimeout: time.Minute, MaxCount: 35, Retention: 24 * time.Hour})
		e.stack.AdvanceWith(e.T, e.at("40h").Sub(e.stack.Now(e.T)), virtualclock.Options{Settle: 3 * time.Second, LeaveOpen: true})
		if got := h.deliveries(e.T, id, 1, 0); len(got) != 35 {
			e.Errorf("%d runs were delivered, want 35: %d", len(got), got)
		}
		if got, want := h.deliveries(e.T, id, 2, time.Hour), []int64{10, 20, 30}; !slices.Equal(got, want) {
			e.Errorf("runs %d came again, want %d", got, want)
		}
		if t := must[*client.TaskInfo](e)(h.tenant.GetTask(e.Context(), id)); t.State != client.Completed || t.RunCount != 35 {
			e.Errorf("the task is %s after %d runs", t.State, t.RunCount)
		}
	}},
}
