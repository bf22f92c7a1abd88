package console

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestABackfillIsCreatedFromItsDryRun(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	form := url.Values{"csrf": {b.csrf()}, "action": {"BACKFILL"}, "kind": {"mail"}, "backfill_from": {"2026-01-30T00:00"}}
	if _, body := b.post("bulk/new", form); !strings.Contains(body, "first instant and end of the range") || len(b.api.called("CreateBulkOperation")) > 0 {
		t.Errorf("half a range: %s", body)
	}
	form.Set("backfill_until", "2026-01-31T00:00")
	form.Set("one_at_a_time", "1")
	b.post("bulk/new", form)
	calls := b.api.called("CreateBulkOperation")
	if len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	dry := calls[0].request.(*perceptorv1.CreateBulkOperationRequest).Operation
	if !dry.DryRun || dry.Action != perceptorv1.BulkOperation_BACKFILL || dry.BackfillUntil.AsTime().Sub(dry.BackfillFrom.AsTime()) != 24*time.Hour || !dry.OneAtATime || dry.Filter.Kind != "mail" {
		t.Errorf("sent %v", dry)
	}
	counted := proto.Clone(dry).(*perceptorv1.BulkOperation)
	counted.Id, counted.Matched, counted.State = 9, 24, perceptorv1.BulkOperation_DONE
	b.api.answers["GetBulkOperation"] = func(context.Context, proto.Message) (proto.Message, error) { return counted, nil }
	if _, body := b.get("bulk/9"); !strings.Contains(body, "these 24 runs") || !strings.Contains(body, "one after another") {
		t.Errorf("the dry run is shown as %s", body)
	}
	b.post("bulk/9/confirm", url.Values{"csrf": {b.csrf()}, "count": {"24"}})
	made := b.api.called("CreateBulkOperation")[2].request.(*perceptorv1.CreateBulkOperationRequest).Operation
	if made.DryRun || !proto.Equal(made.BackfillFrom, dry.BackfillFrom) || !proto.Equal(made.BackfillUntil, dry.BackfillUntil) || !made.OneAtATime {
		t.Errorf("sent %v", made)
	}
}

func TestACountOfOneIsSingular(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	for want, o := range map[string]*perceptorv1.BulkOperation{
		"1 task": {Action: perceptorv1.BulkOperation_CANCEL, Filter: &perceptorv1.TaskFilter{}}, "1 dead run": {Action: perceptorv1.BulkOperation_REPLAY, DeadFilter: &perceptorv1.DeadRunFilter{}}, "1 run": {Action: perceptorv1.BulkOperation_BACKFILL},
	} {
		o.Id, o.DryRun, o.State, o.Matched = 9, true, perceptorv1.BulkOperation_DONE, 1
		b.api.answers["GetBulkOperation"] = func(context.Context, proto.Message) (proto.Message, error) { return o, nil }
		if _, body := b.get("bulk/9"); !strings.Contains(body, ">"+want+"<") || !strings.Contains(body, " this "+strings.TrimPrefix(want, "1 ")+". Those") {
			t.Errorf("%s: %s", want, body)
		}
	}
}

func TestABulkOperationNeedsTheCountOfItsDryRun(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	if _, body := b.get("bulk/9"); !strings.Contains(body, "data-guarded>") || strings.Contains(body, " disabled") {
		t.Errorf("without scripts nobody can press the button: %s", body)
	}
	form := url.Values{"csrf": {b.csrf()}, "count": {"1235"}}
	if _, body := b.post("bulk/9/confirm", form); !strings.Contains(body, "nothing was changed") || len(b.api.called("CreateBulkOperation")) > 0 {
		t.Errorf("another count: %s", body)
	}
	form.Set("count", "1,234")
	b.post("bulk/9/confirm", form)
	calls := b.api.called("CreateBulkOperation")
	if len(calls) != 2 {
		t.Fatalf("%d calls", len(calls))
	}
	if again := calls[0].request.(*perceptorv1.CreateBulkOperationRequest).Operation; !again.DryRun || again.Filter.AddedUntil == nil {
		t.Errorf("counted again by %v", again)
	}
	r := calls[1].request.(*perceptorv1.CreateBulkOperationRequest)
	if r.Operation.DryRun || r.Operation.Filter.Kind != hostile || r.Operation.Filter.AddedUntil == nil || r.Operation.DryRunId != 9 || r.RequestId != "console-9" {
		t.Errorf("sent %v", r)
	}
}

// TestABulkOperationDoesNotChangeMoreThanWasCounted confirms a count after more tasks have come to match.
func TestABulkOperationDoesNotChangeMoreThanWasCounted(t *testing.T) {
	t.Parallel()
	for name, counts := range map[string][]int64{"at once": {1235}, "later": {0, 1000, 2000}} {
		b := newBrowser(t, "acme-secret")
		shown := b.api.answers["GetBulkOperation"]
		asked := 0
		b.api.answers["GetBulkOperation"] = func(ctx context.Context, m proto.Message) (proto.Message, error) {
			r, err := shown(ctx, m)
			if m.(*perceptorv1.GetBulkOperationRequest).Id != 10 {
				return r, err
			}
			now := proto.CloneOf(r.(*perceptorv1.BulkOperation))
			now.Id, now.Matched, now.State = 10, counts[min(asked, len(counts)-1)], perceptorv1.BulkOperation_RUNNING
			asked++
			return now, nil
		}
		if _, body := b.post("bulk/9/confirm", url.Values{"csrf": {b.csrf()}, "count": {"1,234"}}); !strings.Contains(body, `class="notice failed"><p>Not begun: more than these 1,234 tasks match by now.`) || !strings.Contains(body, "bulk/10/abort") {
			t.Errorf("%s: %s", name, body)
		}
		for _, c := range b.api.called("CreateBulkOperation") {
			if !c.request.(*perceptorv1.CreateBulkOperationRequest).Operation.DryRun {
				t.Errorf("%s: changes begin: %v", name, c.request)
			}
		}
	}
}

func TestABulkOperationWaitsForItsNewCountOnlySoLong(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	shown := b.api.answers["GetBulkOperation"]
	b.api.answers["GetBulkOperation"] = func(ctx context.Context, m proto.Message) (proto.Message, error) {
		r, err := shown(ctx, m)
		if m.(*perceptorv1.GetBulkOperationRequest).Id != 10 {
			return r, err
		}
		return &perceptorv1.BulkOperation{Id: 10, State: perceptorv1.BulkOperation_RUNNING, Matched: 1000}, nil
	}
	if _, body := b.post("bulk/9/confirm", url.Values{"csrf": {b.csrf()}, "count": {"1234"}}); !strings.Contains(body, "Operation 10 has begun.") {
		t.Errorf("it has not begun: %s", body)
	}
	calls := b.api.called("CreateBulkOperation")
	if len(calls) != 2 || calls[1].request.(*perceptorv1.CreateBulkOperationRequest).Operation.DryRun || len(b.api.called("AbortBulkOperation")) != 1 {
		t.Errorf("sent %v", calls)
	}
}

func TestARollbackNeedsTheCountOfItsImport(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	if _, body := b.get("imports/9"); !strings.Contains(body, "1–3, 5") || !strings.Contains(body, "imports/9/abort") {
		t.Errorf("the import is shown as %s", body)
	}
	form := url.Values{"csrf": {b.csrf()}, "count": {"1235"}}
	if _, body := b.post("imports/9/rollback", form); !strings.Contains(body, "nothing was changed") || len(b.api.called("RollbackImport")) > 0 {
		t.Errorf("another count: %s", body)
	}
	form.Set("count", "1,234")
	b.post("imports/9/rollback", form)
	b.post("imports/9/abort", form)
	if n, m := len(b.api.called("RollbackImport")), len(b.api.called("AbortImport")); n != 1 || m != 1 {
		t.Errorf("%d rollbacks and %d aborts", n, m)
	}
}
