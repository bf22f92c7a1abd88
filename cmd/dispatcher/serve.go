package main

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
)

// stopMargin is what a stop may take beyond the hand-over.
const stopMargin = 10 * time.Second

// serve runs the dispatcher until the context of cmd ends.
func serve(cmd *cobra.Command, c *config.Config) error {
	ctx := cmd.Context()
	log, err := telemetry.NewLog(os.Stderr, c.Log.Level, c.Log.Format)
	if err != nil {
		return err
	}
	app.WarnOfOpenLinks(c, needs, log)
	var ops net.Listener
	if c.Dispatcher.OpsAddr != "" {
		if ops, err = app.Listen(ctx, "dispatcher.ops_addr", c.Dispatcher.OpsAddr); err != nil {
			return err
		}
		defer ops.Close() // most often closed by its server
	}
	var hints *dispatch.Hints
	if c.Dispatcher.HintAddr != "" {
		if hints, err = dispatch.ListenHints(c.Dispatcher.HintAddr); err != nil {
			return fmt.Errorf("dispatcher.hint_addr: cannot listen on %s: %w", c.Dispatcher.HintAddr, err)
		}
	}
	registry := telemetry.NewRegistry()
	options := app.Options{Config: c, Log: log, Metrics: registry}
	d, err := app.NewDispatcher(ctx, app.DispatcherOptions{Options: options, Hints: hints, Version: cli.Version()})
	if err != nil {
		return err
	}
	p := app.Process{
		Reach: d.Reach, Run: d.Run, StopWithin: c.Dispatcher.Grace + stopMargin,
		Ready: func() { log.Info("dispatching", "version", cli.Version(), "member", d.Name()) },
	}
	if ops != nil {
		if p.Ops, err = app.NewOps(options, ops, registry, d.Checks()); err != nil {
			return err
		}
	}
	if err := app.Serve(ctx, p); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}
