package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// whoamiCommand shows what the token, or the certificate, of the caller stands for.
func (c *ctl) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show the tenant, the scopes and the end of the token in use", Args: cobra.NoArgs,
		Long: "Show what the token in use stands for: its id, its tenant, the scopes with those that they include, and how long it\n" +
			"is valid. Any token may ask. The secret is not shown.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				id, err := perceptorv1.NewIdentityServiceClient(conn).GetIdentity(ctx, &perceptorv1.GetIdentityRequest{})
				if err != nil {
					return err
				}
				return c.show(cmd, id, func() *table { return c.identityTable(id) })
			})
		},
	}
}

func (c *ctl) identityTable(id *perceptorv1.Identity) *table {
	t := &table{head: []string{"NAME", "TENANT", "SCOPES", "VALID FOR", "ADDRESS"}}
	tenant, valid := id.Tenant, "no end"
	if tenant == "" {
		tenant = "the installation"
	}
	if id.ValidFor != nil {
		valid = id.ValidFor.AsDuration().Truncate(time.Second).String()
	}
	scopes := make([]string, len(id.Scopes))
	for i, s := range id.Scopes {
		scopes[i] = strings.ToLower(s.String())
	}
	t.add(id.Name, tenant, strings.Join(scopes, ","), valid, c.address)
	return t
}
