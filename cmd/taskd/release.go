//go:build release

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
)

// devHint is empty: this build has no such command.
const devHint = ""

// newDevCommand says that the build for packages and images has no development
// installation: it would bring an embedded PostgreSQL and a Kafka broker with it.
func newDevCommand() *cobra.Command {
	return &cobra.Command{
		Use: "dev", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return &cli.Error{
				Code: cli.Usage, Err: errors.New("this build has no development installation"),
				Hint: "it is in programs that are built from the source without -tags release",
			}
		},
	}
}
