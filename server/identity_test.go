package server

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestCallersLearnWhatTheirCredentialsStandFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for secret, want := range map[string]*perceptorv1.Identity{
		"scope-READ":    {Name: "scope-READ", Tenant: "acme", Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_READ}},
		"scope-INSPECT": {Name: "scope-INSPECT", Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_INSPECT}},
		"scope-ADMIN":   {Name: "scope-ADMIN", Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_ADMIN, perceptorv1.Token_ADMIN_READ}},
	} {
		got := &perceptorv1.Identity{}
		a := b.overGRPC(secret, perceptorv1.IdentityService_GetIdentity_FullMethodName, &perceptorv1.GetIdentityRequest{}, got)
		if a.code != codes.OK || !proto.Equal(got, want) {
			t.Errorf("%s: %s %v", secret, a.code, got)
		}
	}
}
