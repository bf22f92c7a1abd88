// Package line writes tasks as lines of JSON: the lines of exports.
//
// A line has the fields of the API's Task, in the form in which the API shows them over HTTP,
// and three more: anchorTime, the scheduled instant of the last run of a NON_BLOCKING task, which
// is a point of its grid, plannedTime, the next instant of a task whose open run was triggered, and
// readTime. docs/export.md describes them.
//
// The lines are written by hand because an export of many millions of tasks must not
// cost more than reading them: the JSON encoder of the protobuf library takes ten times as long.
// A test compares both on random tasks, and refuses a field of Task that this package does not
// know.
package line

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Writer writes lines. It keeps what consecutive tasks have in common. It is not safe for
// concurrent use. The zero value is ready.
type Writer struct {
	// Redact leaves out params.
	Redact bool

	days    [16]day
	policy  policy
	written []byte // the policy as it was written
	entries []entry
}

// Append appends the line of a task: an object and a line feed. finished is when the task
// ended, or [task.Never]; read is when it was read. It fails for params that it cannot read,
// and then appends nothing of use.
func (w *Writer) Append(dst []byte, r *task.Row, finished, read task.Instant) ([]byte, error) {
	dst = append(dst, `{"id":"`...)
	dst = strconv.AppendInt(dst, int64(r.ID), 10)
	dst = append(dst, `","kind":`...)
	dst = appendText(dst, r.Kind)
	dst = append(dst, `,"type":"`...)
	dst = append(dst, perceptorv1.Task_Type_name[int32(r.Type)]...)
	dst = append(dst, '"')
	dst = w.schedule(dst, r)
	dst, err := w.params(dst, r)
	if err != nil {
		return dst, err
	}
	dst = w.terms(dst, r)
	dst = texts(dst, `,"tags":[`, r.Tags)
	dst = texts(dst, `,"excludeCalendars":[`, r.Exclude)
	dst = texts(dst, `,"onlyCalendars":[`, r.Only)
	dst = text(dst, `,"idempotencyKey":`, r.Key)
	if r.ReplayOf.Task != 0 {
		dst = text(dst, `,"replayOf":`, r.ReplayOf.String())
	}
	dst = number(dst, `,"backfillOf":"`, int64(r.BackfillOf))
	dst = number(dst, `,"backfillId":"`, r.Backfill)
	dst = text(dst, `,"traceParent":`, r.TraceParent)
	dst = w.state(dst, r)
	dst = w.instant(dst, `,"finishTime":"`, finished)
	dst = w.instant(dst, `,"readTime":"`, read)
	return append(dst, "}\n"...), nil
}

// schedule appends the instants that runs may have.
func (w *Writer) schedule(dst []byte, r *task.Row) []byte {
	dst = w.instant(dst, `,"beginTime":"`, r.Begin)
	dst = w.instant(dst, `,"endTime":"`, r.End)
	switch {
	case r.Interval > 0:
		dst = duration(dst, `,"interval":"`, r.Interval)
	case r.Cron != nil:
		dst = append(dst, `,"cron":{"expression":`...)
		dst = appendText(dst, r.Cron.Expression)
		dst = text(dst, `,"timeZone":`, r.Cron.Zone)
		if d := perceptorv1.Cron_Dialect_name[int32(r.Cron.Dialect)]; r.Cron.Dialect != 0 {
			dst = append(append(append(dst, `,"dialect":"`...), d...), '"')
		}
		dst = append(dst, '}')
	}
	return number(dst, `,"maxCount":"`, r.MaxCount)
}

// state appends how far the task has come.
func (w *Writer) state(dst []byte, r *task.Row) []byte {
	dst = append(dst, `,"state":"`...)
	dst = append(dst, perceptorv1.Task_State_name[int32(r.State)]...)
	dst = append(dst, '"')
	dst = flag(dst, `,"paused":true`, r.Paused)
	dst = number(dst, `,"runCount":"`, r.Seq)
	dst = number(dst, `,"missedCount":"`, r.Missed)
	if !r.State.Final() {
		dst = w.instant(dst, `,"scheduledTime":"`, r.CurrentInstant())
		dst = w.instant(dst, `,"dueTime":"`, r.DueAt)
		// Without an anchor, a task that is restored begins its grid with its next run.
		if r.Type == task.NonBlocking && r.Interval > 0 && (r.Anchor != r.Begin || r.Anchor != r.ScheduledAt) {
			dst = w.instant(dst, `,"anchorTime":"`, r.Anchor)
		}
		if planned, ok := r.PlannedNext(); ok {
			dst = w.instant(dst, `,"plannedTime":"`, planned)
		}
		if r.Type != task.NonBlocking {
			dst = small(dst, `,"attempt":`, int64(r.Attempt))
		}
	}
	dst = small(dst, `,"openRunCount":`, int64(r.OpenCount()))
	dst = small(dst, `,"version":`, int64(r.Version))
	return w.instant(dst, `,"createTime":"`, r.CreatedAt)
}

// policy has the terms that many tasks share.
type policy struct {
	retry                                 task.RetryPolicy
	ack, giveUp, retention, grace, spread time.Duration
	stop                                  bool
	misfire                               task.Misfire
	overlap                               task.Overlap
	catchUp                               int32
}

// terms appends the terms that many tasks share. They are often those of the task before.
func (w *Writer) terms(dst []byte, r *task.Row) []byte {
	p := policy{r.Retry, r.AckTimeout, r.GiveUpAfter, r.Retention, r.Grace, r.Spread, r.StopOnFailure, r.Misfire, r.Overlap, r.CatchUp}
	if len(w.written) == 0 || p != w.policy {
		w.policy, w.written = p, p.append(w.written[:0])
	}
	return append(dst, w.written...)
}

func (p *policy) append(dst []byte) []byte {
	dst = append(dst, `,"retryPolicy":{`...)
	dst = append(strconv.AppendInt(append(dst, `"maxAttempts":`...), int64(p.retry.MaxAttempts), 10), ',')
	dst = duration(dst, `"initialBackoff":"`, p.retry.InitialBackoff)
	dst = strconv.AppendFloat(append(dst, `,"multiplier":`...), p.retry.Multiplier, 'g', -1, 64)
	dst = duration(dst, `,"maxBackoff":"`, p.retry.MaxBackoff)
	dst = append(strconv.AppendFloat(append(dst, `,"jitter":`...), p.retry.Jitter, 'g', -1, 64), '}')
	dst = duration(dst, `,"ackTimeout":"`, p.ack)
	dst = duration(dst, `,"giveUpAfter":"`, p.giveUp)
	dst = flag(dst, `,"stopOnFailure":true`, p.stop)
	dst = append(append(append(dst, `,"misfirePolicy":"`...), perceptorv1.Task_MisfirePolicy_name[max(int32(p.misfire), int32(perceptorv1.Task_FIRE_ONCE))]...), '"')
	dst = append(append(append(dst, `,"overlap":"`...), perceptorv1.Task_Overlap_Policy_name[max(int32(p.overlap), int32(perceptorv1.Task_Overlap_ALLOW))]...), '"')
	dst = duration(dst, `,"retention":"`, p.retention)
	if p.misfire == task.Skip {
		dst = duration(dst, `,"misfireGrace":"`, p.grace)
	}
	dst = small(dst, `,"misfireLimit":`, int64(p.catchUp))
	if p.spread > 0 {
		dst = duration(dst, `,"spread":"`, p.spread)
	}
	return dst
}

// entry is one of the params.
type entry struct{ key, value []byte }

// params appends the params, sorted by key, and the payload.
func (w *Writer) params(dst []byte, r *task.Row) ([]byte, error) {
	if w.Redact || len(r.Params) == 0 {
		return dst, nil
	}
	var err error
	var body payload
	if w.entries, err = readParams(w.entries[:0], r.Params, &body); err != nil {
		return dst, fmt.Errorf("params of task %s: %w", r.ID, err)
	}
	list := w.entries
	sorted := func(a, b entry) int { return slices.Compare(a.key, b.key) }
	if !slices.IsSortedFunc(list, sorted) {
		slices.SortStableFunc(list, sorted)
	}
	open := `,"params":{`
	for i, e := range list {
		if i+1 < len(list) && slices.Equal(e.key, list[i+1].key) {
			continue // the last one counts
		}
		dst = append(dst, open...)
		dst = append(appendText(dst, e.key), ':')
		dst, open = appendText(dst, e.value), ","
	}
	if len(list) > 0 {
		dst = append(dst, '}')
	}
	return body.append(dst), nil
}

// payload is the payload beside the params. Without data there is none.
type payload struct{ data, contentType []byte }

func (p *payload) append(dst []byte) []byte {
	if len(p.data) == 0 {
		return dst
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, `,"payload":{"data":"`...), p.data)
	contentType := p.contentType
	if len(contentType) == 0 {
		contentType = []byte(task.DefaultContentType)
	}
	return append(appendText(append(dst, `","contentType":`...), contentType), '}')
}

var errParams = errors.New("the stored bytes are not a message of the type Params that this program knows")

// readParams reads a message of the type Params: its entries, and the payload.
func readParams(dst []entry, wire []byte, body *payload) ([]entry, error) {
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 || kind != protowire.BytesType {
			return nil, errParams
		}
		v, size := protowire.ConsumeBytes(wire[n:])
		if size < 0 {
			return nil, errParams
		}
		wire = wire[n+size:]
		switch number {
		case 1:
			e, err := readEntry(v)
			if err != nil {
				return nil, err
			}
			dst = append(dst, e)
		case 2:
			body.data = v
		case 3:
			body.contentType = v
		default:
			return nil, errParams
		}
	}
	return dst, nil
}

// readEntry reads one entry of the map.
func readEntry(pair []byte) (e entry, err error) {
	for len(pair) > 0 {
		number, kind, n := protowire.ConsumeTag(pair)
		if n < 0 || number > 2 || kind != protowire.BytesType {
			return e, errParams
		}
		v, size := protowire.ConsumeBytes(pair[n:])
		if size < 0 {
			return e, errParams
		}
		if pair = pair[n+size:]; number == 1 {
			e.key = v
		} else {
			e.value = v
		}
	}
	return e, nil
}
