package backlog

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// maxExamples is how many wrong answers are kept.
const maxExamples = 5

// OperationsReport is what calls about single waiting tasks took, each call by
// itself, one after another.
type OperationsReport struct {
	Calls    int               `json:"calls"`
	GetMs    harness.Quantiles `json:"get_ms"`
	PauseMs  harness.Quantiles `json:"pause_ms"`
	ResumeMs harness.Quantiles `json:"resume_ms"`
	CancelMs harness.Quantiles `json:"cancel_ms"`
	// Wrong counts answers that were errors, or told of another task than was
	// loaded.
	Wrong    int      `json:"wrong"`
	Examples []string `json:"examples,omitempty"`
}

// operations asks about random tasks: the first half of picks is looked up, paused
// and resumed, the second half cancelled. It returns what the second half came to.
func (r *runner) operations(ctx context.Context, picks []pick) (*OperationsReport, Sum, error) {
	c, err := client.New(client.Config{Address: r.stack.Address, Token: r.stack.Token})
	if err != nil {
		return nil, Sum{}, err
	}
	defer c.Close()
	half := len(picks) / 2
	rep := &OperationsReport{Calls: half}
	r.Say("asking for, pausing and resuming %d random tasks, and cancelling %d others, one by one", half, half)
	edit, drop := picks[:half], picks[half:2*half]
	var gone Sum
	for _, step := range []struct {
		to    *harness.Quantiles
		picks []pick
		call  func(context.Context, int64) (*client.TaskInfo, error)
		wrong func(pick, *client.TaskInfo) string
	}{
		{&rep.GetMs, edit, c.GetTask, differs},
		{&rep.PauseMs, edit, c.PauseTask, func(p pick, t *client.TaskInfo) string { return unless(t.Paused, "is not paused") }},
		{&rep.ResumeMs, edit, c.ResumeTask, differs},
		{&rep.CancelMs, drop, c.CancelTask, func(p pick, t *client.TaskInfo) string {
			if t.State == client.Cancelled {
				gone.Count++
				gone.Hash += p.hash
			}
			return unless(t.State == client.Cancelled, "is not cancelled")
		}},
	} {
		if *step.to, err = rep.each(ctx, step.picks, step.call, step.wrong); err != nil {
			return rep, gone, err
		}
	}
	return rep, gone, nil
}

func (rep *OperationsReport) each(ctx context.Context, picks []pick, call func(context.Context, int64) (*client.TaskInfo, error), wrong func(pick, *client.TaskInfo) string) (harness.Quantiles, error) {
	took := hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)
	for _, p := range picks {
		begin := time.Now()
		t, err := call(ctx, int64(p.id))
		took.RecordValue(time.Since(begin).Microseconds()) //nolint:errcheck // longer than a minute is an error of its own
		fault := ""
		if err != nil {
			fault = err.Error()
		} else {
			fault = wrong(p, t)
		}
		if ctx.Err() != nil {
			return harness.Quantiles{}, ctx.Err()
		}
		if fault != "" {
			if rep.Wrong++; len(rep.Examples) < maxExamples {
				rep.Examples = append(rep.Examples, fmt.Sprintf("task %s: %s", p.id, fault))
			}
		}
	}
	return harness.QuantilesOf(took), nil
}

func unless(ok bool, fault string) string {
	if ok {
		return ""
	}
	return fault
}

// differs compares what the API says with what was loaded.
func differs(p pick, t *client.TaskInfo) string {
	params, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: t.Params})
	switch {
	case err != nil:
		return err.Error()
	case t.State != client.Scheduled || t.Paused:
		return fmt.Sprintf("is in state %d, paused %t", t.State, t.Paused)
	case task.Type(t.Type) != p.typ || t.Kind != p.kind:
		return fmt.Sprintf("is a %v of kind %s, and was a %v of kind %s", task.Type(t.Type), t.Kind, p.typ, p.kind)
	case task.At(t.ScheduledAt) != p.due:
		return fmt.Sprintf("is scheduled at %v, and was for %v", t.ScheduledAt, p.due)
	case !bytes.Equal(params, p.params):
		return fmt.Sprintf("has params %v, which it was not loaded with", t.Params)
	}
	return ""
}
