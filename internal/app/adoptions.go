package app

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/identity"
)

// tellAdoptions logs and counts databases that may have lost commits, and counts those without room.
func tellAdoptions(cluster *store.Cluster, log *slog.Logger, r prometheus.Registerer) {
	metrics := telemetry.NewDatabases(r)
	telemetry.RegisterFull(r, cluster.Full)
	cluster.OnAdoption(func(a identity.Adoption) {
		metrics.Adopted(a.Database)
		level := slog.LevelWarn
		if a.Reason == identity.Restarted {
			level = slog.LevelInfo
		}
		log.Log(context.Background(), level, "database was adopted: commits that it acknowledged before may be lost", "database", a.Database, "reason", a.Reason)
	})
}
