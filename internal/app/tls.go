package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/internal/certs"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/store"
)

// serverTLS returns the configuration of the API's listeners; nil means no TLS. refused is
// called for each handshake that fails.
func serverTLS(c config.ServerTLS, log *slog.Logger, refused func()) (*tls.Config, error) {
	if c.CertFile == "" {
		return nil, nil
	}
	source, err := certs.Open(certs.Files{Cert: c.CertFile, Key: c.KeyFile, CA: c.ClientCAFile},
		certs.Names{Cert: "taskd.tls.cert_file", CA: "taskd.tls.client_ca_file"}, log)
	if err != nil {
		return nil, err
	}
	clients := tls.NoClientCert
	switch {
	case c.ClientCAFile == "":
	case c.ClientCerts == "optional":
		clients = tls.VerifyClientCertIfGiven
	default:
		clients = tls.RequireAndVerifyClientCert
	}
	return source.Server(clients, refused), nil
}

// NewOps returns the server for operators on a listener, with TLS if that is configured.
func NewOps(o Options, l net.Listener, registry *prometheus.Registry, checks []telemetry.Check) (*telemetry.Ops, error) {
	c := o.Config.Ops
	if c.TLS.CertFile != "" {
		source, err := certs.Open(certs.Files{Cert: c.TLS.CertFile, Key: c.TLS.KeyFile}, certs.Names{Cert: "ops.tls.cert_file"}, o.Log)
		if err != nil {
			return nil, err
		}
		refused := telemetry.RefusedConnections(o.Metrics, "ops")
		l = tls.NewListener(certs.CountClearText(l, refused), source.Server(tls.NoClientCert, refused))
	}
	return telemetry.NewOps(l, registry, checks, telemetry.OpsOptions{Token: c.Token, Profiles: c.Pprof}, o.Log), nil
}

// countClearText counts callers of the API that do not speak TLS. l may be nil.
func countClearText(l net.Listener, conf *tls.Config, refused func()) net.Listener {
	if l == nil || conf == nil {
		return l
	}
	return certs.CountClearText(l, refused)
}

// zookeeperDial returns what opens connections to ZooKeeper; nil means without TLS.
func zookeeperDial(c config.ZooKeeperTLS, log *slog.Logger) (func(ctx context.Context, network, address string) (net.Conn, error), error) {
	if !c.Enabled {
		return nil, nil
	}
	source, err := certs.Open(certs.Files{Cert: c.CertFile, Key: c.KeyFile, CA: c.CAFile},
		certs.Names{Cert: "zookeeper.tls.cert_file", CA: "zookeeper.tls.ca_file"}, log)
	if err != nil {
		return nil, err
	}
	return source.Dialer((&net.Dialer{}).DialContext), nil
}

// openDatabases names the links to Postgres that others could read or change.
func openDatabases(c *config.Config) (open []string) {
	for i, s := range c.Postgres.Servers {
		if err := store.CheckLink(s.DSN); err != nil {
			open = append(open, fmt.Sprintf("postgres.servers[%d].dsn: %v", i, err))
		}
	}
	return open
}

// WarnOfOpenLinks logs each link that is open because the configuration allows it.
func WarnOfOpenLinks(c *config.Config, needs config.Need, log *slog.Logger) {
	for _, l := range append(c.OpenLinks(needs), openDatabases(c)...) {
		log.Warn("insecure: true allows an open link", "part", l)
	}
}
