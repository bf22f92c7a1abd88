package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/dev"
	"github.com/perceptor/perceptor/internal/telemetry"
)

// newDevCommand runs a whole installation in one process tree.
func newDevCommand() *cobra.Command {
	o := dev.Options{Version: cli.Version()}
	var level string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole installation in one process tree: not for production",
		Long: "Run PostgreSQL, a Kafka broker, the API and a dispatcher in one process tree, with a tenant and a\n" +
			"token ready. Data is kept unless --ephemeral is given. Not for production: there is one copy of everything.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.For < 0 {
				return cli.Usagef("--for: %s is negative", o.For)
			}
			if o.Log, err = telemetry.NewLog(os.Stderr, level, "text"); err != nil {
				return &cli.Error{Code: cli.Usage, Err: fmt.Errorf("--log-level: %w", err)}
			}
			o.Out = cmd.OutOrStdout()
			return dev.Run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.Demo, "demo", false, "add tasks of all three types and print a line for each callback")
	f.DurationVar(&o.For, "for", 0*time.Second, "end by itself after this long, such as 30s")
	f.BoolVar(&o.Ephemeral, "ephemeral", false, "keep nothing")
	f.StringVar(&o.DataDir, "data-dir", dev.DefaultDataDir(), "where data is kept")
	f.IntVar(&o.Ports.GRPC, "grpc-port", dev.DefaultPorts.GRPC, "port of the gRPC API on 127.0.0.1; 0: any that is free")
	f.IntVar(&o.Ports.HTTP, "http-port", dev.DefaultPorts.HTTP, "port of the HTTP API")
	f.IntVar(&o.Ports.Ops, "ops-port", dev.DefaultPorts.Ops, "port of health, metrics and profiles")
	f.IntVar(&o.Ports.Kafka, "kafka-port", dev.DefaultPorts.Kafka, "port of the Kafka broker")
	f.IntVar(&o.Ports.Postgres, "postgres-port", dev.DefaultPorts.Postgres, "port of PostgreSQL")
	f.StringVar(&level, "log-level", "warn", "what is logged: debug, info, warn or error")
	return cmd
}
