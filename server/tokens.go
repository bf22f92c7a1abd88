package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	maxTokenIDBytes     = 64
	maxDescriptionBytes = 200
	defaultOverlap      = 24 * time.Hour
	maxOverlap          = 30 * 24 * time.Hour
)

// ownTenant refuses callers of a tenant that ask about another one, or about the
// installation. It says the same whether the other one exists or not.
func ownTenant(ctx context.Context, name string) error {
	if own := tenantOf(ctx); own.ID != 0 && name != own.Name {
		return reasoned(task.ReasonScopeMissing, fmt.Sprintf("a token of tenant %s covers calls about that tenant only", own.Name))
	}
	return nil
}

// tenantOr returns the name, or that of the caller's tenant if it is empty.
func tenantOr(ctx context.Context, name string) string {
	if name == "" {
		return tenantOf(ctx).Name
	}
	return name
}

func (s *adminService) CreateToken(ctx context.Context, r *perceptorv1.CreateTokenRequest) (*perceptorv1.CreateTokenResponse, error) {
	t, faults := newToken(r.Token, tenantOf(ctx).Name)
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	if err := ownTenant(ctx, t.Tenant); err != nil {
		return nil, err
	}
	leave, err := s.settings.enterTokens(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	created, secret, err := s.store.CreateToken(ctx, t)
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "token created", "token", created.ID, "tenant", created.Tenant, "caller", identityOf(ctx).TokenID)
	return &perceptorv1.CreateTokenResponse{Token: tokenReply(created), Secret: secret}, nil
}

// newToken reads a token. own is the caller's tenant, or empty.
func newToken(t *perceptorv1.Token, own string) (Token, []task.Fault) {
	if t == nil {
		return Token{}, []task.Fault{faultf("token", "is missing")}
	}
	r := &reader{}
	token := Token{Scopes: r.scopes(t), Tenant: t.Tenant, Description: t.Description, RevokedAt: task.Never, LastUsedAt: task.Never}
	switch {
	case token.Scopes == 0: // and the rules for the tenant are unknown
	case token.Scopes&OfInstallation == 0:
		if token.Tenant == "" {
			token.Tenant = own
		}
		r.tenantName("tenant", token.Tenant)
	case token.Scopes&OfTenant != 0:
		r.fault("scopes", "%s: a token has scopes of a tenant or scopes of the installation, not both", token.Scopes)
	case t.Tenant != "":
		r.fault("tenant", "%.40q: a token of the scopes ADMIN, ADMIN_READ and INSPECT has no tenant", t.Tenant)
	}
	if t.Description != "" {
		if message := task.NameFault(t.Description, maxDescriptionBytes); message != "" {
			r.fault("description", "%s", message)
		}
	}
	token.ExpiresAt = r.instant("expire_time", t.ExpireTime)
	return token, under("token", r.faults)
}

// scopes reads the scopes of a token, from one field or the other. It returns 0 if one is
// wrong.
func (r *reader) scopes(t *perceptorv1.Token) (s Scopes) {
	given, field := t.Scopes, "scopes"
	if t.Scope != 0 || len(given) == 0 {
		given, field = []perceptorv1.Token_Scope{t.Scope}, "scope"
		if len(t.Scopes) > 0 && !slices.Equal(given, t.Scopes) {
			r.fault("scope", "%s: scopes is set too, and says something else", t.Scope)
		}
	}
	for _, one := range given {
		if _, known := perceptorv1.Token_Scope_name[int32(one)]; !known || one == 0 {
			r.fault(field, "%d is not a scope", int32(one))
			return 0
		}
		s |= 1 << one
	}
	return s
}

func (s *adminService) ListTokens(ctx context.Context, r *perceptorv1.ListTokensRequest) (*perceptorv1.ListTokensResponse, error) {
	tenant := tenantOr(ctx, r.Tenant)
	hash := pageHash("tokens", tenant)
	limit, badSize := pageSize(r.PageSize)
	after, badToken := cursorOf(hash, r.PageToken)
	check := &reader{faults: present(badSize, badToken)}
	if tenant != "" {
		check.tenantName("tenant", tenant)
	}
	if len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	if err := ownTenant(ctx, tenant); err != nil {
		return nil, err
	}
	tokens, err := s.store.Tokens(ctx, tenant, after, limit)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListTokensResponse{}
	for _, t := range tokens {
		reply.Tokens = append(reply.Tokens, tokenReply(t))
	}
	if len(tokens) >= limit {
		reply.NextPageToken = pageToken(hash, tokens[len(tokens)-1].ID)
	}
	return reply, nil
}

func (s *adminService) RotateToken(ctx context.Context, r *perceptorv1.RotateTokenRequest) (*perceptorv1.RotateTokenResponse, error) {
	check := &reader{}
	check.tokenID(r.Id)
	want := Rotation{ID: r.Id, Tenant: tenantOf(ctx).ID, Overlap: defaultOverlap, ExpiresAt: check.instant("expire_time", r.ExpireTime)}
	if r.Overlap != nil {
		want.Overlap = check.duration("overlap", r.Overlap, 0, maxOverlap)
	}
	if len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	leave, err := s.settings.enterTokens(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	created, replaced, secret, err := s.store.RotateToken(ctx, want)
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "token rotated", "token", replaced.ID, "successor", created.ID, "tenant", created.Tenant, "caller", identityOf(ctx).TokenID)
	return &perceptorv1.RotateTokenResponse{Token: tokenReply(created), Secret: secret, Replaced: tokenReply(replaced)}, nil
}

func (s *adminService) RevokeToken(ctx context.Context, r *perceptorv1.RevokeTokenRequest) (*perceptorv1.Token, error) {
	check := &reader{}
	if check.tokenID(r.Id); len(check.faults) > 0 {
		return nil, invalid(check.faults)
	}
	leave, err := s.settings.enterTokens(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	t, err := s.store.RevokeToken(ctx, r.Id, tenantOf(ctx).ID)
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "token revoked", "token", t.ID, "tenant", t.Tenant, "caller", identityOf(ctx).TokenID)
	return tokenReply(t), nil
}

func (r *reader) tokenID(id string) {
	if message := task.NameFault(id, maxTokenIDBytes); message != "" {
		r.fault("id", "%s", message)
	}
}

func tokenReply(t Token) *perceptorv1.Token {
	reply := &perceptorv1.Token{
		Id:          t.ID,
		Scopes:      t.Scopes.list(),
		Tenant:      t.Tenant,
		Description: t.Description,
		ExpireTime:  timestamp(t.ExpiresAt),
		CreateTime:  timestamp(t.CreatedAt),
		RevokeTime:  timestamp(t.RevokedAt),
		LastUseTime: timestamp(t.LastUsedAt),
	}
	if len(reply.Scopes) == 1 {
		reply.Scope = reply.Scopes[0]
	}
	return reply
}
