package stack

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

const (
	tenantName = "load"
	adminWait  = 30 * time.Second
)

// createTenant makes a tenant and returns the secret of a token for it.
func createTenant(ctx context.Context, address, admin string) (string, error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+admin), adminWait)
	defer cancel()
	first, _, _ := strings.Cut(address, ",")
	conn, err := grpc.NewClient(first, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", fmt.Errorf("dial %s: %w", first, err)
	}
	defer conn.Close()
	api := perceptorv1.NewAdminServiceClient(conn)
	if _, err := api.CreateTenant(ctx, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: tenantName}}); err != nil {
		return "", fmt.Errorf("create tenant: %w", err)
	}
	token, err := api.CreateToken(ctx, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{
		Scope: perceptorv1.Token_TENANT, Tenant: tenantName, Description: "load test",
	}})
	if err != nil {
		return "", fmt.Errorf("create token: %w", err)
	}
	return token.GetSecret(), nil
}

// ExternalOptions say where an installation is that runs already.
type ExternalOptions struct {
	Address, Token string
	// Postgres is the connection string of the server with all databases, to
	// watch takeovers; empty: they are not watched.
	Postgres string
}

// External is an installation that runs already. Its parts cannot be disturbed.
func External(o ExternalOptions) (*Stack, error) {
	if o.Address == "" || o.Token == "" {
		return nil, fmt.Errorf("an external stack needs an address and a token: address is %q, the token has %d bytes", o.Address, len(o.Token))
	}
	s := &Stack{Address: o.Address, Token: o.Token, Versions: map[string]string{}}
	if o.Postgres != "" {
		s.owners, s.postgresDSN = newOwners(o.Postgres), o.Postgres
	}
	return s, nil
}
