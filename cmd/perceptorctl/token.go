package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) tokenCommand() *cobra.Command {
	return group("token", "Create, list, rotate and revoke tokens", c.tokenCreate(), c.tokenList(), c.tokenRotate(), c.tokenRevoke())
}

func (c *ctl) tokenCreate() *cobra.Command {
	t := &perceptorv1.Token{}
	var admin, direct bool
	var expires string
	var scopes []string
	cmd := &cobra.Command{
		Use: "create", Short: "Create a token and print its secret once", Args: cobra.NoArgs,
		Long: "Create a token and print its secret once. With --direct the command writes to Postgres, using the configuration\n" +
			"of the programs, and needs no API: use it for the first admin token.",
		Example: "  perceptorctl token create --admin --direct\n  perceptorctl token create --tenant acme --scope add,read --expires +720h",
	}
	create := func(cmd *cobra.Command, conf *config.Config) (err error) {
		if t.ExpireTime, err = instant("expires", expires); err != nil {
			return err
		}
		if direct {
			return c.createDirect(cmd, conf, t)
		}
		return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
			created, err := perceptorv1.NewAdminServiceClient(conn).CreateToken(ctx, &perceptorv1.CreateTokenRequest{Token: t})
			if err != nil {
				return err
			}
			return c.showSecret(cmd, created.Token, created.Secret, created)
		})
	}
	cli.ConfigFlags(cmd, 0, create, "postgres")
	load := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case admin && t.Tenant != "":
			return cli.Usagef("--admin and --tenant are both given")
		case admin && len(scopes) > 0:
			return cli.Usagef("--admin and --scope are both given")
		case !admin && t.Tenant == "" && len(scopes) == 0:
			return cli.Usagef("set --tenant NAME or --admin, or --scope")
		}
		if err := setScopes(t, scopes, admin); err != nil {
			return err
		}
		if !direct { // the API's side needs no configuration
			return create(cmd, nil)
		}
		return load(cmd, args)
	}
	f := cmd.Flags()
	f.StringVar(&t.Tenant, "tenant", "", "tenant whose tasks and runs the token gives access to (default with a token of the scope tenant_admin: its own)")
	c.completesTenants(cmd, "tenant")
	f.BoolVar(&admin, "admin", false, "create an admin token, for tenants and tokens")
	f.StringSliceVar(&scopes, "scope", nil, "scopes of a tenant: tenant (the default), or of add, read, operate, listen, tenant_admin; without a tenant: admin, admin_read, inspect")
	f.BoolVar(&direct, "direct", false, "write to Postgres instead of calling the API")
	f.StringVar(&t.Description, "description", "", "purpose of the token")
	f.StringVar(&expires, "expires", "", "expiry of the token: an instant such as 2026-01-31T12:00:00Z, or +720h (default, and the most: taskd.tokens.max_lifetime)")
	return cmd
}

// createDirect makes a token without the API.
func (c *ctl) createDirect(cmd *cobra.Command, conf *config.Config, t *perceptorv1.Token) error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	if err := needPostgres(conf); err != nil {
		return err
	}
	if message := task.NameFault(t.Description, 200); t.Description != "" && message != "" {
		return cli.Usagef("--description: %s", message)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
	if err != nil {
		return err
	}
	defer cluster.Close()
	want := control.Token{Tenant: t.Tenant, Description: t.Description, ExpiresAt: task.Never}
	for _, one := range t.Scopes {
		want.Scopes |= 1 << one
	}
	if t.ExpireTime != nil {
		want.ExpiresAt = task.At(t.ExpireTime.AsTime())
	}
	created, secret, err := control.New(cluster, nil).CreateTokenWithin(ctx, want, conf.Taskd.Tokens.MaxLifetime)
	record(cmd, conf, task.AuditEvent{TenantName: t.Tenant, Object: created.ID, Changes: givenFlags(cmd)}, domainError(err))
	if err != nil {
		return domainError(err)
	}
	t.Id, t.CreateTime = created.ID, timestamppb.New(created.CreatedAt.Time())
	if created.ExpiresAt != task.Never {
		t.ExpireTime = timestamppb.New(created.ExpiresAt.Time())
	}
	return c.showSecret(cmd, t, secret, &perceptorv1.CreateTokenResponse{Token: t, Secret: secret})
}

// scopeNames returns the names of the scopes as --scope takes them.
func scopeNames() (names []string) {
	for _, n := range slices.Sorted(maps.Keys(perceptorv1.Token_Scope_name))[1:] {
		names = append(names, strings.ToLower(perceptorv1.Token_Scope_name[n]))
	}
	return names
}

// setScopes sets the scopes of a new token.
func setScopes(t *perceptorv1.Token, names []string, admin bool) error {
	switch {
	case admin:
		names = []string{"admin"}
	case len(names) == 0:
		names = []string{"tenant"}
	}
	for _, name := range names {
		n, ok := perceptorv1.Token_Scope_value[enumWord(name)]
		if !ok || n == 0 {
			return cli.Usagef("--scope: %q is not one of %s", name, strings.Join(scopeNames(), ", "))
		}
		t.Scopes = append(t.Scopes, perceptorv1.Token_Scope(n))
	}
	return nil
}

func needPostgres(conf *config.Config) error {
	if err := conf.Validate(config.NeedPostgres); err != nil {
		return &cli.Error{Code: cli.Usage, Err: err, Hint: "set --config FILE, PERCEPTOR_CONFIG or PERCEPTOR_POSTGRES_SERVERS"}
	}
	return nil
}

// showSecret prints the secret alone on standard output, so that it can be
// taken into a variable, and what it is on standard error.
func (c *ctl) showSecret(cmd *cobra.Command, t *perceptorv1.Token, secret string, answer proto.Message) error {
	if c.structured() {
		return c.show(cmd, answer, nil)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "token %s created, valid until %s; this is its secret, which is not shown again:\n", t.Id, timeCell(t.ExpireTime))
	_, err := fmt.Fprintln(cmd.OutOrStdout(), secret)
	return err
}

func (c *ctl) tokenList() *cobra.Command {
	p := &pages{}
	var tenant string
	cmd := &cobra.Command{
		Use: "list", Short: "List tokens without their secrets", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				api, all := perceptorv1.NewAdminServiceClient(conn), &perceptorv1.ListTokensResponse{}
				all.Tokens, all.NextPageToken, err = gather(p, (*perceptorv1.ListTokensResponse).GetTokens,
					func(size int32, token string) (*perceptorv1.ListTokensResponse, error) {
						return api.ListTokens(ctx, &perceptorv1.ListTokensRequest{Tenant: tenant, PageSize: size, PageToken: token})
					})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return tokenTable(all.Tokens...) })
			})
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&tenant, "tenant", "", "only tokens of this tenant")
	return watchable(c.completesTenants(cmd, "tenant"))
}

func (c *ctl) tokenRotate() *cobra.Command {
	var overlap time.Duration
	var expires string
	cmd := &cobra.Command{
		Use: "rotate ID", Short: "Replace a token by one with the same scopes, and revoke it after an overlap", Args: cobra.ExactArgs(1),
		Example: "  perceptorctl token rotate pct_k4f2xw7q1m3n --overlap 48h",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			r := &perceptorv1.RotateTokenRequest{Id: args[0], Overlap: durationpb.New(overlap)}
			if r.ExpireTime, err = instant("expires", expires); err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				rotated, err := perceptorv1.NewAdminServiceClient(conn).RotateToken(ctx, r)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "token %s is revoked at %s\n", args[0], timeCell(rotated.Replaced.RevokeTime))
				return c.showSecret(cmd, rotated.Token, rotated.Secret, rotated)
			})
		},
	}
	duration.Var(cmd.Flags(), &overlap, "overlap", 24*time.Hour, "how long the replaced token still works")
	cmd.Flags().StringVar(&expires, "expires", "", "expiry of the new token, as of token create")
	return cmd
}

func (c *ctl) tokenRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token; calls with it are refused within 1 s", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				t, err := perceptorv1.NewAdminServiceClient(conn).RevokeToken(ctx, &perceptorv1.RevokeTokenRequest{Id: args[0]})
				if err != nil {
					return err
				}
				return c.show(cmd, t, func() *table { return tokenTable(t) })
			})
		},
	}
}

func tokenTable(tokens ...*perceptorv1.Token) *table {
	t := &table{head: []string{"ID", "SCOPES", "TENANT", "CREATED", "EXPIRES", "REVOKED", "LAST USED", "DESCRIPTION"}}
	for _, x := range tokens {
		var scopes []string
		for _, one := range x.Scopes {
			scopes = append(scopes, one.String())
		}
		t.add(x.Id, strings.Join(scopes, "+"), textCell(x.Tenant), timeCell(x.CreateTime), timeCell(x.ExpireTime),
			timeCell(x.RevokeTime), timeCell(x.LastUseTime), textCell(x.Description))
	}
	return t
}
