package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// OpenCluster returns the pools of the logical databases. It opens no connection.
func OpenCluster(ctx context.Context, c *config.Config, application string) (*store.Cluster, error) {
	return openCluster(ctx, c, store.Config{
		Application: application, MaxConns: c.Postgres.MaxConnections,
		ServerConns: c.Postgres.ServerConnections, FitServers: c.Postgres.ServerConnections == 0,
		StatementTimeout: c.Postgres.StatementTimeout, LockTimeout: c.Postgres.LockTimeout,
		IdleInTransaction: c.Postgres.IdleInTransaction,
	})
}

// toolConns bounds the connections of a command to one server. Programs that run have nearly all others.
const toolConns = 4

// OpenTool is [OpenCluster] for commands of people, which must work beside all programs.
func OpenTool(ctx context.Context, c *config.Config, application string) (*store.Cluster, error) {
	return openCluster(ctx, c, store.Config{
		Application: application, MaxConns: min(2, c.Postgres.MaxConnections), ServerConns: toolConns,
		StatementTimeout: c.Postgres.StatementTimeout, LockTimeout: c.Postgres.LockTimeout,
		IdleInTransaction: c.Postgres.IdleInTransaction,
	})
}

// OpenReadOnly is [OpenCluster] for programs that only read, for a long time and from standbys, too.
func OpenReadOnly(ctx context.Context, c *config.Config, application string) (*store.Cluster, error) {
	return openCluster(ctx, c, store.Config{
		Application: application, MaxConns: 2, StatementTimeout: time.Minute, IdleInTransaction: time.Hour, ReadOnly: true,
	})
}

func openCluster(ctx context.Context, c *config.Config, conf store.Config) (*store.Cluster, error) {
	if open := openDatabases(c); len(open) > 0 && !c.Insecure {
		return nil, fmt.Errorf("%s; or set insecure: true", strings.Join(open, "; "))
	}
	conf.Servers = make([]store.Server, len(c.Postgres.Servers))
	for i, s := range c.Postgres.Servers {
		conf.Servers[i] = store.Server{DSN: s.DSN, Databases: s.Databases, Storage: s.Storage, Read: readDSN(c, s, i)}
	}
	cluster, err := store.Open(ctx, conf)
	if err != nil {
		return nil, errors.New(oneLine(err))
	}
	return cluster, nil
}

// OpenClusterOf returns the pools for the parts of a process, and tells its log and metrics
// about them. It opens no connection.
func OpenClusterOf(ctx context.Context, o *Options, application string) (*store.Cluster, error) {
	cluster, err := OpenCluster(ctx, o.Config, application)
	if err != nil {
		return nil, err
	}
	tellAdoptions(cluster, o.Log, o.Metrics)
	logStalls(cluster, o.Log)
	logLogins(cluster, o.Log)
	return cluster, nil
}

// open returns the pools of a part, and what closes them if they are its own.
func (o *Options) open(ctx context.Context, application string) (cluster *store.Cluster, closeOwn func(), err error) {
	if o.Cluster != nil {
		return o.Cluster, func() {}, nil
	}
	if cluster, err = OpenClusterOf(ctx, o, application); err != nil {
		return nil, nil, err
	}
	return cluster, cluster.Close, nil
}

// readDSN returns what reads the connection string of server i anew; nil: it is not in a file.
func readDSN(c *config.Config, s config.Server, i int) func() (string, error) {
	if s.DSNFile == "" {
		return nil
	}
	return func() (string, error) {
		dsn, err := config.ReadSecret(s.DSNFile)
		if err == nil && !c.Insecure {
			err = store.CheckLink(dsn)
		}
		if err != nil {
			return "", fmt.Errorf("postgres.servers[%d].dsn_file: %w", i, err)
		}
		return dsn, nil
	}
}

// logLogins logs when the login to a server has changed.
func logLogins(cluster *store.Cluster, log *slog.Logger) {
	cluster.OnLogin(func(server string, err error) {
		if err != nil {
			log.Warn("a changed login to PostgreSQL cannot be used yet; the last one stays in use", "server", server, "err", oneLine(err))
		} else {
			log.Info("the login to PostgreSQL was renewed; connections are replaced", "server", server)
		}
	})
}

// logStalls logs when a server hangs and when it answers again.
func logStalls(cluster *store.Cluster, log *slog.Logger) {
	cluster.OnStall(func(address string, stalled bool) {
		server, _, _ := strings.Cut(address, "/")
		if stalled {
			log.Warn("the PostgreSQL server does not answer; calls for its databases fail until it does", "server", server)
		} else {
			log.Info("the PostgreSQL server answers again", "server", server)
		}
	})
}

// newTopics returns what creates and checks topics.
func newTopics(c *config.Config, conf delivery.Config) (*delivery.Topics, error) {
	return delivery.NewTopics(conf, delivery.TopicConfig{
		Prefix: c.Kafka.TopicPrefix, Partitions: c.Kafka.Partitions, Replication: c.Kafka.ReplicationFactor,
		Retention: c.Kafka.Retention, GiveUpAfter: min(c.Kafka.Retention, task.MaxGiveUpAfter),
		ParamsBytes: task.MaxParamsBytes,
	})
}

// pingTimeout bounds a call that asks whether a server answers.
const pingTimeout = 2 * time.Second

// awayDatabases pings every database and returns those that do not answer, with the
// first error.
func awayDatabases(ctx context.Context, cluster *store.Cluster) (away []int, first error) {
	return failingDatabases(ctx, cluster, pingTimeout+cluster.OtherHosts(), func(ctx context.Context, d int) error { return cluster.Pool(d).Ping(ctx) })
}

// failingDatabases probes every database and returns those whose probe fails or takes longer than limit, with the first error.
func failingDatabases(ctx context.Context, cluster *store.Cluster, limit time.Duration, probe func(context.Context, int) error) (away []int, first error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var asking sync.WaitGroup
	errs := make([]error, task.Databases)
	for d := range task.Databases {
		asking.Go(func() { errs[d] = probe(ctx, d) })
	}
	asking.Wait()
	for d, err := range errs {
		if err == nil {
			continue
		}
		away = append(away, d)
		if first == nil {
			first = fmt.Errorf("database %d at %s: %w", d, cluster.Address(d), err)
		}
	}
	return away, first
}

// postgresCheck is ready while any database answers and can be written, and degraded while not all do. It is
// only degraded while disks are full: what needs no room is still done, such as reads.
func postgresCheck(cluster *store.Cluster) telemetry.Check {
	return telemetry.Check{Name: "postgres", Probe: func(ctx context.Context) error {
		away, err := failingDatabases(ctx, cluster, pingTimeout, cluster.Writable)
		switch {
		case len(away) == 0:
			return nil
		case errors.Is(err, store.ErrFull):
			return telemetry.Degraded(fmt.Errorf("%d of %d databases refuse to write, or do not answer %v: %s", len(away), task.Databases, away, explained(err)))
		case len(away) == task.Databases && errors.Is(err, store.ErrReadOnly):
			return fmt.Errorf("no database can be written: %s", explained(err))
		case len(away) == task.Databases:
			return fmt.Errorf("no database answers: %s", explained(err))
		case errors.Is(err, store.ErrReadOnly):
			return telemetry.Degraded(fmt.Errorf("%d of %d databases cannot be written, or do not answer %v: %s", len(away), task.Databases, away, explained(err)))
		}
		return telemetry.Degraded(fmt.Errorf("%d of %d databases do not answer %v: %s", len(away), task.Databases, away, explained(err)))
	}}
}

// explained returns the text of an error as one line, followed by what to do about it.
func explained(err error) string {
	if cure := store.Cure(err); cure != "" {
		return oneLine(err) + "; " + cure
	}
	return oneLine(err)
}

// oneLine returns the text of an error without line breaks and repeated lines.
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}
