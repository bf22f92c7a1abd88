package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/pgserver"
)

// postgresStop bounds the orderly stop of PostgreSQL, since the whole installation
// must stop within 3 s.
const postgresStop = 1500 * time.Millisecond

// postgresSettings returns the settings of a small database. Unless it is ephemeral,
// the database loses no committed data.
func postgresSettings(ephemeral bool) map[string]string {
	fsync := "on"
	if ephemeral {
		fsync = "off"
	}
	return map[string]string{
		"shared_buffers":            "128MB",
		"fsync":                     fsync,
		"synchronous_commit":        "on",
		"max_connections":           "200",
		"max_locks_per_transaction": "256",
		"jit":                       "off",
	}
}

// preferredSettings speed up the start after an immediate stop, on systems that
// support them: one call of syncfs replaces a sync of thousands of files.
var preferredSettings = map[string]string{"recovery_init_sync_method": "syncfs"}

// servers holds the servers that the API and the dispatcher use.
type servers struct {
	postgres *pgserver.Server
	kafka    *kfake.Cluster
	broker   string
}

// startServers starts PostgreSQL and Kafka concurrently.
func startServers(ctx context.Context, dir *dataDir, o *Options, kafka net.Listener, progress func(string)) (*servers, error) {
	s := &servers{broker: kafka.Addr().String()}
	var starting errgroup.Group
	starting.Go(func() (err error) {
		s.postgres, err = pgserver.Start(ctx, pgserver.Options{
			DataDir: dir.join("postgres"), Port: o.Ports.Postgres, Settings: postgresSettings(dir.ephemeral),
			Preferred: preferredSettings, Scratch: dir.ephemeral, Initial: o.InitialPostgres, Progress: progress,
		})
		if errors.Is(err, pgserver.ErrPortInUse) && o.Ports.Postgres != 0 {
			return portInUse("postgres", o.Ports.Postgres)
		}
		return err
	})
	starting.Go(func() (err error) {
		s.kafka, err = startKafka(dir.join("kafka"), kafka, o.Log)
		return err
	})
	if err := starting.Wait(); err != nil {
		return nil, errors.Join(err, s.stop(o.Log, dir.ephemeral))
	}
	return s, nil
}

// startKafka runs a broker on a listener. The broker syncs records before it
// acknowledges them, and removes expired records every minute.
func startKafka(dir string, l net.Listener, log *slog.Logger) (*kfake.Cluster, error) {
	if err := privateDir(dir); err != nil {
		return nil, fmt.Errorf("start Kafka: %w", err)
	}
	broker, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.ListenFn(func(string, string) (net.Listener, error) { return l, nil }),
		kfake.DataDir(dir), kfake.SyncWrites(), kfake.WithLogger(kafkaLog{log}),
		kfake.BrokerConfigs(map[string]string{"log.cleaner.backoff.ms": "60000", "log.segment.bytes": "8388608"}),
	)
	if err != nil {
		return nil, fmt.Errorf("start Kafka on the data in %s: %w", dir, err)
	}
	return broker, nil
}

// privateDir makes a directory that no other user can enter, or closes an existing one.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// kafkaLog logs messages of the broker that need attention.
type kafkaLog struct{ log *slog.Logger }

func (l kafkaLog) Logf(level kfake.LogLevel, format string, args ...any) {
	if level == kfake.LogLevelError || level == kfake.LogLevelWarn {
		l.log.Warn("kafka: " + fmt.Sprintf(format, args...))
	}
}

// stop stops Kafka and then PostgreSQL. Committed data survives even if PostgreSQL
// must be killed.
func (s *servers) stop(log *slog.Logger, ephemeral bool) error {
	if s.kafka != nil {
		s.kafka.Close()
	}
	if s.postgres == nil {
		return nil
	}
	if ephemeral {
		return s.postgres.Kill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), postgresStop)
	defer cancel()
	err := s.postgres.Stop(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Info("PostgreSQL was killed; it recovers at its next start", "err", err)
		return nil
	}
	return err
}
