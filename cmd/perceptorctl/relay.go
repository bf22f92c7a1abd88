package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/outbox"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/internal/telemetry"
)

// relay has the flags of the commands about an outbox.
type relay struct {
	*ctl
	dsn, dsnFile, schema, name string
	metricsAddress             string
	logLevel, logFormat        string
	lease, poll                time.Duration
	listen, announce           bool
}

const dsnVariable = "PERCEPTOR_OUTBOX_DSN"

func (c *ctl) relayCommand() *cobra.Command {
	r := &relay{ctl: c}
	cmd := &cobra.Command{
		Use: "relay", Short: "Move the operations of an outbox to Perceptor", Args: cobra.NoArgs,
		Long: "Move operations from an outbox, tables in the database of a service, to Perceptor, until the command is stopped.\n" +
			"Several relays of one outbox share the work and take over from each other. docs/outbox.md explains outboxes.",
		Example: "  perceptorctl relay --dsn-file shop.dsn --token-file shop.token --metrics-address 127.0.0.1:9464",
		RunE:    func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	f := cmd.PersistentFlags()
	f.StringVar(&r.dsn, "dsn", "", "connection string of the database with the outbox, without a password (default: "+dsnVariable+")")
	f.StringVar(&r.dsnFile, "dsn-file", "", "file with the connection string")
	f.StringVar(&r.schema, "schema", outbox.DefaultSchema, "schema with the outbox's tables")
	l := cmd.Flags()
	l.StringVar(&r.name, "name", "", "name of this relay (default: host and process id)")
	l.StringVar(&r.metricsAddress, "metrics-address", "", "host:port at which /metrics, /healthz and /readyz are served (default: they are not)")
	l.StringVar(&r.logLevel, "log-level", "info", "debug, info, warn or error")
	l.StringVar(&r.logFormat, "log-format", "text", "text or json")
	duration.Var(l, &r.lease, "lease", 10*time.Second, "how long the parts of a relay that hangs wait until others take them over")
	duration.Var(l, &r.poll, "poll", 0, "how often to look for new operations (default: 10 ms while there are some, otherwise 25 ms; 1 s while --listen works)")
	l.BoolVar(&r.listen, "listen", false, "hear of commits at once, from an outbox that announces them (relay migrate --announce)")
	cmd.AddCommand(r.schemaCommand(), r.migrateCommand(), r.statusCommand(), r.listCommand(), r.retryCommand(), r.discardCommand())
	return cmd
}

// postgres returns the configuration of the connections to the outbox's database.
func (r *relay) postgres() (*pgxpool.Config, error) {
	dsn := r.dsn
	switch {
	case r.dsn != "" && r.dsnFile != "":
		return nil, cli.Usagef("--dsn and --dsn-file: only one of them can be given")
	case r.dsnFile != "":
		var err error
		if dsn, err = r.readDSN(); err != nil {
			return nil, cli.Usagef("--dsn-file: %v", err)
		}
	case r.dsn == "":
		dsn = os.Getenv(dsnVariable)
	}
	if dsn == "" {
		return nil, &cli.Error{Code: cli.Usage, Err: errors.New("the database with the outbox is not named"), Hint: "set --dsn, --dsn-file or " + dsnVariable}
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, cli.Usagef("the connection string of the outbox's database cannot be read") // the error may have the password
	}
	if r.dsn != "" && cfg.ConnConfig.Password != "" && os.Getenv("PGPASSWORD") == "" && strings.Contains(r.dsn, cfg.ConnConfig.Password) {
		return nil, cli.Usagef("--dsn: a password is not accepted as a flag, because other users can see it: use --dsn-file, %s or PGPASSWORD", dsnVariable)
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "perceptor relay"
	if r.dsnFile != "" {
		cfg.BeforeConnect = r.renew
	}
	return cfg, nil
}

func (r *relay) readDSN() (string, error) {
	text, err := os.ReadFile(r.dsnFile)
	return strings.TrimSpace(string(text)), err
}

// renew makes a new connection log in with what the file has now. What cannot be read changes nothing.
func (r *relay) renew(_ context.Context, conn *pgx.ConnConfig) error {
	dsn, err := r.readDSN()
	if err != nil {
		return nil
	}
	if fresh, err := pgx.ParseConfig(dsn); err == nil {
		conn.User, conn.Password = fresh.User, fresh.Password
	}
	return nil
}

// api returns a client of the API.
func (r *relay) api(cmd *cobra.Command) (*client.Client, error) {
	if err := r.useContext(cmd); err != nil {
		return nil, err
	}
	secret, err := r.secret()
	if err != nil {
		return nil, err
	}
	conf, err := r.tlsConfig()
	if err != nil {
		return nil, err
	}
	cfg := client.Config{Address: r.address, Token: secret, TLS: conf, Insecure: r.insecure}
	if r.tokenFile != "" { // it may be replaced while the relay runs
		cfg.TokenSource = func(context.Context) (string, error) { return r.secret() }
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, &cli.Error{Code: cli.Usage, Err: err}
	}
	return c, nil
}

func (r *relay) run(cmd *cobra.Command) error {
	pg, err := r.postgres()
	if err != nil {
		return err
	}
	box, err := r.outbox()
	if err != nil {
		return err
	}
	api, err := r.api(cmd)
	if err != nil {
		return err
	}
	defer api.Close() //nolint:errcheck // nothing depends on it
	log, err := telemetry.NewLog(cmd.ErrOrStderr(), r.logLevel, r.logFormat)
	if err != nil {
		return cli.Usagef("--log-level or --log-format: %v", err)
	}
	metrics := telemetry.NewRegistry()
	figures := telemetry.NewRelay(metrics)
	mover, err := outbox.NewRelay(outbox.RelayConfig{
		Postgres: pg, Client: api, Schema: r.schema, Name: r.name, Lease: r.lease, Poll: r.poll, Listen: r.listen, Log: log,
		Events: outbox.Events{
			Moved:   func(op outbox.Op, n int, lag time.Duration) { figures.Moved(op.String(), n, lag) },
			Refused: func(_ outbox.Op, reason string) { figures.Refused(reason) },
			Failed:  func(step string, _ error) { figures.Failed(step) },
		},
	})
	if err != nil {
		return &cli.Error{Code: cli.Usage, Err: err}
	}
	work, ctx := errgroup.WithContext(cmd.Context())
	if r.metricsAddress != "" {
		listener, err := net.Listen("tcp", r.metricsAddress)
		if err != nil {
			return cli.Usagef("--metrics-address: %v", err)
		}
		ops := telemetry.NewOps(listener, metrics, nil, telemetry.OpsOptions{}, log)
		work.Go(func() error { return ops.Run(ctx) })
		work.Go(func() error { return watchBacklog(ctx, pg, box, figures) })
	}
	work.Go(func() error { return mover.Run(ctx) })
	log.Info("the relay runs", "address", r.address)
	return work.Wait()
}

// backlogEvery is how often the figures of the outbox are read, and the limit of such a read.
const backlogEvery = 5 * time.Second

// watchBacklog reads the figures of the outbox until ctx ends.
func watchBacklog(ctx context.Context, pg *pgxpool.Config, box *outbox.Outbox, to *telemetry.Relay) error {
	cfg := pg.Copy()
	cfg.MaxConns, cfg.MinConns = 1, 0
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	tick := time.NewTicker(backlogEvery)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, backlogEvery)
		b, err := box.Backlog(limited, pool)
		cancel()
		if err == nil {
			to.Backlog(b.Rows, b.Refused, b.Oldest)
		} else {
			to.Failed("backlog")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (r *relay) outbox() (*outbox.Outbox, error) {
	box, err := outbox.New(outbox.Config{Schema: r.schema})
	if err != nil {
		return nil, cli.Usagef("--schema: %v", err)
	}
	return box, nil
}

// with calls f with a connection to the outbox's database.
func (r *relay) with(cmd *cobra.Command, f func(ctx context.Context, box *outbox.Outbox, conn *pgx.Conn) error) error {
	if err := r.checkOutput(); err != nil {
		return err
	}
	box, err := r.outbox()
	if err != nil {
		return err
	}
	pg, err := r.postgres()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), r.timeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, pg.ConnConfig)
	if err != nil {
		return &cli.Error{Code: cli.Unavailable, Err: fmt.Errorf("connect to the database of the outbox: %w", err)}
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	return f(ctx, box, conn)
}
