package server

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// identityService implements the API's IdentityService.
type identityService struct {
	perceptorv1.UnimplementedIdentityServiceServer
}

// GetIdentity returns the identity of the caller.
func (identityService) GetIdentity(ctx context.Context, _ *perceptorv1.GetIdentityRequest) (*perceptorv1.Identity, error) {
	id := identityOf(ctx)
	a := &perceptorv1.Identity{Name: id.TokenID, Tenant: id.Tenant.Name, Scopes: id.scopes().list()}
	if id.Left > 0 {
		a.ValidFor = durationpb.New(id.Left)
	}
	return a, nil
}
