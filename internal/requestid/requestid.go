// Package requestid carries the request id of a call in a context, from the server that
// takes the call to the log and to whatever else names it.
package requestid

import "context"

type key struct{}

// With returns a context that carries the id.
func With(ctx context.Context, id string) context.Context { return context.WithValue(ctx, key{}, id) }

// Of returns the id that a context carries, or "".
func Of(ctx context.Context) string {
	id, _ := ctx.Value(key{}).(string)
	return id
}
