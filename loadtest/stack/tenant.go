package stack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

const (
	tenantName = "load"
	adminWait  = 30 * time.Second
	countWait  = 30 * time.Second
	goneEvery  = 200 * time.Millisecond
)

// Counts says how many tasks the tenant of the load has.
func (s *Stack) Counts(ctx context.Context) (counts *perceptorv1.CountTasksResponse, err error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.Token), countWait)
	defer cancel()
	for address := range strings.SplitSeq(s.Address, ",") { // one of them may have been killed
		if counts, err = countAt(ctx, address); err == nil {
			return counts, nil
		}
	}
	return nil, fmt.Errorf("count the tasks: %w", err)
}

func countAt(ctx context.Context, address string) (*perceptorv1.CountTasksResponse, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return perceptorv1.NewTaskServiceClient(conn).CountTasks(ctx, &perceptorv1.CountTasksRequest{})
}

// CreateTenant makes a tenant and returns the secret of a token for it.
func (s *Stack) CreateTenant(ctx context.Context, name string) (secret string, err error) {
	err = s.asAdmin(ctx, func(ctx context.Context, api perceptorv1.AdminServiceClient) error {
		if _, err := api.CreateTenant(ctx, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: name}}); err != nil {
			return fmt.Errorf("create tenant: %w", err)
		}
		token, err := api.CreateToken(ctx, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{
			Scope: perceptorv1.Token_TENANT, Tenant: name, Description: "load test",
		}})
		if err != nil {
			return fmt.Errorf("create token: %w", err)
		}
		secret = token.GetSecret()
		return nil
	})
	return secret, err
}

// UpdateTenant changes the fields of a tenant that are named to what t has.
func (s *Stack) UpdateTenant(ctx context.Context, t *perceptorv1.Tenant, fields ...string) error {
	return s.asAdmin(ctx, func(ctx context.Context, api perceptorv1.AdminServiceClient) error {
		_, err := api.UpdateTenant(ctx, &perceptorv1.UpdateTenantRequest{Name: t.Name, Tenant: t, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields}})
		return err
	})
}

// DeleteTenant begins to delete a tenant with all that it has, or tells how far that
// has come; codes.NotFound: it is over.
func (s *Stack) DeleteTenant(ctx context.Context, name string) (progress *perceptorv1.DeleteTenantResponse, err error) {
	err = s.asAdmin(ctx, func(ctx context.Context, api perceptorv1.AdminServiceClient) error {
		progress, err = api.DeleteTenant(ctx, &perceptorv1.DeleteTenantRequest{Name: name})
		return err
	})
	return progress, err
}

// DropTenant deletes a tenant and returns when all that it had is gone.
func (s *Stack) DropTenant(ctx context.Context, name string) error {
	poll := time.NewTicker(goneEvery)
	defer poll.Stop()
	for {
		_, err := s.DeleteTenant(ctx, name)
		if status.Code(err) == codes.NotFound {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete tenant %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete tenant %s: %w", name, ctx.Err())
		case <-poll.C:
		}
	}
}

// asAdmin calls the API with a token of the scope ADMIN, which a stack has that was
// started here.
func (s *Stack) asAdmin(ctx context.Context, f func(context.Context, perceptorv1.AdminServiceClient) error) error {
	if s.admin == "" {
		return errors.New("this stack was not started here, so its tenants cannot be changed")
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.admin), adminWait)
	defer cancel()
	first, _, _ := strings.Cut(s.Address, ",")
	conn, err := grpc.NewClient(first, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("dial %s: %w", first, err)
	}
	defer conn.Close()
	return f(ctx, perceptorv1.NewAdminServiceClient(conn))
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
