package server

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// auditRule says what the event of a call holds.
type auditRule struct {
	// object is the path of the field with the object's id or name, and tenant that of the
	// name of the tenant that an operator's call is about. They are looked up in the answer
	// and then in the request. "": there is none.
	object, tenant string
	// before, if not nil, reads the state that the call changes.
	before func(ctx context.Context, d *Deps, request proto.Message) (proto.Message, error)
	// after is the field of the answer with the state after the call. "": the answer itself.
	after string
	// hidden are fields of the state that are not shown.
	hidden []string
}

// audited has a rule for every call that is recorded. A test holds it to the contract: every
// method is either here or in the list of those that are not recorded.
var audited = map[string]auditRule{
	perceptorv1.AdminService_CreateTenant_FullMethodName: {object: "tenant.name", tenant: "tenant.name"},
	perceptorv1.AdminService_UpdateTenant_FullMethodName: {object: "name", tenant: "name", before: tenantBefore},
	perceptorv1.AdminService_DeleteTenant_FullMethodName: {object: "name", tenant: "name"},
	perceptorv1.AdminService_PauseTenant_FullMethodName:  {object: "name", tenant: "name", before: tenantBefore},
	perceptorv1.AdminService_ResumeTenant_FullMethodName: {object: "name", tenant: "name", before: tenantBefore},
	perceptorv1.AdminService_CreateToken_FullMethodName:  {object: "token.id", tenant: "token.tenant", after: "token"},
	perceptorv1.AdminService_RotateToken_FullMethodName:  {object: "id", tenant: "token.tenant", after: "token"},
	perceptorv1.AdminService_RevokeToken_FullMethodName:  {object: "id", tenant: "tenant"},

	perceptorv1.AdminService_RotateTenantKey_FullMethodName: {object: "name", tenant: "name"},

	perceptorv1.TaskService_CancelTask_FullMethodName:  {object: "id", before: taskBefore},
	perceptorv1.TaskService_PauseTask_FullMethodName:   {object: "id", before: taskBefore},
	perceptorv1.TaskService_ResumeTask_FullMethodName:  {object: "id", before: taskBefore},
	perceptorv1.TaskService_UpdateTask_FullMethodName:  {object: "task.id", before: taskBefore},
	perceptorv1.TaskService_PurgeTask_FullMethodName:   {object: "id", before: taskBefore},
	perceptorv1.TaskService_TriggerTask_FullMethodName: {object: "id"},
	perceptorv1.TaskService_PauseKind_FullMethodName:   {object: "kind", before: kindsBefore},
	perceptorv1.TaskService_ResumeKind_FullMethodName:  {object: "kind", before: kindsBefore},

	perceptorv1.DeadLetterService_ReplayDeadRun_FullMethodName: {object: "run_id"},
	perceptorv1.DeadLetterService_PurgeDeadRun_FullMethodName:  {object: "run_id"},

	perceptorv1.BulkService_CreateBulkOperation_FullMethodName: {object: "id", hidden: bulkProgress},
	perceptorv1.BulkService_AbortBulkOperation_FullMethodName:  {object: "id", hidden: bulkProgress},
	perceptorv1.BulkService_PauseBulkOperation_FullMethodName:  {object: "id", hidden: bulkProgress},
	perceptorv1.BulkService_ResumeBulkOperation_FullMethodName: {object: "id", hidden: bulkProgress},

	perceptorv1.ImportService_CreateImport_FullMethodName:   {object: "id", hidden: importProgress},
	perceptorv1.ImportService_FinishImport_FullMethodName:   {object: "id", hidden: importProgress},
	perceptorv1.ImportService_AbortImport_FullMethodName:    {object: "id", hidden: importProgress},
	perceptorv1.ImportService_RollbackImport_FullMethodName: {object: "id", hidden: importProgress},

	perceptorv1.CalendarService_CreateCalendar_FullMethodName: {object: "calendar.name", hidden: calendarRanges},
	perceptorv1.CalendarService_UpdateCalendar_FullMethodName: {object: "name", hidden: calendarRanges},
	perceptorv1.CalendarService_DeleteCalendar_FullMethodName: {object: "name"},

	perceptorv1.AssignmentService_UpdateStrategy_FullMethodName: {before: strategyBefore},
	perceptorv1.AssignmentService_RaiseEpochs_FullMethodName:    {object: "databases"},
	perceptorv1.ClockService_AdvanceClock_FullMethodName:        {before: clockBefore, hidden: clockProgress},
	perceptorv1.ClockService_SetClock_FullMethodName:            {before: clockBefore, hidden: clockProgress},
}

// notAudited are the calls that are not recorded: reads, adds, and the calls of listeners.
var notAudited = []string{
	perceptorv1.TaskService_AddTask_FullMethodName, perceptorv1.TaskService_AddTasks_FullMethodName,
	perceptorv1.TaskService_GetTask_FullMethodName, perceptorv1.TaskService_ListTasks_FullMethodName,
	perceptorv1.TaskService_CountTasks_FullMethodName, perceptorv1.TaskService_ListRunEvents_FullMethodName,
	perceptorv1.TaskService_ExplainTask_FullMethodName, perceptorv1.TaskService_PreviewSchedule_FullMethodName,
	perceptorv1.RunService_StartRuns_FullMethodName, perceptorv1.RunService_ReportResults_FullMethodName,
	perceptorv1.RunService_HeartbeatRuns_FullMethodName, perceptorv1.RunService_HandBackRuns_FullMethodName,
	perceptorv1.RunService_CheckRuns_FullMethodName, perceptorv1.RunService_GetDelivery_FullMethodName,
	perceptorv1.BulkService_GetBulkOperation_FullMethodName, perceptorv1.BulkService_ListBulkOperations_FullMethodName,
	perceptorv1.ImportService_WriteImport_FullMethodName, perceptorv1.ImportService_PlanImport_FullMethodName,
	perceptorv1.ImportService_GetImport_FullMethodName, perceptorv1.ImportService_ListImports_FullMethodName,
	perceptorv1.CalendarService_GetCalendar_FullMethodName, perceptorv1.CalendarService_ListCalendars_FullMethodName,
	perceptorv1.DeadLetterService_ListDeadRuns_FullMethodName, perceptorv1.DeadLetterService_GetDeadRun_FullMethodName,
	perceptorv1.AdminService_GetTenant_FullMethodName, perceptorv1.AdminService_ListTenants_FullMethodName,
	perceptorv1.AdminService_ListTokens_FullMethodName,
	perceptorv1.AssignmentService_GetAssignment_FullMethodName, perceptorv1.ClockService_GetClock_FullMethodName,
	perceptorv1.AuditService_ListAuditEvents_FullMethodName, perceptorv1.AuditService_ListTenantAuditEvents_FullMethodName,
	perceptorv1.MonitoringService_GetTenantFigures_FullMethodName, perceptorv1.MonitoringService_ListTenantFigures_FullMethodName,
	perceptorv1.MonitoringService_GetClusterFigures_FullMethodName, perceptorv1.MonitoringService_GetForecast_FullMethodName,
	perceptorv1.MonitoringService_GetInstallationForecast_FullMethodName,
	perceptorv1.IdentityService_GetIdentity_FullMethodName,
	perceptorv1.ExportService_ExportTasks_FullMethodName, perceptorv1.ExportService_ExportDeadRuns_FullMethodName,
	perceptorv1.ExportService_ExportRunEvents_FullMethodName,
}

var (
	// calendarRanges is what may be large: of it an event has only the number.
	calendarRanges = []string{"ranges"}
	// bulkProgress are the fields of an operation that change without a call.
	bulkProgress = []string{"parts", "matched", "done", "failed", "finished_parts"}
	// importProgress are the fields of an import that change without a call, and those that only
	// programs read.
	importProgress = []string{
		"options", "line_count", "added_count", "skipped_count", "updated_count", "rejected_count", "chunk_count", "checksum",
		"stored_chunks", "removed_count", "rolled_back_databases", "pause_reason",
	}
	// clockProgress are the fields of the answer about what has fired.
	clockProgress = []string{"instants", "open_runs", "instant_count", "delivery_count"}
	// unshown are fields whose content belongs to the tenant: of them an event says only
	// that they have changed.
	unshown = []string{"params", "payload", "secret"}
)

func tenantBefore(ctx context.Context, d *Deps, r proto.Message) (proto.Message, error) {
	t, err := d.Admin.Tenant(ctx, textAt("name", r))
	return tenantReply(t), err
}

func taskBefore(ctx context.Context, d *Deps, r proto.Message) (proto.Message, error) {
	var id int64
	switch r := r.(type) {
	case *perceptorv1.UpdateTaskRequest:
		id = r.GetTask().GetId()
	case interface{ GetId() int64 }:
		id = r.GetId()
	}
	if !task.ID(id).Valid() {
		return nil, noSuchTask(id)
	}
	s, err := d.Tasks.Get(ctx, tenantOf(ctx).ID, task.ID(id))
	if err != nil {
		return nil, err
	}
	return taskOf(s)
}

func kindsBefore(ctx context.Context, d *Deps, _ proto.Message) (proto.Message, error) {
	t, err := d.Admin.Tenant(ctx, tenantOf(ctx).Name)
	return &perceptorv1.PauseKindResponse{PausedKinds: t.Rates.PausedKinds}, err
}

func strategyBefore(ctx context.Context, d *Deps, _ proto.Message) (proto.Message, error) {
	if d.Assignment == nil {
		return nil, errNoAssignment
	}
	a, err := d.Assignment.Assignment(ctx)
	return a.GetStrategy(), err
}

func clockBefore(ctx context.Context, d *Deps, _ proto.Message) (proto.Message, error) {
	if d.Clock == nil {
		return nil, errRealClock
	}
	c, err := d.Clock.Clock(ctx)
	return &perceptorv1.Clock{Time: c.GetTime()}, err
}

// textAt returns the field at a path of the first message in which it is set.
func textAt(path string, in ...proto.Message) string {
	for _, m := range in {
		if path == "" || m == nil {
			continue
		}
		message, f := fieldAt(m.ProtoReflect(), path)
		if f != nil && message.Has(f) {
			return fieldText(message, f)
		}
	}
	return ""
}

// fieldAt returns the field at a path and the message that has it; nil if there is none.
func fieldAt(m protoreflect.Message, path string) (protoreflect.Message, protoreflect.FieldDescriptor) {
	outer, inner, deep := strings.Cut(path, ".")
	f := m.Descriptor().Fields().ByName(protoreflect.Name(outer))
	if f == nil || !deep {
		return m, f
	}
	if f.Message() == nil || f.IsList() || f.IsMap() {
		return m, nil
	}
	return fieldAt(m.Get(f).Message(), inner)
}

// changesOf compares the state before a call with its answer, field by field.
func changesOf(rule *auditRule, before, answer proto.Message) []task.AuditChange {
	var is, was protoreflect.Message
	if answer != nil {
		is = answer.ProtoReflect()
		if rule.after != "" {
			is = is.Get(is.Descriptor().Fields().ByName(protoreflect.Name(rule.after))).Message()
		}
	}
	if before != nil {
		was = before.ProtoReflect()
	}
	// An answer without fields says that the object is gone.
	if is != nil && is.Descriptor().Fields().Len() == 0 {
		is = nil
	}
	fields := is
	if is == nil {
		fields = was
	}
	if fields == nil {
		return nil
	}
	var changes []task.AuditChange
	for i := range fields.Descriptor().Fields().Len() {
		name := fields.Descriptor().Fields().Get(i).Name()
		if slices.Contains(rule.hidden, string(name)) {
			continue
		}
		c := task.AuditChange{Field: string(name), Before: namedText(was, name), After: namedText(is, name)}
		if c.Before == c.After {
			continue
		}
		if slices.Contains(unshown, string(name)) {
			c.Before, c.After = "", "changed"
		}
		changes = append(changes, c)
	}
	return changes
}

// namedText returns a field as text; "" if the message is nil, or has no such field, or the
// field is not set.
func namedText(m protoreflect.Message, name protoreflect.Name) string {
	if m == nil {
		return ""
	}
	f := m.Descriptor().Fields().ByName(name)
	if f == nil || !m.Has(f) {
		return ""
	}
	return fieldText(m, f)
}

// fieldText returns the value of a field as the API's JSON shows it, a text without quotes.
func fieldText(m protoreflect.Message, f protoreflect.FieldDescriptor) string {
	alone := m.New()
	alone.Set(f, m.Get(f))
	wire, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(alone.Interface())
	if err != nil {
		return "?"
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(wire, &values); err != nil {
		return "?"
	}
	raw := values[string(f.Name())]
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var compact bytes.Buffer // the library varies its white space
	if json.Compact(&compact, raw) != nil {
		return "?"
	}
	return compact.String()
}
