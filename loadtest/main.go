// Command loadtest puts load on a Perceptor installation, disturbs it, checks
// every task against the contract from outside, and measures.
//
//	go run ./loadtest run --stack real --type mix --rate 1000 --for 30s
//	go run ./loadtest cycle --rate 20000 --for 5m --json cycle.json --svg cycle.svg
//
// It exits with 1 when the contract was broken or the run went wrong.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/assign"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/workload"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // as taskd and dispatcher do, and as a busy listener should
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "loadtest", Short: "Load, disturb, check and measure a Perceptor installation",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(commands()...)
	root.AddCommand(&cobra.Command{
		Use: harness.ListenerName(), Short: "A listener process; others start it", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return workload.ServeListener(cmd.Context(), os.Stdin, os.Stdout)
		},
	})
	root.AddCommand(&cobra.Command{
		Use: assign.MemberName, Short: "A member process; assign starts it", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return assign.ServeMember(cmd.Context(), os.Stdin, os.Stderr)
		},
	})
	return root
}
