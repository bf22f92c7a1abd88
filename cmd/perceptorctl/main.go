// Command perceptorctl is for operators and for trying things out: tenants,
// tokens, tasks, runs, migrations, who owns which shard, how many tasks there
// are, and what is wrong.
//
// Commands about tenants, tokens, tasks and runs call the API; migrate, pack, database move
// and `token create --direct` go to the servers themselves and need the configuration of the
// programs. counters, assign, shard, epochs and database list do so if there is one.
package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/schedule"
)

func main() { os.Exit(cli.Main(newCommand())) }

// ctl is what the commands share: the flags of all of them.
type ctl struct {
	address, token, tokenFile string
	// addressFrom says who chose the address; "": nobody, it is the default.
	addressFrom string
	// context is the name of a context, contextToken its token.
	context, contextToken     string
	inspect                   string
	tls, insecure             bool
	caFile, certFile, keyFile string
	output                    string
	timeout                   time.Duration
}

func newCommand() *cobra.Command {
	c := &ctl{}
	root := &cobra.Command{
		Use:   "perceptorctl",
		Short: "Operate a Perceptor installation",
		Long: "Operate a Perceptor installation: its tenants, tokens, tasks, databases and dispatchers.\n\n" +
			"Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 conflict, 5 unavailable.\n" +
			"Results go to standard output, errors and hints to standard error.",
	}
	f := root.PersistentFlags()
	f.StringVar(&c.address, "address", cli.Getenv("PERCEPTOR_ADDRESS", "localhost:7070"), "host:port of the gRPC API, or several separated by commas; also PERCEPTOR_ADDRESS")
	f.StringVar(&c.context, "context", cli.Getenv(contextVariable, ""), "use the server and the token of this context; also "+contextVariable+" (default: the one of perceptorctl context use)")
	_ = root.RegisterFlagCompletionFunc("context", completeContexts) // the flag exists
	f.StringVar(&c.token, "token", "", "refused: other users see the flags of a process")
	_ = f.MarkHidden("token") // it is there
	f.StringVar(&c.tokenFile, "token-file", "", "file with the token for the API (default: the value of PERCEPTOR_TOKEN)")
	f.StringVar(&c.inspect, "inspect", "", "read the tasks of this tenant, without params, with a token of the scope inspect; each call is recorded")
	f.BoolVar(&c.tls, "tls", false, "use TLS for the API")
	f.StringVar(&c.caFile, "tls-ca-file", "", "file of the certificates that sign the API's certificate; implies --tls (default: the system's)")
	f.StringVar(&c.certFile, "tls-cert-file", "", "file of a certificate to present to the API; implies --tls")
	f.StringVar(&c.keyFile, "tls-key-file", "", "file of its private key")
	f.BoolVar(&c.insecure, "insecure", false, "allow open links to other machines: without TLS, with the token in the clear")
	f.StringVarP(&c.output, "output", "o", "table", "output format: table, wide (a table with more columns), json or yaml")
	completes(root, "output", outputs...)
	duration.Var(f, &c.timeout, "timeout", 10*time.Second, "time limit of a call, with its waits for quotas")
	root.AddCommand(c.tenantCommand(), c.tokenCommand(), c.taskCommand(), c.runCommand(), c.migrateCommand(), c.shardCommand(), c.countersCommand(), c.scheduleCommand(), c.doctorCommand(), cli.VersionCommand("tzdata-"+schedule.ZoneDataVersion()))
	c.completesTenants(root, "inspect")
	root.AddCommand(c.assignCommand(), c.epochsCommand(), c.republishCommand(), c.clockCommand(), c.deadCommand(), c.calendarCommand(), c.bulkCommand(), c.importCommand(), c.kindCommand(), c.packCommand(), c.auditCommand(), c.forecastCommand(), c.topCommand(), c.contextCommand(), c.relayCommand(), c.exportCommand(), c.convertCommand(), c.databaseCommand(), c.sizeCommand(), c.whoamiCommand())
	return root
}

// group is a command that only has others below it.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cli.UnknownCommand, RunE: func(cmd *cobra.Command, _ []string) error {
		return cli.Usagef("%s needs a command", cmd.CommandPath())
	}}
	cmd.AddCommand(commands...)
	return cmd
}
