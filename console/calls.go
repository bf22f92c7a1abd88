package console

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// calls makes the calls of pages. The error of one that the API refuses for its credentials is a
// [refusedLogin].
type calls struct{ grpc.ClientConnInterface }

// Invoke implements [grpc.ClientConnInterface].
func (c calls) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, options...)
	if status.Code(err) != codes.Unauthenticated {
		return err
	}
	sent, _ := metadata.FromOutgoingContext(ctx)
	return &refusedLogin{err, strings.TrimPrefix(strings.Join(sent.Get("authorization"), ""), "Bearer ")}
}

// refusedLogin says which login the API does not accept. A session has several.
type refusedLogin struct {
	error
	secret string
}

// GRPCStatus returns the answer of the API.
func (r *refusedLogin) GRPCStatus() *status.Status { return status.Convert(r.error) }
