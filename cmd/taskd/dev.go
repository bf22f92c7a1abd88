//go:build !release

package main

import (
	"fmt"
	"math"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/dev"
	"github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/internal/telemetry"
)

// devHint is told to somebody who has configured no servers.
const devHint = "to try it without servers, run taskd dev --demo"

// newDevCommand runs a whole installation in one process tree.
func newDevCommand() *cobra.Command {
	o := dev.Options{Version: cli.Version()}
	var level, start string
	var clock clockFlag
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole installation for development, in one process tree",
		Long: "Run PostgreSQL, a Kafka broker, the API and a dispatcher in one process tree, with a tenant and its\n" +
			"tokens. The data is kept unless --ephemeral is set. Not for production: nothing is replicated.\n\n" +
			"With --virtual-clock the clock stands still until perceptorctl clock advance 3d moves it, and each run that becomes\n" +
			"due fires at its instant. docs/virtual-clock.md shows how tests use it.",
		Example: "  taskd dev --demo\n  taskd dev --ephemeral --virtual-clock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.For < 0 {
				return cli.Usagef("--for: %s is negative", o.For)
			}
			if o.Ephemeral && cmd.Flags().Changed("data-dir") {
				return cli.Usagef("--data-dir: --ephemeral has a directory of its own, which is removed; give one of them")
			}
			if err := checkDev(&o); err != nil {
				return err
			}
			if o.Log, err = telemetry.NewLog(os.Stderr, level, "text"); err != nil {
				return &cli.Error{Code: cli.Usage, Err: fmt.Errorf("--log-level: %w", err)}
			}
			if o.VirtualClock, o.ClockStart, err = clock.mode(start); err != nil {
				return err
			}
			if o.VirtualClock != dev.RealClock && o.Demo {
				return cli.Usagef("--demo needs the real clock; remove --virtual-clock")
			}
			o.Out = cmd.OutOrStdout()
			return dev.Run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.Demo, "demo", false, "add tasks of all three types and print a line for each callback")
	duration.Var(f, &o.For, "for", 0*time.Second, "stop after this time, such as 30s (default: run until Ctrl-C)")
	f.BoolVar(&o.Ephemeral, "ephemeral", false, "remove the data when the program stops")
	f.StringVar(&o.DataDir, "data-dir", dev.DefaultDataDir(), "directory for the data")
	f.Var(&clock, "virtual-clock", "use a clock that perceptorctl clock moves, for tests: frozen (it stops between moves) or running")
	f.Lookup("virtual-clock").NoOptDefVal = string(dev.FrozenClock)
	f.StringVar(&start, "clock-start", "", "initial time of the virtual clock of new data, such as 2026-01-31T12:00:00Z (default now)")
	f.IntVar(&o.Ports.GRPC, "grpc-port", dev.DefaultPorts.GRPC, "port of the gRPC API on 127.0.0.1; 0 for any free port")
	f.IntVar(&o.Ports.HTTP, "http-port", dev.DefaultPorts.HTTP, "port of the HTTP API")
	f.IntVar(&o.Ports.Ops, "ops-port", dev.DefaultPorts.Ops, "port of the server for health, metrics and profiles")
	f.IntVar(&o.Ports.Kafka, "kafka-port", dev.DefaultPorts.Kafka, "port of the Kafka broker")
	f.IntVar(&o.Ports.Postgres, "postgres-port", dev.DefaultPorts.Postgres, "port of PostgreSQL")
	f.StringVar(&o.Traces, "traces", "", "URL of an OTLP receiver (gRPC) for traces, such as http://127.0.0.1:4317 (default: no traces)")
	f.StringVar(&level, "log-level", "warn", "lowest level that is logged: debug, info, warn or error")
	return cmd
}

// checkDev names the flags whose values cannot work, before anything is made.
func checkDev(o *dev.Options) error {
	for _, p := range []struct {
		flag string
		port int
	}{
		{"grpc-port", o.Ports.GRPC}, {"http-port", o.Ports.HTTP}, {"ops-port", o.Ports.Ops}, {"kafka-port", o.Ports.Kafka},
		{"postgres-port", o.Ports.Postgres},
	} {
		if p.port < 0 || p.port > math.MaxUint16 {
			return cli.Usagef("--%s: %d is not a port: must be 0 to %d", p.flag, p.port, math.MaxUint16)
		}
	}
	if o.Traces == "" {
		return nil
	}
	if u, err := url.Parse(o.Traces); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return cli.Usagef("--traces: %q is not a URL such as http://127.0.0.1:4317", o.Traces)
	}
	return nil
}

// clockFlag is the flag --virtual-clock.
type clockFlag dev.ClockMode

func (c *clockFlag) String() string { return string(*c) }
func (c *clockFlag) Type() string   { return "MODE" }

// Set implements pflag.Value.
func (c *clockFlag) Set(text string) error {
	switch mode := dev.ClockMode(text); mode {
	case dev.FrozenClock, dev.RunningClock:
		*c = clockFlag(mode)
		return nil
	}
	return fmt.Errorf("%q is neither %s nor %s", text, dev.FrozenClock, dev.RunningClock)
}

// mode returns the clock that is wanted and what it shows at first.
func (c *clockFlag) mode(start string) (dev.ClockMode, time.Time, error) {
	if start == "" {
		return dev.ClockMode(*c), time.Time{}, nil
	}
	if *c == "" {
		return "", time.Time{}, cli.Usagef("--clock-start needs --virtual-clock")
	}
	at, err := time.Parse(time.RFC3339, start)
	if err != nil {
		return "", time.Time{}, cli.Usagef("--clock-start: %q is not an instant such as 2026-01-31T12:00:00Z", start)
	}
	return dev.ClockMode(*c), at, nil
}
