package task

// AuditEvent says what one caller did, or tried to do, about tenants, tokens, tasks and
// their limits. Adds and the calls of listeners are no audit events.
type AuditEvent struct {
	// At is when the call ended, by the clock of the process that answered it. It never
	// follows a virtual clock. ID is random; both together identify an event.
	At Instant
	ID int64
	// Tenant is the number of the tenant whose data or settings the event is about,
	// [AuditInstallation] or [AuditLogins].
	Tenant     int32
	TenantName string
	// Actor is a token's id, the subject of another credential, or user@host for a command
	// that works without the API. Of a refused login it is what the caller claims.
	Actor string
	// Operator says that the actor does not belong to the tenant. The tenant does not learn
	// its name and address.
	Operator bool
	// Source is the address of the connection; "" if there is none.
	Source string
	// Action is "Service/Method" of the API, one of the constants below, or the name of a command.
	Action string
	// Object is the id or name of what the action is about; "" if there is none.
	Object string
	// Result is OK, or the name of the status code.
	Result    string
	RequestID string
	Changes   []AuditChange
}

// AuditChange is a field that an action has changed, with its values as text. Before or
// After is "" if the field was not set.
type AuditChange struct {
	Field  string `json:"field"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Values of [AuditEvent.Tenant] that are no tenants.
const (
	AuditInstallation int32 = 0
	AuditLogins       int32 = -1
)

// Actions that are not calls.
const (
	// AuditLogin is a call whose credential was refused.
	AuditLogin = "login"
	// AuditDropped tells how many events were not recorded.
	AuditDropped = "dropped"
)

// Limits of audit events, in bytes. Longer texts are cut.
const (
	MaxAuditText    = 256  // of each field
	MaxAuditChanges = 2048 // of all changes together
)

// AuditQuery selects audit events. Empty texts select all.
type AuditQuery struct {
	// AnyTenant selects the events of all tenants; otherwise only those of Tenant are
	// selected.
	AnyTenant bool
	Tenant    int32
	// Own says that the tenant itself asks: it does not know the ids of operators, so Actor does not
	// select their events.
	Own    bool
	Actor  string
	Action string
	Object string
	// From and Until bound At; 0 means no bound. Until is exclusive.
	From, Until Instant
	// After is the last event of the page before; nil for the first page.
	After *AuditCursor
	Limit int
}

// AuditCursor is the position of an event in a list, newest first.
type AuditCursor struct {
	At Instant
	ID int64
}

// AuditPage is a part of a list of events.
type AuditPage struct {
	Events []AuditEvent
	// Missing are the databases that did not answer.
	Missing []int
	// Next is nil if there are no further events.
	Next *AuditCursor
}
