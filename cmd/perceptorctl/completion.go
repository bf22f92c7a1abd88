package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// completionLimit bounds the wait of a person who has pressed Tab.
const completionLimit = 2 * time.Second

// completes tells the shell the values of a flag.
func completes(cmd *cobra.Command, flag string, values ...string) {
	// It fails only for a flag that is not there.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completesTenants makes the shell complete names of tenants: those of a flag, or of the first
// argument if flag is empty.
func (c *ctl) completesTenants(cmd *cobra.Command, flag string) *cobra.Command {
	if flag == "" {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return c.tenantNames(cmd, begun)
		}
		return cmd
	}
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return c.tenantNames(cmd, begun)
	})
	return cmd
}

// tenantNames asks the API for the tenants whose names begin in some way. Without an answer there
// is nothing to complete.
func (c *ctl) tenantNames(cmd *cobra.Command, begun string) (names []string, _ cobra.ShellCompDirective) {
	if cmd.Context() == nil {
		cmd.SetContext(context.Background())
	}
	c.timeout = min(c.timeout, completionLimit)
	_ = c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
		page, err := perceptorv1.NewAdminServiceClient(conn).ListTenants(ctx, &perceptorv1.ListTenantsRequest{PageSize: maxPage})
		for _, t := range page.GetTenants() {
			if strings.HasPrefix(t.Name, begun) {
				names = append(names, t.Name)
			}
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
