package server

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func TestATenantIsCreatedOnceWithItsDefaults(t *testing.T) {
	b := setup(t)
	request := &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: "a-1", Topic: "mine", CreateTime: after(time.Hour)}}
	var got perceptorv1.Tenant
	if a := b.overHTTP("admin-secret", createTenant, request, &got); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	want := &perceptorv1.Tenant{
		Name: "a-1", MaxParamsBytes: task.DefaultMaxParamsBytes, DefaultRetention: durationpb.New(time.Hour),
		Topic: "perceptor.a-1", CreateTime: after(0), History: perceptorv1.Tenant_SLOW, Weight: 1,
		HistorySlowAfter: durationpb.New(task.DefaultSlowAfter), HistorySample: task.DefaultHistorySample,
	}
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	a := b.overHTTP("admin-secret", createTenant, request, nil)
	if a.http != http.StatusConflict || a.code != codes.AlreadyExists {
		t.Errorf("the second time: %d %s", a.http, a.code)
	}
	got.Reset()
	b.overGRPC("admin-secret", getTenant, &perceptorv1.GetTenantRequest{Name: "a-1"}, &got)
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("get (-want +got)\n%s", diff)
	}
	if a := b.overHTTP("admin-secret", getTenant, &perceptorv1.GetTenantRequest{Name: "nobody"}, nil); a.http != http.StatusNotFound {
		t.Errorf("an unknown tenant: %d", a.http)
	}
}

func TestATenantsOwnLimitsAreKept(t *testing.T) {
	b := setup(t)
	request := &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: "a", MaxParamsBytes: 1, DefaultRetention: durationpb.New(0)}}
	var got perceptorv1.Tenant
	b.overGRPC("admin-secret", createTenant, request, &got)
	if got.MaxParamsBytes != 1 || got.DefaultRetention.AsDuration() != 0 {
		t.Errorf("%v", &got)
	}
}

func TestTenantsAndTokensArePaged(t *testing.T) {
	b := setup(t)
	for i := range 7 {
		name := fmt.Sprintf("t%d", i)
		b.overGRPC("admin-secret", createTenant, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: name}}, &perceptorv1.Tenant{})
		b.overGRPC("admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{Scope: perceptorv1.Token_TENANT, Tenant: "t" + fmt.Sprint(i%2)}}, &perceptorv1.CreateTokenResponse{})
	}
	var names, ids []string
	tenants := &perceptorv1.ListTenantsRequest{PageSize: 3}
	for {
		var page perceptorv1.ListTenantsResponse
		b.overHTTP("admin-secret", listTenants, tenants, &page)
		for _, t := range page.Tenants {
			names = append(names, t.Name)
		}
		if tenants.PageToken = page.NextPageToken; tenants.PageToken == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"t0", "t1", "t2", "t3", "t4", "t5", "t6"}, names); diff != "" {
		t.Errorf("tenants (-want +got)\n%s", diff)
	}
	tokens := &perceptorv1.ListTokensRequest{PageSize: 2, Tenant: "t0"}
	var token string
	for {
		var page perceptorv1.ListTokensResponse
		b.overHTTP("admin-secret", listTokens, tokens, &page)
		for _, t := range page.Tokens {
			ids = append(ids, t.Id)
		}
		if tokens.PageToken = page.NextPageToken; tokens.PageToken == "" {
			break
		}
		token = tokens.PageToken
	}
	if diff := cmp.Diff([]string{"pt_1", "pt_3", "pt_5", "pt_7"}, ids); diff != "" {
		t.Errorf("tokens (-want +got)\n%s", diff)
	}
	a := b.overGRPC("admin-secret", listTokens, &perceptorv1.ListTokensRequest{PageToken: token, Tenant: "t1"}, &perceptorv1.ListTokensResponse{})
	expectFaults(t, a, "", []string{"page_token"}, "other fields")
}

func TestATokensSecretIsShownOnce(t *testing.T) {
	b := setup(t)
	request := &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{
		Scope: perceptorv1.Token_TENANT, Tenant: "acme", Description: "the shop's", ExpireTime: after(time.Hour), Id: "mine",
	}}
	var created perceptorv1.CreateTokenResponse
	if a := b.overHTTP("admin-secret", createToken, request, &created); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	want := &perceptorv1.Token{
		Id: "pt_1", Scope: perceptorv1.Token_TENANT, Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_TENANT}, Tenant: "acme", Description: "the shop's", ExpireTime: after(time.Hour), CreateTime: after(0),
	}
	if diff := cmp.Diff(want, created.Token, protocmp.Transform()); diff != "" || created.Secret != "pt_1_secret" {
		t.Errorf("secret %q (-want +got)\n%s", created.Secret, diff)
	}
	var revoked, again perceptorv1.Token
	b.overHTTP("admin-secret", revokeToken, &perceptorv1.RevokeTokenRequest{Id: "pt_1"}, &revoked)
	b.overGRPC("admin-secret", revokeToken, &perceptorv1.RevokeTokenRequest{Id: "pt_1"}, &again)
	want.RevokeTime = after(0)
	if diff := cmp.Diff(want, &revoked, protocmp.Transform()); diff != "" {
		t.Errorf("revoked (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(&revoked, &again, protocmp.Transform()); diff != "" {
		t.Errorf("revoked again (-first +again)\n%s", diff)
	}
	if a := b.overHTTP("admin-secret", revokeToken, &perceptorv1.RevokeTokenRequest{Id: "pt_9"}, nil); a.http != http.StatusNotFound {
		t.Errorf("an unknown token: %d", a.http)
	}
}
