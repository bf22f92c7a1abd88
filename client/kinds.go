package client

import (
	"context"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// PauseKind stops claiming runs of a kind until ResumeKind, including those of
// tasks that are added later. It returns the paused kinds of the tenant. Runs
// that are already claimed may still arrive. Pausing a paused kind has no
// effect.
func (c *Client) PauseKind(ctx context.Context, kind string) (paused []string, err error) {
	a, err := call(ctx, c, "PauseKind", c.tasks.PauseKind, &perceptorv1.PauseKindRequest{Kind: kind})
	return a.GetPausedKinds(), err
}

// ResumeKind resumes a paused kind and returns the kinds that are still paused.
// Instants missed meanwhile follow the misfire policy.
func (c *Client) ResumeKind(ctx context.Context, kind string) (paused []string, err error) {
	a, err := call(ctx, c, "ResumeKind", c.tasks.ResumeKind, &perceptorv1.ResumeKindRequest{Kind: kind})
	return a.GetPausedKinds(), err
}
