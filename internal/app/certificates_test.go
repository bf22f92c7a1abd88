package app

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/testenv"
)

// A certificate that nobody has renewed goes on to be served, until callers refuse it.
func TestACertificateThatIsNotRenewedIsSeenBeforeItExpires(t *testing.T) {
	ca := testenv.NewCA(t)
	c := &config.Config{}
	c.Taskd.TLS.CertFile = ca.Issue(t, testenv.Server, testenv.Valid(-time.Hour, 99*time.Hour)).CombinedFile
	c.Ops.TLS.CertFile = ca.Issue(t, testenv.Server, testenv.Valid(-95*time.Hour, 5*time.Hour)).CertFile
	c.Kafka.TLS.Enabled, c.Kafka.TLS.CertFile = true, ca.Issue(t, testenv.Client, testenv.Valid(-2*time.Hour, -time.Hour)).CertFile
	c.ZooKeeper.TLS.Enabled, c.ZooKeeper.TLS.CertFile = true, "/no/such"
	c.Postgres.Servers = []config.Server{{DSN: "host=a sslcert=" + ca.Issue(t, testenv.Client, testenv.Valid(-97*time.Hour, 3*time.Hour)).CertFile + " sslrootcert=" + ca.File},
		{DSN: "postgres://b/x?sslrootcert=/no/such"}}
	ended, next := ca.Issue(t, testenv.Server, testenv.Valid(-2*time.Hour, -time.Hour)).CertFile, ca.Issue(t, testenv.Server, testenv.Valid(-time.Hour, 3*time.Hour)).CertFile
	c.Taskd.TLS.ClientCAFile = filepath.Join(t.TempDir(), "ca.pem")
	var both []byte
	for _, file := range []string{next, ended} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, text...)
	}
	if err := os.WriteFile(c.Taskd.TLS.ClientCAFile, both, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kafka.TLS.CAFile = ca.Issue(t, testenv.Server, testenv.Valid(-87600*time.Hour, 48*time.Hour)).CertFile // of ten years

	want := map[string][2]float64{"taskd.tls.cert_file": {0.98, 1}, "ops.tls.cert_file": {0.04, 0.06}, "kafka.tls.cert_file": {}, "zookeeper.tls.cert_file": {},
		"postgres.servers[0].dsn sslcert": {0.02, 0.04}, "postgres.servers[0].dsn sslrootcert": {0.1, 1}, "postgres.servers[1].dsn sslrootcert": {},
		"taskd.tls.client_ca_file": {0.74, 0.76}, "kafka.tls.ca_file": {0.005, 0.006}}
	got := certificateLives(c, true)()
	for key, bounds := range want {
		if left, ok := got[key]; !ok || left < bounds[0] || left > bounds[1] {
			t.Errorf("%s has %g of its life left, want %v", key, left, bounds)
		}
	}
	if _, ok := certificateLives(c, false)()["taskd.tls.cert_file"]; ok {
		t.Error("a dispatcher reports the certificate of the API")
	}
	e := &examination{config: c}
	e.certificates()
	var states []State
	for _, f := range e.findings {
		states = append(states, f.State)
	}
	if !slices.Equal(states, []State{Warning, Warning, OK, Warning, Failed, Warning, Warning, OK, OK}) { // of ops, PostgreSQL, Kafka, ZooKeeper and taskd
		t.Errorf("findings: %+v", e.findings)
	}
}
