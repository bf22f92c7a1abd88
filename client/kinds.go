package client

import (
	"context"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// PauseKind stops claiming new runs of a kind until ResumeKind, also of tasks that
// are added later, and returns the kinds of the tenant that are paused. Runs already
// claimed may still arrive. A kind that is paused stays as it is.
func (c *Client) PauseKind(ctx context.Context, kind string) (paused []string, err error) {
	a, err := call(ctx, c, "PauseKind", c.tasks.PauseKind, &perceptorv1.PauseKindRequest{Kind: kind})
	return a.GetPausedKinds(), err
}

// ResumeKind lets a paused kind go on, and returns the kinds that are still paused.
// Instants missed meanwhile follow the misfire policy.
func (c *Client) ResumeKind(ctx context.Context, kind string) (paused []string, err error) {
	a, err := call(ctx, c, "ResumeKind", c.tasks.ResumeKind, &perceptorv1.ResumeKindRequest{Kind: kind})
	return a.GetPausedKinds(), err
}
