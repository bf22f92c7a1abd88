package app

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/identity"
)

// tellAdoptions returns an option of [OpenCluster]: databases that may have lost commits are
// logged and counted, and forget is called, which must not block.
func tellAdoptions(log *slog.Logger, r prometheus.Registerer, forget func()) func(*store.Config) {
	metrics := telemetry.NewDatabases(r)
	return func(c *store.Config) {
		c.Adopted = func(a identity.Adoption) {
			metrics.Adopted(a.Database)
			level := slog.LevelWarn
			if a.Reason == identity.Restarted {
				level = slog.LevelInfo
			}
			log.Log(context.Background(), level, "database was adopted: commits that it acknowledged before may be lost", "database", a.Database, "reason", a.Reason)
			forget()
		}
	}
}
