package task

import "maps"

// ErrorReason says which rule or failure an [Error] is about. Programs may compare
// it: a reason keeps its spelling, its code and its meaning. docs/errors.md explains
// each one.
type ErrorReason string

// The general reasons of the codes, for an [Error] without a reason of its own.
const (
	ReasonInvalidField       ErrorReason = "INVALID_FIELD"
	ReasonNotFound           ErrorReason = "NOT_FOUND"
	ReasonAlreadyExists      ErrorReason = "ALREADY_EXISTS"
	ReasonFailedPrecondition ErrorReason = "FAILED_PRECONDITION"
	ReasonResourceExhausted  ErrorReason = "RESOURCE_EXHAUSTED"
	ReasonUnavailable        ErrorReason = "UNAVAILABLE"
	ReasonInternal           ErrorReason = "INTERNAL"
	ReasonDeadlineExceeded   ErrorReason = "DEADLINE_EXCEEDED"
)

// Reasons about the request.
const (
	ReasonMalformedRequest ErrorReason = "MALFORMED_REQUEST"
	ReasonRequestTooLarge  ErrorReason = "REQUEST_TOO_LARGE"
	ReasonUnknownPath      ErrorReason = "UNKNOWN_PATH"
	ReasonUnknownMethod    ErrorReason = "UNKNOWN_METHOD"
	ReasonTokenRefused     ErrorReason = "TOKEN_REFUSED"
	ReasonScopeMissing     ErrorReason = "SCOPE_MISSING"
	ReasonRequestSlow      ErrorReason = "REQUEST_TOO_SLOW"
	ReasonTooManyBadTokens ErrorReason = "TOO_MANY_BAD_TOKENS"
)

// Reasons about tasks and runs.
const (
	ReasonTaskNotFound      ErrorReason = "TASK_NOT_FOUND"
	ReasonDeadRunNotFound   ErrorReason = "DEAD_RUN_NOT_FOUND"
	ReasonRequestIDReused   ErrorReason = "REQUEST_ID_REUSED"
	ReasonKeyReused         ErrorReason = "IDEMPOTENCY_KEY_REUSED"
	ReasonVersionMismatch   ErrorReason = "VERSION_MISMATCH"
	ReasonTaskFinished      ErrorReason = "TASK_FINISHED"
	ReasonTaskNotFinished   ErrorReason = "TASK_NOT_FINISHED"
	ReasonTaskNotScheduled  ErrorReason = "TASK_NOT_SCHEDULED"
	ReasonTaskStarted       ErrorReason = "TASK_STARTED"
	ReasonRunOpen           ErrorReason = "RUN_OPEN"
	ReasonEndTimeReached    ErrorReason = "END_TIME_REACHED"
	ReasonMaxCountReached   ErrorReason = "MAX_COUNT_REACHED"
	ReasonListTooLarge      ErrorReason = "LIST_TOO_LARGE"
	ReasonTaskBusy          ErrorReason = "TASK_BUSY"
	ReasonTaskDamaged       ErrorReason = "TASK_DAMAGED"
	ReasonOperationNotFound ErrorReason = "OPERATION_NOT_FOUND"
	ReasonNewerProgram      ErrorReason = "NEWER_PROGRAM_NEEDED"
	ReasonOperationDamaged  ErrorReason = "OPERATION_DAMAGED"
	ReasonTooManyOperations ErrorReason = "TOO_MANY_OPERATIONS"
	ReasonOperationOpposed  ErrorReason = "OPERATION_OPPOSED"
	ReasonImportNotFound    ErrorReason = "IMPORT_NOT_FOUND"
	ReasonImportNotOpen     ErrorReason = "IMPORT_NOT_OPEN"
	ReasonImportIncomplete  ErrorReason = "IMPORT_INCOMPLETE"
	ReasonImportDamaged     ErrorReason = "IMPORT_DAMAGED"
	ReasonChunkReused       ErrorReason = "IMPORT_CHUNK_REUSED"
	ReasonTooManyImports    ErrorReason = "TOO_MANY_IMPORTS"
	ReasonStorageTooSmall   ErrorReason = "STORAGE_TOO_SMALL"
	ReasonStorageLow        ErrorReason = "STORAGE_LOW"
	ReasonCalendarNotFound  ErrorReason = "CALENDAR_NOT_FOUND"
	ReasonCalendarExists    ErrorReason = "CALENDAR_EXISTS"
	ReasonTooManyCalendars  ErrorReason = "TOO_MANY_CALENDARS"
)

// Reasons about tenants and tokens.
const (
	ReasonTenantNotFound     ErrorReason = "TENANT_NOT_FOUND"
	ReasonTenantExists       ErrorReason = "TENANT_EXISTS"
	ReasonTokenNotFound      ErrorReason = "TOKEN_NOT_FOUND"
	ReasonTokenEnded         ErrorReason = "TOKEN_ENDED"
	ReasonTooManyTokens      ErrorReason = "TOO_MANY_TOKENS"
	ReasonTooManyPausedKinds ErrorReason = "TOO_MANY_PAUSED_KINDS"
	ReasonTooManyKeys        ErrorReason = "TOO_MANY_KEYS"
	ReasonQuotaAddRate       ErrorReason = "QUOTA_ADD_RATE"
	ReasonQuotaMaxBacklog    ErrorReason = "QUOTA_MAX_BACKLOG"
	ReasonTenantBusy         ErrorReason = "TENANT_BUSY"
	ReasonHoldNeeded         ErrorReason = "HOLD_NEEDED"
	ReasonHoldEnding         ErrorReason = "HOLD_ENDING"
	ReasonTooManyChanges     ErrorReason = "TOO_MANY_CHANGES"
	ReasonTooManyUnknownRuns ErrorReason = "TOO_MANY_UNKNOWN_RUNS"
	ReasonQuotaReadRate      ErrorReason = "QUOTA_READ_RATE"
	ReasonQuotaUpdateRate    ErrorReason = "QUOTA_UPDATE_RATE"
	ReasonQuotaPreviewRate   ErrorReason = "QUOTA_PREVIEW_RATE"
	ReasonQuotaRunRate       ErrorReason = "QUOTA_RUN_RATE"
	ReasonQuotaByteRate      ErrorReason = "QUOTA_BYTE_RATE"
	ReasonQuotaCalls         ErrorReason = "QUOTA_MAX_CALLS"
	ReasonQuotaConnections   ErrorReason = "QUOTA_MAX_CONNECTIONS"
)

// Reasons about the installation.
const (
	ReasonDatabaseUnavailable  ErrorReason = "DATABASE_UNAVAILABLE"
	ReasonDatabaseStalled      ErrorReason = "DATABASE_STALLED"
	ReasonDatabaseBusy         ErrorReason = "DATABASE_BUSY"
	ReasonKafkaUnavailable     ErrorReason = "KAFKA_UNAVAILABLE"
	ReasonZooKeeperUnavailable ErrorReason = "ZOOKEEPER_UNAVAILABLE"
	ReasonServerBusy           ErrorReason = "SERVER_BUSY"
	ReasonServerStopping       ErrorReason = "SERVER_STOPPING"
	ReasonOutcomeUnknown       ErrorReason = "OUTCOME_UNKNOWN"
	ReasonNoAssignment         ErrorReason = "NO_ASSIGNMENT"
	ReasonNoDispatcher         ErrorReason = "NO_DISPATCHER"
	ReasonStrategyContended    ErrorReason = "STRATEGY_CONTENDED"
	ReasonNoVirtualClock       ErrorReason = "NO_VIRTUAL_CLOCK"
	ReasonClockStuck           ErrorReason = "CLOCK_STUCK"
	ReasonClockUnavailable     ErrorReason = "CLOCK_UNAVAILABLE"
	ReasonIssuerUnavailable    ErrorReason = "ISSUER_UNAVAILABLE"
)

// generalReasons holds the reason of errors that have none of their own, by code.
var generalReasons = map[ErrorCode]ErrorReason{
	InvalidArgument:    ReasonInvalidField,
	NotFound:           ReasonNotFound,
	AlreadyExists:      ReasonAlreadyExists,
	FailedPrecondition: ReasonFailedPrecondition,
	ResourceExhausted:  ReasonResourceExhausted,
	Unavailable:        ReasonUnavailable,
	Internal:           ReasonInternal,
	DataLoss:           ReasonTaskDamaged,
	Aborted:            ReasonVersionMismatch,
	Unauthenticated:    ReasonTokenRefused,
	PermissionDenied:   ReasonScopeMissing,
	DeadlineExceeded:   ReasonDeadlineExceeded,
	Unimplemented:      ReasonUnknownMethod,
}

// reasonCodes holds the code of every reason.
var reasonCodes = func() map[ErrorReason]ErrorCode {
	codes := map[ErrorReason]ErrorCode{}
	for code, reason := range generalReasons {
		codes[reason] = code
	}
	for code, reasons := range map[ErrorCode][]ErrorReason{
		InvalidArgument: {ReasonMalformedRequest, ReasonRequestTooLarge},
		NotFound: {ReasonUnknownPath, ReasonTaskNotFound, ReasonDeadRunNotFound, ReasonOperationNotFound, ReasonImportNotFound, ReasonTenantNotFound,
			ReasonTokenNotFound, ReasonNoDispatcher, ReasonCalendarNotFound},
		AlreadyExists: {ReasonRequestIDReused, ReasonKeyReused, ReasonChunkReused, ReasonTenantExists, ReasonCalendarExists},
		FailedPrecondition: {ReasonTaskFinished, ReasonTaskNotFinished, ReasonTaskNotScheduled, ReasonTaskStarted, ReasonRunOpen,
			ReasonEndTimeReached, ReasonMaxCountReached, ReasonListTooLarge, ReasonTooManyPausedKinds, ReasonTooManyKeys, ReasonTokenEnded, ReasonTooManyTokens, ReasonNoAssignment,
			ReasonNoVirtualClock, ReasonClockStuck, ReasonHoldNeeded, ReasonImportNotOpen, ReasonImportIncomplete, ReasonStorageTooSmall, ReasonOperationOpposed},
		ResourceExhausted: {ReasonTooManyOperations, ReasonTooManyImports, ReasonStorageLow, ReasonTooManyCalendars, ReasonQuotaAddRate, ReasonQuotaMaxBacklog, ReasonQuotaReadRate, ReasonQuotaUpdateRate,
			ReasonQuotaPreviewRate, ReasonQuotaRunRate, ReasonQuotaByteRate, ReasonQuotaCalls, ReasonQuotaConnections, ReasonDatabaseBusy,
			ReasonTenantBusy, ReasonTooManyChanges, ReasonTooManyUnknownRuns, ReasonTooManyBadTokens},
		DeadlineExceeded: {ReasonRequestSlow},
		Unavailable: {ReasonTaskBusy, ReasonNewerProgram, ReasonDatabaseUnavailable, ReasonDatabaseStalled, ReasonKafkaUnavailable,
			ReasonZooKeeperUnavailable, ReasonServerBusy, ReasonServerStopping, ReasonOutcomeUnknown, ReasonStrategyContended, ReasonClockUnavailable,
			ReasonIssuerUnavailable, ReasonHoldEnding},
		DataLoss: {ReasonOperationDamaged, ReasonImportDamaged},
	} {
		for _, reason := range reasons {
			codes[reason] = code
		}
	}
	return codes
}()

// Code returns the code of errors with the reason. It returns [Internal] for an unknown
// reason.
func (r ErrorReason) Code() ErrorCode {
	if code, ok := reasonCodes[r]; ok {
		return code
	}
	return Internal
}

// ErrorReasons returns the code of every reason.
func ErrorReasons() map[ErrorReason]ErrorCode { return maps.Clone(reasonCodes) }
