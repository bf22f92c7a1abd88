// Command loadtest puts load on a Perceptor installation, disturbs it, checks
// every task against the contract from outside, and measures.
//
//	go run ./loadtest run --stack real --type mix --rate 1000 --for 30s
//
// It exits with 1 when the contract was broken or the run went wrong.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/workload"
)

// listenerCommand is the command of this program that is a listener process.
const listenerCommand = "listener"

func main() {
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
	root.AddCommand(runCommand(), &cobra.Command{
		Use: listenerCommand, Short: "A listener process; run starts it", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return workload.ServeListener(cmd.Context(), os.Stdin, os.Stdout)
		},
	})
	return root
}
