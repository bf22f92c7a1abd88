package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/requestid"
	"github.com/perceptor/perceptor/task"
)

// Audit is the audit log. All methods may be called concurrently.
type Audit interface {
	// AdmitAudit reports whether the event of a call may be recorded, of which Tenant,
	// TenantName and Operator are set as far as they are known, and Result, Actor and Source if
	// the call was denied. If not, it counts it.
	AdmitAudit(e task.AuditEvent) bool
	// RecordAudit records an event that was admitted; it sets ID and At. It returns soon,
	// whether the event can be stored or not.
	RecordAudit(ctx context.Context, e task.AuditEvent)
	// ListAudit returns the page of events after a cursor, newest first.
	ListAudit(ctx context.Context, q task.AuditQuery) (task.AuditPage, error)
}

// apiPackage begins the names of methods. Actions do without.
const apiPackage = "perceptor.v1."

// auditReads bounds each read of a state for the audit log.
const auditReads = time.Second

// auditor records the calls that the table [audited] names, and all refused ones. The zero
// value records nothing.
type auditor struct {
	log  Audit // may be nil
	deps *Deps
}

// auditing is an audited call.
type auditing struct {
	// admitted is false if the call's event will not be kept: then nothing is read for it.
	admitted bool
	rule     auditRule
	request  proto.Message
	before   proto.Message // nil: not known, or nothing
	// What the answer tells.
	object, tenant string
	changes        []task.AuditChange
}

// begin reads the state before a call. It returns nil if the call is not audited.
func (a *auditor) begin(ctx context.Context, method string, request proto.Message) *auditing {
	rule, ok := audited[method]
	if !ok || a.log == nil {
		return nil
	}
	if !a.log.AdmitAudit(auditOf(identityOf(ctx), textAt(rule.tenant, request))) {
		return &auditing{}
	}
	// The method may change its request.
	c := &auditing{admitted: true, rule: rule, request: proto.Clone(request), object: cmp.Or(textAt(rule.object, request), keyNameOf(request))}
	if rule.before != nil {
		ctx, cancel := context.WithTimeout(ctx, auditReads)
		defer cancel()
		// The call itself finds out what is wrong. Without the state, the event shows less.
		if before, err := rule.before(ctx, a.deps, request); err == nil {
			c.before = before
		}
	}
	return c
}

// upserted records that upserts have changed tasks: adds are not recorded, but these are changes of
// what was there.
func (a *auditor) upserted(ctx context.Context, ids []task.ID) {
	if a == nil || a.log == nil || len(ids) == 0 {
		return
	}
	e := auditOf(identityOf(ctx), "")
	if !a.log.AdmitAudit(e) {
		return
	}
	e.Action, e.Object, e.Result, e.Source, e.RequestID = "TaskService/AddTasks", ids[0].String(), rpccode.Code_OK.String(), originOf(ctx), requestID(ctx)
	e.Changes = []task.AuditChange{{Field: "upsert", After: "changed"}}
	if n := len(ids); n > 1 {
		e.Changes[0].After = fmt.Sprintf("changed %d tasks, of which the object is the first", n)
	}
	a.log.RecordAudit(context.WithoutCancel(ctx), e)
}

// auditOf returns the event of a caller. tenant is the name of the tenant that an operator's call
// is about.
func auditOf(who *Identity, tenant string) task.AuditEvent {
	e := task.AuditEvent{Actor: who.TokenID, Operator: who.Tenant.ID == 0, Tenant: who.Tenant.ID, TenantName: who.Tenant.Name}
	if e.Operator {
		e.TenantName = tenant
	}
	return e
}

// answered takes from the answer of a call what its event holds.
func (c *auditing) answered(reply any, err error) {
	if c == nil || !c.admitted {
		return
	}
	var answer proto.Message
	if err == nil {
		answer = reply.(proto.Message)
		c.changes = changesOf(&c.rule, c.before, answer)
	}
	c.object, c.tenant = cmp.Or(textAt(c.rule.object, answer, c.request), keyNameOf(c.request)), textAt(c.rule.tenant, answer, c.request)
}

// end records a call that has ended with err, which is a status. An inspection was recorded
// before.
func (a *auditor) end(ctx context.Context, c *call, err error) {
	code := status.Code(err)
	login := c.who == nil && code == codes.Unauthenticated
	denied := c.who != nil && c.request == nil && code == codes.PermissionDenied
	if a.log == nil || c.audit == nil && !login && !denied {
		return
	}
	e := task.AuditEvent{Tenant: task.AuditLogins, Actor: claimedToken(c.headers)}
	if !login {
		e = auditOf(c.who, "")
	}
	e.Action, e.Result, e.Source, e.RequestID = actionOf(c), rpccode.Code(code).String(), originOf(ctx), requestID(ctx)
	if c.audit == nil && !a.log.AdmitAudit(e) || c.audit != nil && !c.audit.admitted {
		return
	}
	ctx = context.WithoutCancel(ctx)
	if login {
		e.Action, e.Object = task.AuditLogin, e.Action
	}
	if c.audit != nil {
		e.Object, e.Changes = c.audit.object, c.audit.changes
		a.aboutTenant(ctx, &e, c.audit.tenant)
	}
	a.log.RecordAudit(ctx, e)
}

// actionOf returns the method of a call as events name it.
func actionOf(c *call) string { return strings.TrimPrefix(c.name(), apiPackage) }

// aboutTenant sets the tenant of the event of an operator's call.
func (a *auditor) aboutTenant(ctx context.Context, e *task.AuditEvent, name string) {
	if !e.Operator || name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, auditReads)
	defer cancel()
	if t, err := a.deps.Admin.Tenant(ctx, name); err == nil {
		e.Tenant, e.TenantName = t.ID, t.Name
	}
}

// tokenForm matches the public part of a token's secret.
var tokenForm = regexp.MustCompile(`^(pct_[a-z0-9]{12})_`)

// claimedToken returns the id in the secret of a refused call, or "" if the secret has another
// form. Nothing else of a secret is recorded.
func claimedToken(headers []string) string {
	if m := tokenForm.FindStringSubmatch(secretFrom(headers)); m != nil {
		return m[1]
	}
	return ""
}

// originKey is the key of the address of an HTTP request.
type originKey struct{}

// originOf returns the address of the caller's connection.
func originOf(ctx context.Context) string {
	if address, ok := ctx.Value(originKey{}).(string); ok {
		return address
	}
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

const (
	requestIDHeader   = "x-request-id"
	maxRequestIDBytes = 128
)

// withOrigin adds address and request id of an HTTP request to its context, and tells the
// caller the request id.
func withOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := validRequestID(r.Header.Values(requestIDHeader))
		w.Header().Set(requestIDHeader, id)
		ctx := context.WithValue(r.Context(), originKey{}, r.RemoteAddr)
		next.ServeHTTP(w, r.WithContext(requestid.With(ctx, id)))
	})
}

// requestID returns the request id of a call. If there is none yet, it is the caller's, or a
// new one, and the caller of a gRPC call gets it in a header.
func requestID(ctx context.Context) string {
	if id := requestid.Of(ctx); id != "" {
		return id
	}
	md, _ := metadata.FromIncomingContext(ctx)
	id := validRequestID(md.Get(requestIDHeader))
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestIDHeader, id)) // the caller may have gone
	return id
}

// validRequestID returns the one id of the headers, or a new one.
func validRequestID(headers []string) string {
	if len(headers) == 1 && headers[0] != "" && printableFault(requestIDHeader, headers[0], maxRequestIDBytes) == nil {
		return headers[0]
	}
	return rand.Text()
}
