package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/oidc/oidctest"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
	n    int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	a.key, der = a.sign(template, template)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = a.write("ca.pem", "CERTIFICATE", der)
	return a
}

// sign makes a key and a certificate of it.
func (a *authority) sign(template, parent *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(a.n), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, der
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

// client returns a client's certificate with a common name and names.
func (a *authority) client(cn string, uris, dns []string) tls.Certificate {
	a.t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: cn}, DNSNames: dns, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			a.t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	key, der := a.sign(template, a.cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// taskd is an API on a real database, with TLS.
type taskd struct {
	*API
	t          *testing.T
	control    *control.Store
	ca         *authority
	metrics    *prometheus.Registry
	grpc, http string
}

// startTaskd runs an API until the test ends.
func startTaskd(t *testing.T, dsn string, ca *authority, change func(*config.Taskd)) *taskd {
	t.Helper()
	c, err := config.Load(config.Sources{Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	c.Postgres.Servers = []config.Server{{DSN: dsn}}
	c.Kafka.Brokers, c.Taskd.Grace = []string{"127.0.0.1:1"}, time.Second // nothing here needs Kafka
	key, der := ca.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "taskd"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, ca.cert)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.Taskd.TLS.CertFile = ca.write(fmt.Sprintf("taskd%d.pem", ca.n), "CERTIFICATE", der)
	c.Taskd.TLS.KeyFile = ca.write(fmt.Sprintf("taskd%d.key", ca.n), "PRIVATE KEY", private)
	c.Taskd.TLS.ClientCAFile, c.Taskd.TLS.ClientCerts = ca.file, "optional"
	change(&c.Taskd)
	d := &taskd{t: t, ca: ca, control: control.New(storetest.OpenDSN(t, dsn), quiet), metrics: prometheus.NewRegistry()}
	var listeners [2]net.Listener
	for i, at := range []*string{&d.grpc, &d.http} {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		*at = listeners[i].Addr().String()
	}
	d.API, err = NewAPI(t.Context(), APIOptions{
		Options: Options{Config: &c.Config, Log: quiet, Metrics: d.metrics}, GRPC: listeners[0], HTTP: listeners[1], Hints: noHints{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.API.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d
}

// tenants creates tenants without topics, which nothing here needs.
func (d *taskd) tenants(names ...string) {
	d.t.Helper()
	for _, n := range names {
		_, err := d.control.CreateTenant(d.t.Context(), control.Tenant{Name: n, ParamsBytes: 1000, Retention: time.Hour})
		if err != nil && task.CodeOf(err) != task.Unavailable { // on a busy machine a database may get it later
			d.t.Fatal(err)
		}
	}
}

// token creates a token of a tenant.
func (d *taskd) token(tenant string) (id, secret string) {
	d.t.Helper()
	created, secret, err := d.control.CreateToken(d.t.Context(), control.Token{Scopes: control.TenantScope, Tenant: tenant, ExpiresAt: task.Never})
	if err != nil {
		d.t.Fatal(err)
	}
	return created.ID, secret
}

// dial connects with a certificate, or without one.
func (d *taskd) dial(certs ...tls.Certificate) *grpc.ClientConn {
	d.t.Helper()
	conn, err := grpc.NewClient("dns:///"+d.grpc, grpc.WithTransportCredentials(credentials.NewTLS(d.tls(certs))))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (d *taskd) tls(certs []tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(d.ca.cert)
	return &tls.Config{RootCAs: pool, Certificates: certs, MinVersion: tls.VersionTLS12}
}

// counts calls CountTasks, which needs READ, with a secret or without one.
func (d *taskd) counts(conn *grpc.ClientConn, secret string) error {
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	if secret != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
	}
	_, err := perceptorv1.NewTaskServiceClient(conn).CountTasks(ctx, &perceptorv1.CountTasksRequest{}, grpc.WaitForReady(true))
	return err
}

// refused returns how many logins were refused for a reason.
func (d *taskd) refused(reason string) float64 {
	d.t.Helper()
	families, err := d.metrics.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "perceptor_logins_refused_total" && m.Label[0].GetValue() == reason {
				return m.Counter.GetValue()
			}
		}
	}
	return 0
}

func TestAJSONWebTokenStandsForItsTenantAndItsScopes(t *testing.T) {
	t.Parallel()
	issuer, ca := oidctest.New(t), newAuthority(t)
	key := issuer.Key("rsa", jose.RS256)
	trusted := ca.write("issuer.pem", "CERTIFICATE", issuer.Certificate().Raw)
	d := startTaskd(t, storetest.DSN(t), ca, func(c *config.Taskd) {
		c.OIDC.Issuer, c.OIDC.Audience, c.OIDC.CAFile = issuer.URL, "perceptor", trusted
	})
	d.tenants("acme", "rival")
	_, pct := d.token("rival")
	conn := d.dial()
	none := d.counts(conn, "")
	if status.Code(none) != codes.Unauthenticated {
		t.Fatal(none)
	}
	with := func(changes map[string]any) string { return oidctest.Sign(t, key, jose.RS256, issuer.Claims(changes)) }
	at := func(a time.Duration) any { return time.Now().Add(a).Unix() }
	for _, c := range []struct {
		name, secret string
		want         codes.Code
		reason       string
	}{
		{"good", with(nil), codes.OK, ""},
		{"a token of the store beside it", pct, codes.OK, ""},
		{"another scope", with(map[string]any{"scope": "perceptor:add"}), codes.PermissionDenied, ""},
		{"no scope of ours", with(map[string]any{"scope": "read"}), codes.PermissionDenied, ""},
		{"an installation's scope with a tenant", with(map[string]any{"scope": "perceptor:admin"}), codes.PermissionDenied, ""},
		{"an unknown tenant", with(map[string]any{"tenant": "nobody"}), codes.Unauthenticated, "no_tenant"},
		{"a list of tenants", with(map[string]any{"tenant": []string{"acme"}, "scope": "perceptor:admin_read"}), codes.Unauthenticated, "no_tenant"},
		{"a tenant that is no name", with(map[string]any{"tenant": "a\x00b"}), codes.Unauthenticated, "no_tenant"},
		{"no tenant", with(map[string]any{"tenant": nil}), codes.Unauthenticated, "no_tenant"},
		{"expired", with(map[string]any{"exp": at(-time.Minute)}), codes.Unauthenticated, "expired"},
		{"not yet valid", with(map[string]any{"nbf": at(time.Hour)}), codes.Unauthenticated, "jwt_not_yet_valid"},
		{"another audience", with(map[string]any{"aud": "else"}), codes.Unauthenticated, "jwt_audience"},
		{"another issuer", with(map[string]any{"iss": "https://else"}), codes.Unauthenticated, "jwt_issuer"},
		{"alg none", "eyJhbGciOiJub25lIn0.e30.", codes.Unauthenticated, "jwt_algorithm"},
		{"the public key as a secret", oidctest.Sign(t, jose.JSONWebKey{Key: []byte(fmt.Sprint(key.Public())), KeyID: "rsa"}, jose.HS256, issuer.Claims(nil)), codes.Unauthenticated, "jwt_algorithm"},
		{"another key", oidctest.Sign(t, oidctest.NewKey(t, "rsa", jose.RS256), jose.RS256, issuer.Claims(nil)), codes.Unauthenticated, "jwt_signature"},
		{"oversized", with(map[string]any{"filler": strings.Repeat("x", 8<<10)}), codes.Unauthenticated, "too_long"},
		{"the right id and a wrong secret", pct[:len(pct)-4] + "AAAA", codes.Unauthenticated, "wrong_secret"},
	} {
		before := d.refused(c.reason)
		err := d.counts(conn, c.secret)
		if status.Code(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		if c.want == codes.Unauthenticated && (fmt.Sprint(err) != none.Error() || d.refused(c.reason) != before+1) {
			t.Errorf("%s: %v, counted %v times as %s", c.name, err, d.refused(c.reason)-before, c.reason)
		}
	}
	for i := range 150 { // they cost no query, and do not use up the look-ups of their address
		if err := d.counts(conn, fmt.Sprintf("a.b.%d", i)); status.Code(err) != codes.Unauthenticated {
			t.Fatal(err)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+with(map[string]any{"tenant": nil, "scope": "perceptor:admin_read"}))
	if list, err := perceptorv1.NewAdminServiceClient(conn).ListTenants(ctx, &perceptorv1.ListTenantsRequest{}); err != nil || len(list.Tenants) != 2 {
		t.Errorf("admin_read: %v, %v", list, err)
	}
}

func TestWithoutTheIssuersKeysALoginIsToBeTriedAgain(t *testing.T) {
	t.Parallel()
	issuer, ca := oidctest.New(t), newAuthority(t)
	key := issuer.Key("rsa", jose.RS256)
	issuer.Set(func(s *oidctest.State) { s.Down = true })
	trusted := ca.write("issuer.pem", "CERTIFICATE", issuer.Certificate().Raw)
	d := startTaskd(t, storetest.DSN(t), ca, func(c *config.Taskd) {
		c.OIDC.Issuer, c.OIDC.Audience, c.OIDC.CAFile = issuer.URL, "perceptor", trusted
	})
	if err := d.counts(d.dial(), oidctest.Sign(t, key, jose.RS256, issuer.Claims(nil))); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

func TestACertificateStandsForTheIdentityThatItIsBoundTo(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	d := startTaskd(t, storetest.DSN(t), ca, func(c *config.Taskd) {
		c.TLS.ClientIdentities = []string{
			"uri:spiffe://example.org/acme/worker acme read", "dns:adds.example.org acme add", "cn:reads acme read", "cn:reads.example.org acme read",
			"uri:spiffe://example.org/gone gone read", "cn:operator - admin_read",
		}
	})
	d.tenants("acme", "rival")
	_, acmes := d.token("acme")
	_, rivals := d.token("rival")
	none := d.counts(d.dial(), "")
	worker := ca.client("x", []string{"spiffe://example.org/acme/worker"}, nil)
	for _, c := range []struct {
		name   string
		cert   tls.Certificate
		secret string
		want   codes.Code
	}{
		{"a URI", worker, "", codes.OK},
		{"a URI and the tenant's token", worker, acmes, codes.OK},
		{"a URI and another tenant's token", worker, rivals, codes.Unauthenticated},
		{"a URI and a bad token", worker, "pct_x", codes.Unauthenticated},
		{"a DNS name with another scope", ca.client("reads", nil, []string{"adds.example.org"}), "", codes.PermissionDenied},
		{"a common name", ca.client("reads", nil, nil), "", codes.OK},
		{"a common name beside a DNS name", ca.client("reads", nil, []string{"reads.example.org"}), "", codes.Unauthenticated},
		{"an unbound one", ca.client("x", nil, nil), "", codes.Unauthenticated},
		{"an unbound one and a token", ca.client("x", nil, nil), rivals, codes.OK},
		{"an unknown tenant", ca.client("x", []string{"spiffe://example.org/gone"}, nil), "", codes.Unauthenticated},
		{"the installation", ca.client("operator", nil, nil), "", codes.PermissionDenied},
		{"the installation and a tenant's token", ca.client("operator", nil, nil), acmes, codes.Unauthenticated},
	} {
		err := d.counts(d.dial(c.cert), c.secret)
		if status.Code(err) != c.want || c.want == codes.Unauthenticated && fmt.Sprint(err) != none.Error() {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		transport := &http.Transport{TLSClientConfig: d.tls([]tls.Certificate{c.cert})}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+d.http+"/v1/tasks:count", nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.secret != "" {
			request.Header.Set("Authorization", "Bearer "+c.secret)
		}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		want := map[codes.Code]int{codes.OK: 200, codes.Unauthenticated: 401, codes.PermissionDenied: 403}[c.want]
		if answer.Body.Close(); answer.StatusCode != want {
			t.Errorf("%s over HTTP: %s, want %d", c.name, answer.Status, want)
		}
		transport.CloseIdleConnections()
	}
	if n := d.refused("certificate_of_another"); n != 4 {
		t.Errorf("%v logins are counted as certificates of another tenant, want 4", n)
	}
}

func TestARevocationReachesAllTaskdsWithinASecond(t *testing.T) {
	t.Parallel()
	dsn, ca := storetest.DSN(t), newAuthority(t)
	first, second := startTaskd(t, dsn, ca, func(*config.Taskd) {}), startTaskd(t, dsn, ca, func(*config.Taskd) {})
	first.tenants("acme")
	_, other := first.token("acme")
	conns := []*grpc.ClientConn{first.dial(), second.dial()}
	// On a busy machine calls take long, or fail, so only one counts that is accepted, and from its begin.
	// The second has two more for polls that such a machine delays. One that stands still for longer may do so
	// once or twice, and without a revocation each token would be accepted for five seconds.
	const most, tries = 3 * time.Second, 3
	for try := 1; ; try++ {
		late := first.revocation(conns, other)
		if late < most {
			return
		}
		if try == tries {
			t.Fatalf("a call that began %s after the revocation of its token was accepted", late)
		}
		t.Logf("a call that began %s after the revocation of its token was accepted; trying again", late)
	}
}

// revocation revokes a token that all connections know, and returns how long afterwards the last call with it began that was accepted.
func (d *taskd) revocation(conns []*grpc.ClientConn, other string) (late time.Duration) {
	d.t.Helper()
	id, secret := d.token("acme")
	for _, conn := range conns {
		for _, s := range []string{secret, other} {
			if err := d.counts(conn, s); err != nil && status.Code(err) != codes.Unavailable {
				d.t.Fatal(err)
			}
		}
	}
	if _, err := d.control.RevokeToken(d.t.Context(), id, 0); err != nil {
		d.t.Fatal(err)
	}
	revoked := time.Now()
	for i, conn := range conns {
		for {
			began := time.Since(revoked)
			err := d.counts(conn, secret)
			if status.Code(err) == codes.Unauthenticated {
				break
			}
			if err == nil {
				late = max(late, began)
			}
			if began > time.Minute {
				d.t.Fatalf("taskd %d answers a call that began %s after the revocation of its token with %v", i, began, err)
			}
		}
		if err := d.counts(conn, other); status.Code(err) == codes.Unauthenticated {
			d.t.Errorf("another token: %v", err)
		}
	}
	return late
}

func TestWrongBindingsAreNamed(t *testing.T) {
	_, err := parseBindings([]string{"cn:a acme", "a acme read", "cn: acme read", "cn:b acme admin", "cn:c - read", "cn:d acme read+fly", "cn:e acme read", "cn:e acme add"})
	for i, want := range []string{"is not NAME TENANT SCOPES", "begins with none of", "begins with none of", `"admin" is not a scope of acme`, `"read" is not a scope of -`, `"fly" is not a scope`, "", "cn:e is bound twice"} {
		line := fmt.Sprintf("taskd.tls.client_identities[%d]: ", i)
		if got := strings.Contains(fmt.Sprint(err), line); got != (want != "") || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s want %q in:\n%v", line, want, err)
		}
	}
}

// noHints tells nobody.
type noHints struct{}

func (noHints) Hint(int, task.Instant, ...int32) {}
func (noHints) BulkStarted(int)                  {}
func (noHints) Lateness() (l task.Lateness)      { return l }
