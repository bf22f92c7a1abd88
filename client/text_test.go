package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const noUTF8 = "a\xffb"

// fieldOf returns the field that a refusal names.
func fieldOf(err error) string {
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrInvalidArgument) || len(e.Fields) != 1 {
		return fmt.Sprint(err)
	}
	return e.Fields[0].Field
}

func TestATaskThatCannotBeSaidIsRefusedByItsField(t *testing.T) {
	_, c := api(t, Config{})
	for want, task := range map[string]Task{
		"kind":            {Kind: noUTF8, Type: OneShot},
		"params":          {Kind: "k", Type: OneShot, Params: map[string]string{noUTF8: "x"}},
		`params["p"]`:     {Kind: "k", Type: OneShot, Params: map[string]string{"p": noUTF8}},
		"tags":            {Kind: "k", Type: OneShot, Tags: []string{"a", noUTF8}},
		"idempotency_key": {Kind: "k", Type: OneShot, IdempotencyKey: noUTF8},
		"cron.expression": {Kind: "k", Type: OneShot, Cron: &Cron{Expression: noUTF8}},
		"cron.time_zone":  {Kind: "k", Type: OneShot, Cron: &Cron{Expression: "@daily", Zone: noUTF8}},
		"interval":        {Kind: "k", Type: Blocking, Interval: time.Hour, Cron: &Cron{Expression: "@daily"}},
	} {
		if _, err := c.AddTask(t.Context(), task); fieldOf(err) != want {
			t.Errorf("AddTask, %s: %v", want, err)
		}
		if _, err := c.UpdateTask(t.Context(), 1, task, UpdateOptions{}); fieldOf(err) != want {
			t.Errorf("UpdateTask, %s: %v", want, err)
		}
		if _, err := c.PreviewSchedule(t.Context(), task, PreviewOptions{}); fieldOf(err) != want {
			t.Errorf("PreviewSchedule, %s: %v", want, err)
		}
		good := Task{Kind: "k", Type: OneShot}
		results, err := c.AddTasks(t.Context(), []Task{good, task, good})
		if err != nil || len(results) != 3 || results[0].Err != nil || fieldOf(results[1].Err) != want || results[2].Err != nil {
			t.Errorf("AddTasks, %s: %+v, %v", want, results, err)
		}
	}
	if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}, WithRequestID(noUTF8)); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("a request id: %v", err)
	}
}

func TestATextThatIsNoUTF8SpoilsNoAddThatTravelsWithIt(t *testing.T) {
	_, c := api(t, Config{})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			added := Task{Kind: "k", Type: OneShot, Params: map[string]string{"p": "x"}}
			if i%10 == 0 {
				added.Params["p"] = noUTF8
			}
			if _, err := c.AddTask(t.Context(), added); (err != nil) != (i%10 == 0) {
				t.Errorf("task %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

func TestAResultThatCannotBeSentFailsItsRunAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.listen(ListenerConfig{}, map[string]Handler{"count": func(_ context.Context, r *Run) error {
		if r.Params["n"] == "3" {
			r.SetParam("text", noUTF8)
		}
		return nil
	}})
	b.publish(manyRuns(9, "count")...)
	b.svc.await(t, "9 results", func() bool { return b.svc.codes["report "+task.Accepted.String()] == 9 })
	for _, r := range b.svc.results {
		bad := r.GetAttempt().GetTaskId()/512 == 4 // task number 4 has the bad text
		if (r.GetOutcome() == perceptorv1.RunResult_FAIL) != bad || bad && !strings.Contains(r.GetError(), "the result was refused") {
			t.Errorf("reported %v", r)
		}
	}
	b.awaitCommitted()
}

func TestPathsOfFieldsBeginInTheTask(t *testing.T) {
	st, err := status.New(codes.InvalidArgument, "tasks[37].retry_policy.jitter: 2 is too much; task.kind: is missing; request_id: has 65 bytes").WithDetails(&errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: "tasks[37].retry_policy.jitter", Description: "2 is too much"}, {Field: "task.kind", Description: "is missing"},
			{Field: "request_id", Description: "has 65 bytes"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := errorOf("AddTask", st)
	if want := "perceptor: AddTask: invalid argument: retry_policy.jitter: 2 is too much; kind: is missing; request_id: has 65 bytes"; e.Error() != want {
		t.Errorf("%s\nwant %s", e, want)
	}
	if e.Fields[0].Field != "retry_policy.jitter" || e.Fields[1].Field != "kind" || e.Fields[2].Field != "request_id" {
		t.Errorf("%+v", e.Fields)
	}
}
