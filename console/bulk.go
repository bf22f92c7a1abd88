package console

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var (
	bulkPages = []page{
		{path: "bulk", name: "bulk", title: "Bulk operations", section: "bulk", live: 3, show: (*view).listBulk},
		{path: "bulk/new", name: "newbulk", title: "New bulk operation", section: "bulk", form: true, times: []string{"from", "until", "backfill_from", "backfill_until"}, show: (*view).newBulk},
		{path: "bulk/{id}", name: "bulkone", title: "Bulk operation", section: "bulk", live: 1, show: (*view).showBulk},
	}
	bulkActions = []action{
		{path: "bulk/{id}/confirm", back: "bulk/{id}", do: confirmBulk},
		{path: "bulk/{id}/abort", back: "bulk/{id}", do: changeBulk("Operation %d is aborted. Changes already made remain.", func(c *Console, ctx context.Context, id int64) error {
			_, err := c.bulk.AbortBulkOperation(ctx, &perceptorv1.AbortBulkOperationRequest{Id: id})
			return err
		})},
		{path: "bulk/{id}/pause", back: "bulk/{id}", do: changeBulk("Operation %d is paused.", func(c *Console, ctx context.Context, id int64) error {
			_, err := c.bulk.PauseBulkOperation(ctx, &perceptorv1.PauseBulkOperationRequest{Id: id})
			return err
		})},
		{path: "bulk/{id}/resume", back: "bulk/{id}", do: changeBulk("Operation %d continues.", func(c *Console, ctx context.Context, id int64) error {
			_, err := c.bulk.ResumeBulkOperation(ctx, &perceptorv1.ResumeBulkOperationRequest{Id: id})
			return err
		})},
	}
)

// changeBulk returns an action that changes the operation in the path.
func changeBulk(text string, change func(*Console, context.Context, int64) error) func(*view) (done, error) {
	return changeOne(text, (*view).bulkURL, change)
}

func (v *view) bulkURL(id int64) string { return v.URL("bulk/" + strconv.FormatInt(id, 10)) }

func (v *view) listBulk() (any, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	return v.bulk.ListBulkOperations(ctx, &perceptorv1.ListBulkOperationsRequest{PageSize: pageSize, PageToken: v.Query("page")})
}

// bulkForm is the data of the page New bulk operation.
type bulkForm struct {
	Action  string
	Problem *problem
}

// Dead reports whether the operation is about dead runs.
func (f *bulkForm) Dead() bool { return f.Action == "REPLAY" || f.Action == "PURGE_DEAD" }

// newBulk shows the form, or begins with a dry run, which only counts.
func (v *view) newBulk() (any, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	if !v.May("OPERATE") {
		return nil, errNoLogin
	}
	d := &bulkForm{Action: v.Query("action")}
	if d.Action == "" {
		d.Action = "CANCEL"
	}
	if v.r.Method != "POST" {
		return d, nil
	}
	o, err := v.bulkOperation(d)
	if err == nil {
		o, err = v.bulk.CreateBulkOperation(ctx, &perceptorv1.CreateBulkOperationRequest{Operation: o, RequestId: newRequestID()})
	}
	switch {
	case err == nil:
		return redirectTo(v.bulkURL(o.Id)), nil
	case leavesForm(err):
		p := problemOf(err)
		d.Problem, v.status = &p, p.Status
		return d, nil
	}
	return nil, err
}

// bulkOperation reads the form as a dry run.
func (v *view) bulkOperation(d *bulkForm) (*perceptorv1.BulkOperation, error) {
	o := &perceptorv1.BulkOperation{DryRun: true, Action: perceptorv1.BulkOperation_Action(perceptorv1.BulkOperation_Action_value[d.Action])}
	from, ok1 := v.instantOf(v.Query("from"))
	until, ok2 := v.instantOf(v.Query("until"))
	if !ok1 || !ok2 {
		return nil, badField("from and until", "are instants such as 2026-01-31T12:00")
	}
	if rate := v.Query("max_rate"); rate != "" {
		n, err := strconv.ParseInt(rate, 10, 32)
		if err != nil {
			return nil, badField("changes per second", "is a whole number")
		}
		o.MaxRate = int32(n)
	}
	if d.Action == "RESCHEDULE" {
		shift, ok := parseDuration(strings.TrimPrefix(v.Query("shift"), "+"))
		if !ok {
			return nil, badField("shift", "is a duration such as 1h30m or -10m")
		}
		o.Shift = shift
	}
	if d.Action == "BACKFILL" {
		from, ok1 := v.instantOf(v.Query("backfill_from"))
		until, ok2 := v.instantOf(v.Query("backfill_until"))
		if !ok1 || !ok2 || from == nil || until == nil {
			return nil, badField("first instant and end of the range", "are instants such as 2026-01-31T12:00")
		}
		o.BackfillFrom, o.BackfillUntil, o.OneAtATime = from, until, v.Query("one_at_a_time") != ""
	}
	var err error
	if d.Dead() {
		o.DeadFilter = &perceptorv1.DeadRunFilter{Kind: v.Query("kind"), Tags: v.tags(), DiedFrom: from, DiedUntil: until}
		o.DeadFilter.Reason, err = choice[perceptorv1.DeadRun_Reason](v, "reason", perceptorv1.DeadRun_Reason_value)
		return o, err
	}
	o.Filter = &perceptorv1.TaskFilter{Kind: v.Query("kind"), Tags: v.tags(), DueFrom: from, DueUntil: until}
	if o.Filter.Type, err = choice[perceptorv1.Task_Type](v, "type", perceptorv1.Task_Type_value); err != nil {
		return nil, err
	}
	o.Filter.State, err = choice[perceptorv1.Task_State](v, "state", perceptorv1.Task_State_value)
	return o, err
}

// bulkData is the data of the page of an operation.
type bulkData struct {
	*perceptorv1.BulkOperation
	// Filters says in words what it selects.
	Filters []string
}

func (v *view) showBulk() (any, error) {
	ctx, id, err := v.asTenantOf()
	if err != nil {
		return nil, err
	}
	o, err := v.bulk.GetBulkOperation(ctx, &perceptorv1.GetBulkOperationRequest{Id: id})
	if err != nil {
		return nil, err
	}
	return &bulkData{BulkOperation: o, Filters: v.filterWords(o)}, nil
}

// filterWords says what an operation selects.
func (v *view) filterWords(o *perceptorv1.BulkOperation) (list []string) {
	add := func(name, value string) {
		if value != "" {
			list = append(list, name+" "+value)
		}
	}
	instant := func(name string, t *timestamppb.Timestamp) {
		if t != nil {
			add(name, v.local(t.AsTime()))
		}
	}
	if f := o.Filter; f != nil {
		add("kind", f.Kind)
		if f.Type != 0 {
			add("type", words(f.Type))
		}
		if f.State != 0 {
			add("state", words(f.State))
		}
		add("tags", commaText(f.Tags))
		instant("due from", f.DueFrom)
		instant("due before", f.DueUntil)
		instant("added before", f.AddedUntil)
		if f.TaskId != 0 {
			add("task", strconv.FormatInt(f.TaskId, 10))
		}
		if f.BackfillId != 0 {
			add("tasks of backfill", strconv.FormatInt(f.BackfillId, 10))
		}
	}
	instant("instants from", o.BackfillFrom)
	instant("instants before", o.BackfillUntil)
	if o.OneAtATime {
		add("runs of a task", "one after another")
	}
	if f := o.DeadFilter; f != nil {
		add("kind", f.Kind)
		if f.Reason != 0 {
			add("reason", words(f.Reason))
		}
		add("tags", commaText(f.Tags))
		instant("given up from", f.DiedFrom)
		instant("given up before", f.DiedUntil)
	}
	return list
}

// Progress is the part of the work that is done, in percent: of what a dry run counted, or else of the
// databases. Nothing else knows how many tasks there will be.
func (d *bulkData) Progress() int {
	if d.Counted > 0 && d.Open() {
		return int(min(d.Done+d.Failed, d.Counted) * 100 / d.Counted)
	}
	return int(d.FinishedParts) * 100 / 16
}

// Open reports whether the operation can still do something.
func (d *bulkData) Open() bool {
	return d.State == perceptorv1.BulkOperation_RUNNING || d.State == perceptorv1.BulkOperation_PAUSED
}

// Settled reports whether the operation has ended.
func (d *bulkData) Settled() bool { return !d.Open() }

// Ready reports whether a dry run has counted everything, so that it can be confirmed.
func (d *bulkData) Ready() bool {
	return d.DryRun && d.State == perceptorv1.BulkOperation_DONE && d.Matched > 0
}

// Runs reports whether the operation counts runs to add.
func (d *bulkData) Runs() bool { return d.Action == perceptorv1.BulkOperation_BACKFILL }

// Noun is what the operation counts, in the form for the number of those that match.
func (d *bulkData) Noun() string {
	noun := "task"
	switch {
	case d.Runs():
		noun = "run"
	case d.DeadFilter != nil:
		noun = "dead run"
	}
	if d.Matched == 1 {
		return noun
	}
	return noun + "s"
}

// These is what a dry run has counted.
func (d *bulkData) These() string {
	if d.Matched == 1 {
		return "this " + d.Noun()
	}
	return "these " + number(d.Matched) + " " + d.Noun()
}

// Verb is what the operation does, for buttons.
func (d *bulkData) Verb() string { return words(d.Action) }

// confirmBulk does what a dry run has counted. The user must have typed the count. What was
// added after the dry run is left out, and nothing is done if more matches than was counted: tasks
// that were added before may have finished, or been moved, since.
func confirmBulk(v *view) (done, error) {
	ctx, id, err := v.asTenantOf()
	if err != nil {
		return done{}, err
	}
	dry, err := v.bulk.GetBulkOperation(ctx, &perceptorv1.GetBulkOperationRequest{Id: id})
	if err != nil {
		return done{}, err
	}
	d := bulkData{BulkOperation: dry}
	typed := strings.NewReplacer(",", "", ".", "", " ", "").Replace(v.Query("count"))
	if !d.Ready() || typed != strconv.FormatInt(dry.Matched, 10) {
		return done{}, status.Errorf(codes.FailedPrecondition, "nothing was changed: the count that was typed is not %d", dry.Matched)
	}
	o := &perceptorv1.BulkOperation{Action: dry.Action, MaxRate: dry.MaxRate, Shift: dry.Shift, NextTime: dry.NextTime,
		BackfillFrom: dry.BackfillFrom, BackfillUntil: dry.BackfillUntil, OneAtATime: dry.OneAtATime}
	if dry.Filter != nil {
		o.Filter = proto.Clone(dry.Filter).(*perceptorv1.TaskFilter)
		if o.Filter.AddedUntil == nil {
			o.Filter.AddedUntil = dry.CreateTime
		}
	}
	if dry.DeadFilter != nil {
		o.DeadFilter = proto.Clone(dry.DeadFilter).(*perceptorv1.DeadRunFilter)
		if o.DeadFilter.DiedUntil == nil {
			o.DeadFilter.DiedUntil = dry.CreateTime
		}
	}
	now, err := v.recount(ctx, o, dry.Matched)
	if err != nil {
		return done{}, err
	}
	if now.Matched > dry.Matched {
		text := "Not begun: more than " + d.These() + " match by now. They are counted again."
		return done{text: text, to: v.bulkURL(now.Id), refused: true}, nil
	}
	o.DryRunId = id // more may have come to match since they were counted again
	// The id of the dry run makes a second click find the same operation.
	made, err := v.bulk.CreateBulkOperation(ctx, &perceptorv1.CreateBulkOperationRequest{Operation: o, RequestId: fmt.Sprintf("console-%d", id)})
	if err != nil {
		return done{}, err
	}
	return done{text: fmt.Sprintf("Operation %d has begun.", made.Id), to: v.bulkURL(made.Id)}, nil
}

const (
	// recountWait bounds how long a confirmation waits for the new count. What takes longer is millions
	// of tasks, of which a few may be new; waiting for them would let nobody confirm.
	recountWait = 3 * time.Second
	recountStep = 100 * time.Millisecond
)

// recount counts what an operation would change, until it has more than was shown or all of it.
func (v *view) recount(ctx context.Context, o *perceptorv1.BulkOperation, shown int64) (*perceptorv1.BulkOperation, error) {
	dry := proto.CloneOf(o)
	dry.DryRun, dry.MaxRate = true, 0
	now, err := v.bulk.CreateBulkOperation(ctx, &perceptorv1.CreateBulkOperationRequest{Operation: dry, RequestId: newRequestID()})
	if err != nil {
		return nil, err
	}
	id, step, late := now.Id, time.NewTicker(recountStep), time.After(recountWait)
	defer step.Stop()
	for now.Matched <= shown {
		if now, err = v.bulk.GetBulkOperation(ctx, &perceptorv1.GetBulkOperationRequest{Id: id}); err != nil {
			return nil, err
		}
		if !(&bulkData{BulkOperation: now}).Open() {
			return now, nil
		}
		select {
		case <-step.C:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-late:
			_, err = v.bulk.AbortBulkOperation(ctx, &perceptorv1.AbortBulkOperationRequest{Id: id})
			return now, err
		}
	}
	return now, nil
}
