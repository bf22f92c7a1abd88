package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/kafkalogin"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// OpenCluster returns the pools of the logical databases. It opens no connection.
func OpenCluster(ctx context.Context, c *config.Config, application string, options ...func(*store.Config)) (*store.Cluster, error) {
	if open := openDatabases(c); len(open) > 0 && !c.Insecure {
		return nil, fmt.Errorf("%s; or set insecure: true", strings.Join(open, "; "))
	}
	servers := make([]store.Server, len(c.Postgres.Servers))
	for i, s := range c.Postgres.Servers {
		servers[i] = store.Server{DSN: s.DSN, Databases: s.Databases}
	}
	conf := store.Config{
		Servers: servers, Application: application, MaxConns: c.Postgres.MaxConnections,
		StatementTimeout: c.Postgres.StatementTimeout, LockTimeout: c.Postgres.LockTimeout,
		IdleInTransaction: c.Postgres.IdleInTransaction,
	}
	for _, option := range options {
		option(&conf)
	}
	cluster, err := store.Open(ctx, conf)
	if err != nil {
		return nil, errors.New(oneLine(err))
	}
	return cluster, nil
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

// kafkaConfig returns the configuration of Kafka clients.
func kafkaConfig(c *config.Config, clientID string) (delivery.Config, error) {
	conf := delivery.Config{
		Brokers: c.Kafka.Brokers, ClientID: clientID,
		Compression: c.Kafka.Compression, Timeout: c.Kafka.Timeout,
	}
	if c.Kafka.TLS.Enabled {
		var err error
		if conf.TLS, err = kafkaTLS(&c.Kafka.TLS); err != nil {
			return conf, err
		}
	}
	var err error
	conf.SASL, err = kafkaLogin(&c.Kafka.SASL)
	return conf, err
}

func kafkaLogin(c *config.KafkaSASL) (sasl.Mechanism, error) {
	switch name := c.Name(); name {
	case "":
		return nil, nil
	case kafkalogin.OAuthBearer:
		return kafkalogin.TokenFile(c.TokenFile), nil
	default:
		m, err := kafkalogin.New(name, c.Username, c.Password)
		if err != nil {
			return nil, errors.New("kafka.sasl.password: cannot be used with " + name)
		}
		return m, nil
	}
}

func kafkaTLS(c *config.KafkaTLS) (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pool, err := certPool("kafka.tls.ca_file", c.CAFile)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = pool
	}
	if c.CertFile != "" {
		read := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("kafka.tls.cert_file: %w", err)
			}
			return &cert, nil
		}
		if _, err := read(nil); err != nil {
			return nil, err
		}
		conf.GetClientCertificate = read // for each connection, so that the files may be renewed
	}
	return conf, nil
}

func certPool(key, file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: %s holds no certificate", key, file)
	}
	return pool, nil
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
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	var asking sync.WaitGroup
	errs := make([]error, task.Databases)
	for d := range task.Databases {
		asking.Go(func() { errs[d] = cluster.Pool(d).Ping(ctx) })
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

// postgresCheck is ready while any database answers, and degraded while not all do.
func postgresCheck(cluster *store.Cluster) telemetry.Check {
	return telemetry.Check{Name: "postgres", Probe: func(ctx context.Context) error {
		away, err := awayDatabases(ctx, cluster)
		switch {
		case len(away) == 0:
			return nil
		case len(away) == task.Databases:
			return fmt.Errorf("no database answers: %s", oneLine(err))
		}
		return telemetry.Degraded(fmt.Errorf("%d of %d databases do not answer %v: %s", len(away), task.Databases, away, oneLine(err)))
	}}
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
