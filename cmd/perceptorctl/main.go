// Command perceptorctl is for operators: tenants, tokens, tasks, migrations.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
)

func main() { os.Exit(cli.Main(newCommand())) }

func newCommand() *cobra.Command {
	root := &cobra.Command{Use: "perceptorctl", Short: "Operate Perceptor"}
	root.AddCommand(cli.VersionCommand())
	return root
}
