package server

import (
	"context"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

const (
	// defaultKeyOverlap is how long a key remains valid after its rotation. Most records
	// are read within a second; those of a listener that is down for longer are
	// delivered again.
	defaultKeyOverlap = 24 * time.Hour
	maxKeyOverlap     = 30 * 24 * time.Hour
)

func (s *adminService) RotateTenantKey(ctx context.Context, r *perceptorv1.RotateTenantKeyRequest) (*perceptorv1.RotateTenantKeyResponse, error) {
	check := &reader{}
	check.tenantName("name", r.Name)
	overlap := defaultKeyOverlap
	if r.Overlap != nil {
		overlap = check.duration("overlap", r.Overlap, 0, maxKeyOverlap)
	}
	if len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	keys, err := s.store.RotateKey(ctx, r.Name, overlap)
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "tenant key rotated", "tenant", r.Name, "caller", identityOf(ctx).TokenID)
	reply := &perceptorv1.RotateTenantKeyResponse{}
	for _, k := range keys {
		reply.Keys = append(reply.Keys, &perceptorv1.TenantKey{Id: k.ID, StartTime: timestamp(max(k.StartsAt, 1)), ExpireTime: timestamp(k.ExpiresAt)})
	}
	return reply, nil
}
