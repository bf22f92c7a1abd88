package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestRotatingAKeyShowsNoSecret(t *testing.T) {
	b := setup(t)
	var got perceptorv1.RotateTenantKeyResponse
	b.overHTTP("admin-secret", createTenant, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: "acme"}}, nil)
	const rotate = perceptorv1.AdminService_RotateTenantKey_FullMethodName
	b.overHTTP("admin-secret", rotate, &perceptorv1.RotateTenantKeyRequest{Name: "acme", Overlap: durationpb.New(time.Hour)}, &got)
	if len(got.Keys) != 2 || got.Keys[0].ExpireTime.AsTime() != fakeNow.Add(time.Hour).Time() || got.Keys[1].ExpireTime != nil {
		t.Errorf("keys = %v, want the first to end in an hour", got.Keys)
	}
	if text := protojson.Format(&got); strings.Contains(text, "c2Vjb25k") || strings.Contains(text, "second") {
		t.Errorf("a secret is shown: %s", text)
	}
}
