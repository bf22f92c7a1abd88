package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
)

// stopMargin is what a stop may take beyond the grace for calls: the groups of
// writes that are still under way behind them.
const stopMargin = 15 * time.Second

// serve runs the API until the context of cmd ends.
func serve(cmd *cobra.Command, c *config.Config) error {
	ctx := cmd.Context()
	log, err := telemetry.NewLog(os.Stderr, c.Log.Level, c.Log.Format)
	if err != nil {
		return err
	}
	app.WarnOfOpenLinks(c, needs, log)
	listeners, err := listen(ctx, c)
	if err != nil {
		return err
	}
	defer listeners.close()
	registry := telemetry.NewRegistry()
	options := app.Options{Config: c, Log: log, Metrics: registry}
	api, err := app.NewAPI(ctx, app.APIOptions{Options: options, GRPC: listeners.grpc, HTTP: listeners.http, Version: cli.Version()})
	if err != nil {
		return err
	}
	p := app.Process{
		Reach: api.Reach, Run: api.Run, StopWithin: c.Taskd.DrainDelay + c.Taskd.Grace + stopMargin,
		Ready: func() {
			log.Info("serving", "version", cli.Version(), "grpc_addr", address(listeners.grpc), "http_addr", address(listeners.http), "ops_addr", address(listeners.ops))
		},
	}
	if listeners.ops != nil {
		if p.Ops, err = app.NewOps(options, listeners.ops, registry, api.Checks()); err != nil {
			return err
		}
	}
	err = app.Serve(ctx, p)
	logEnd(log, err)
	return err
}

func logEnd(log *slog.Logger, err error) {
	if err == nil {
		log.Info("stopped")
	}
}

// listeners are the open addresses; those that are not configured are nil.
type listeners struct{ grpc, http, ops net.Listener }

func listen(ctx context.Context, c *config.Config) (*listeners, error) {
	l := &listeners{}
	var errs []error
	open := func(into *net.Listener, key, address string) {
		if address == "" {
			return
		}
		opened, err := app.Listen(ctx, key, address)
		if err != nil {
			errs = append(errs, err)
			return
		}
		*into = opened
	}
	open(&l.grpc, "taskd.grpc_addr", c.Taskd.GRPCAddr)
	open(&l.http, "taskd.http_addr", c.Taskd.HTTPAddr)
	open(&l.ops, "taskd.ops_addr", c.Taskd.OpsAddr)
	if len(errs) > 0 {
		l.close()
		return nil, errors.Join(errs...)
	}
	return l, nil
}

// close closes what nobody else has closed.
func (l *listeners) close() {
	for _, open := range []net.Listener{l.grpc, l.http, l.ops} {
		if open != nil {
			_ = open.Close() // most often closed by its server
		}
	}
}

func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}
