package server

import (
	"context"
	"log/slog"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/perceptor/perceptor/task"
)

// tenantHeader names the tenant whose tasks a caller with [InspectScope] reads. It means
// nothing in other calls: the tenant of other callers is that of their identity.
const tenantHeader = "perceptor-tenant"

// Inspection is a call by which an operator has read a tenant's tasks, without params.
type Inspection struct {
	// Caller is the operator's [Identity.TokenID].
	Caller string
	Tenant Tenant
	// Method is "Service/Method", and Request what it was called with; nil: it could not be
	// decoded.
	Method  string
	Request proto.Message
	// Code is what the call would answer.
	Code codes.Code
	// Source and RequestID are those of [task.AuditEvent].
	Source, RequestID string
}

// Object returns the id or name of what the call reads; "" for a list.
func (i *Inspection) Object() string {
	for _, path := range []string{"id", "task_id", "run_id"} {
		if object := textAt(path, i.Request); object != "" {
			return object
		}
	}
	return keyNameOf(i.Request)
}

// Inspections records each use of [InspectScope] before the caller gets the answer. If it
// fails, the caller gets none.
type Inspections func(ctx context.Context, i Inspection) error

// inspect returns the identity of an operator for the tenant that the call names.
func (g *gate) inspect(ctx context.Context, operator *Identity) (*Identity, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	named := md.Get(tenantHeader)
	if len(named) != 1 {
		return nil, invalid([]task.Fault{faultf(tenantHeader, "the scope INSPECT needs this header once, with a tenant's name")})
	}
	r := &reader{}
	if r.tenantName(tenantHeader, named[0]); len(r.faults) > 0 {
		return nil, invalid(r.faults)
	}
	t, err := g.tenants.Tenant(ctx, named[0])
	if err != nil {
		return nil, err
	}
	return &Identity{TokenID: operator.TokenID, Scopes: InspectScope, Tenant: t, inspects: true}, nil
}

// inspected records the end of a call, if it is an inspection.
func (g *gate) inspected(ctx context.Context, c *call, err error) error {
	if c.who == nil || !c.who.inspects {
		return nil
	}
	_, answer := statusOf(err)
	code := status.Code(answer)
	g.log.LogAttrs(ctx, slog.LevelInfo, "tenant inspected", append(c.attrs(), slog.String("code", code.String()))...)
	if g.inspections == nil {
		return nil
	}
	return g.inspections(ctx, Inspection{Caller: c.who.TokenID, Tenant: c.who.Tenant, Method: c.name(), Request: c.request, Code: code, Source: originOf(ctx), RequestID: requestID(ctx)})
}

// seesParams reports whether the caller may see params in answers. Listeners get them with
// their runs in any case.
func (id *Identity) seesParams() bool { return id.scopes()&(ReadScope|ListenScope) != 0 }

// hideParams removes params and payloads from an answer, at any depth.
func hideParams(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case slices.Contains(paramsFields, f.Name()):
			m.Clear(f)
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				hideParams(v.List().Get(i).Message())
			}
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					hideParams(v.Message())
					return true
				})
			}
		default:
			hideParams(v.Message())
		}
		return true
	})
}

// paramsFields are the names of the fields with params and payloads, in all messages.
var paramsFields = []protoreflect.Name{"params", "payload"}
