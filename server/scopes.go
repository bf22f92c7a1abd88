package server

import (
	"strings"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Scopes is a set of scopes: a bit for each, 1 << its number in the API.
type Scopes int32

// The scopes. docs/security.md has the calls of each one.
const (
	TenantScope      Scopes = 1 << perceptorv1.Token_TENANT
	AdminScope       Scopes = 1 << perceptorv1.Token_ADMIN
	AddScope         Scopes = 1 << perceptorv1.Token_ADD
	ReadScope        Scopes = 1 << perceptorv1.Token_READ
	OperateScope     Scopes = 1 << perceptorv1.Token_OPERATE
	ListenScope      Scopes = 1 << perceptorv1.Token_LISTEN
	TenantAdminScope Scopes = 1 << perceptorv1.Token_TENANT_ADMIN
	AdminReadScope   Scopes = 1 << perceptorv1.Token_ADMIN_READ
	InspectScope     Scopes = 1 << perceptorv1.Token_INSPECT
)

const (
	// OfTenant are the scopes that apply to one tenant.
	OfTenant = TenantScope | AddScope | ReadScope | OperateScope | ListenScope | TenantAdminScope
	// OfInstallation are the scopes that apply to the installation.
	OfInstallation = AdminScope | AdminReadScope | InspectScope
	// anyScope is for calls about the caller itself.
	anyScope = OfTenant | OfInstallation
)

// access has the scopes of each method. A caller needs one of them. A method without
// scopes cannot be registered.
var access = map[string]Scopes{
	perceptorv1.IdentityService_GetIdentity_FullMethodName: anyScope,

	perceptorv1.TaskService_AddTask_FullMethodName:         AddScope,
	perceptorv1.TaskService_AddTasks_FullMethodName:        AddScope,
	perceptorv1.TaskService_PreviewSchedule_FullMethodName: AddScope | ReadScope,

	perceptorv1.ImportService_PlanImport_FullMethodName:   AddScope,
	perceptorv1.ImportService_CreateImport_FullMethodName: AddScope,
	perceptorv1.ImportService_WriteImport_FullMethodName:  AddScope,
	perceptorv1.ImportService_FinishImport_FullMethodName: AddScope,
	perceptorv1.ImportService_AbortImport_FullMethodName:  AddScope,
	perceptorv1.ImportService_GetImport_FullMethodName:    AddScope | ReadScope | InspectScope,
	perceptorv1.ImportService_ListImports_FullMethodName:  AddScope | ReadScope | InspectScope,

	perceptorv1.TaskService_GetTask_FullMethodName:            ReadScope | InspectScope,
	perceptorv1.TaskService_ListTasks_FullMethodName:          ReadScope | InspectScope,
	perceptorv1.TaskService_CountTasks_FullMethodName:         ReadScope | InspectScope,
	perceptorv1.TaskService_ListRunEvents_FullMethodName:      ReadScope | InspectScope,
	perceptorv1.TaskService_ExplainTask_FullMethodName:        ReadScope | InspectScope,
	perceptorv1.DeadLetterService_ListDeadRuns_FullMethodName: ReadScope | InspectScope,
	perceptorv1.DeadLetterService_GetDeadRun_FullMethodName:   ReadScope | InspectScope,
	perceptorv1.BulkService_GetBulkOperation_FullMethodName:   ReadScope | InspectScope,
	perceptorv1.BulkService_ListBulkOperations_FullMethodName: ReadScope | InspectScope,
	perceptorv1.CalendarService_GetCalendar_FullMethodName:    ReadScope | InspectScope,
	perceptorv1.CalendarService_ListCalendars_FullMethodName:  ReadScope | InspectScope,

	perceptorv1.ExportService_ExportTasks_FullMethodName:     ReadScope,
	perceptorv1.ExportService_ExportDeadRuns_FullMethodName:  ReadScope,
	perceptorv1.ExportService_ExportRunEvents_FullMethodName: ReadScope,

	perceptorv1.TaskService_UpdateTask_FullMethodName:          OperateScope,
	perceptorv1.TaskService_TriggerTask_FullMethodName:         OperateScope,
	perceptorv1.TaskService_CancelTask_FullMethodName:          OperateScope,
	perceptorv1.TaskService_PauseTask_FullMethodName:           OperateScope,
	perceptorv1.TaskService_ResumeTask_FullMethodName:          OperateScope,
	perceptorv1.TaskService_PauseKind_FullMethodName:           OperateScope,
	perceptorv1.TaskService_ResumeKind_FullMethodName:          OperateScope,
	perceptorv1.TaskService_PurgeTask_FullMethodName:           OperateScope,
	perceptorv1.DeadLetterService_ReplayDeadRun_FullMethodName: OperateScope,
	perceptorv1.DeadLetterService_PurgeDeadRun_FullMethodName:  OperateScope,
	perceptorv1.ImportService_RollbackImport_FullMethodName:    OperateScope,
	perceptorv1.BulkService_CreateBulkOperation_FullMethodName: OperateScope,
	perceptorv1.BulkService_AbortBulkOperation_FullMethodName:  OperateScope,
	perceptorv1.BulkService_PauseBulkOperation_FullMethodName:  OperateScope,
	perceptorv1.BulkService_ResumeBulkOperation_FullMethodName: OperateScope,
	perceptorv1.CalendarService_CreateCalendar_FullMethodName:  OperateScope,
	perceptorv1.CalendarService_UpdateCalendar_FullMethodName:  OperateScope,
	perceptorv1.CalendarService_DeleteCalendar_FullMethodName:  OperateScope,

	perceptorv1.RunService_StartRuns_FullMethodName:     ListenScope,
	perceptorv1.RunService_ReportResults_FullMethodName: ListenScope,
	perceptorv1.RunService_HeartbeatRuns_FullMethodName: ListenScope,
	perceptorv1.RunService_HandBackRuns_FullMethodName:  ListenScope,
	perceptorv1.RunService_CheckRuns_FullMethodName:     ListenScope,
	perceptorv1.RunService_GetDelivery_FullMethodName:   ListenScope,

	perceptorv1.AdminService_GetTenant_FullMethodName:   AdminReadScope | TenantAdminScope,
	perceptorv1.AdminService_ListTokens_FullMethodName:  AdminReadScope | TenantAdminScope,
	perceptorv1.AdminService_CreateToken_FullMethodName: AdminScope | TenantAdminScope,
	perceptorv1.AdminService_RotateToken_FullMethodName: AdminScope | TenantAdminScope,
	perceptorv1.AdminService_RevokeToken_FullMethodName: AdminScope | TenantAdminScope,

	perceptorv1.AuditService_ListAuditEvents_FullMethodName:       AdminReadScope,
	perceptorv1.AuditService_ListTenantAuditEvents_FullMethodName: ReadScope | TenantAdminScope,

	perceptorv1.MonitoringService_GetTenantFigures_FullMethodName:        ReadScope | InspectScope,
	perceptorv1.MonitoringService_GetForecast_FullMethodName:             ReadScope | InspectScope,
	perceptorv1.MonitoringService_ListTenantFigures_FullMethodName:       AdminReadScope,
	perceptorv1.MonitoringService_GetClusterFigures_FullMethodName:       AdminReadScope,
	perceptorv1.MonitoringService_GetInstallationForecast_FullMethodName: AdminReadScope,

	perceptorv1.AdminService_ListTenants_FullMethodName:        AdminReadScope,
	perceptorv1.AssignmentService_GetAssignment_FullMethodName: AdminReadScope,
	perceptorv1.ClockService_GetClock_FullMethodName:           AdminReadScope,

	perceptorv1.AdminService_CreateTenant_FullMethodName:        AdminScope,
	perceptorv1.AdminService_UpdateTenant_FullMethodName:        AdminScope,
	perceptorv1.AdminService_RotateTenantKey_FullMethodName:     AdminScope,
	perceptorv1.AdminService_PauseTenant_FullMethodName:         AdminScope,
	perceptorv1.AdminService_ResumeTenant_FullMethodName:        AdminScope,
	perceptorv1.AdminService_DeleteTenant_FullMethodName:        AdminScope,
	perceptorv1.AssignmentService_UpdateStrategy_FullMethodName: AdminScope,
	perceptorv1.AssignmentService_RaiseEpochs_FullMethodName:    AdminScope,
	perceptorv1.ClockService_AdvanceClock_FullMethodName:        AdminScope,
	perceptorv1.ClockService_SetClock_FullMethodName:            AdminScope,
}

// all returns s with the scopes that its scopes include.
func (s Scopes) all() Scopes {
	if s&TenantScope != 0 {
		s |= AddScope | ReadScope | OperateScope | ListenScope
	}
	if s&AdminScope != 0 {
		s |= AdminReadScope
	}
	return s
}

// list returns the scopes of s by number.
func (s Scopes) list() (list []perceptorv1.Token_Scope) {
	for n := perceptorv1.Token_TENANT; s>>n != 0; n++ {
		if s>>n&1 != 0 {
			list = append(list, n)
		}
	}
	return list
}

// String returns the names of the scopes, separated by "+".
func (s Scopes) String() string { return strings.Join(s.names(), "+") }

// names returns the names of the scopes in lower case, by number.
func (s Scopes) names() (names []string) {
	for _, n := range s.list() {
		names = append(names, strings.ToLower(n.String()))
	}
	return names
}

// ParseScope returns the scope with a name of the API in lower case.
func ParseScope(name string) (s Scopes, ok bool) {
	n, known := perceptorv1.Token_Scope_value[strings.ToUpper(name)]
	if !known || n == 0 || name != strings.ToLower(name) {
		return 0, false
	}
	return 1 << n, true
}
