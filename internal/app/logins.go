package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/certs"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/oidc"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

// logins identifies callers: by tokens of the store, by JSON Web Tokens, and by client
// certificates.
type logins struct {
	tenants *tenants
	// jwt is nil if no JSON Web Tokens are accepted. claims says what their claims mean.
	jwt    *oidc.Verifier
	claims config.OIDC
	bound  map[string]binding // by name in a certificate
}

var (
	_ server.Authenticator = (*logins)(nil)
	_ server.Certificates  = (*logins)(nil)
	// The server looks for these methods, too.
	_ interface{ Exists(secret string) bool } = (*logins)(nil)
	_ interface{ Local(secret string) bool }  = (*logins)(nil)
)

// binding is the identity to which a name in certificates is bound. tenant "": the
// installation.
type binding struct {
	tenant string
	scopes server.Scopes
}

func newLogins(c *config.Taskd, t *tenants, log *slog.Logger) (*logins, error) {
	l := &logins{tenants: t, claims: c.OIDC}
	var err error
	if l.bound, err = parseBindings(c.TLS.ClientIdentities); err != nil {
		return nil, err
	}
	if c.OIDC.Issuer == "" {
		return l, nil
	}
	client, err := issuerClient(&c.OIDC, log)
	if err != nil {
		return nil, err
	}
	l.jwt, err = oidc.New(oidc.Config{
		Issuer: c.OIDC.Issuer, Audience: c.OIDC.Audience, Algorithms: c.OIDC.Algorithms, Skew: c.OIDC.ClockSkew, Client: client, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("taskd.oidc: %w", err)
	}
	return l, nil
}

// issuerClient returns the client for the few requests to the issuer.
func issuerClient(c *config.OIDC, log *slog.Logger) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	if c.CAFile == "" {
		return &http.Client{Transport: transport}, nil
	}
	source, err := certs.Open(certs.Files{CA: c.CAFile}, certs.Names{CA: "taskd.oidc.ca_file"}, log)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: source.Transport(transport)}, nil
}

// run reads the keys of the issuer, if there is one, until ctx ends.
func (l *logins) run(ctx context.Context) error {
	if l.jwt == nil {
		<-ctx.Done()
		return nil
	}
	return l.jwt.Run(ctx)
}

// Local reports whether a secret is a JSON Web Token. Bad ones cost no query.
func (l *logins) Local(secret string) bool {
	return l.jwt != nil && !strings.HasPrefix(secret, control.SecretPrefix)
}

// Exists reports whether a token with the id of a secret exists, as far as this process knows.
func (l *logins) Exists(secret string) bool { return l.tenants.store.Exists(secret) }

// Authenticate implements [server.Authenticator].
func (l *logins) Authenticate(ctx context.Context, secret string) (server.Identity, error) {
	if !l.Local(secret) {
		return l.tenants.Authenticate(ctx, secret)
	}
	c, err := l.jwt.Verify(ctx, secret)
	var refusal oidc.Refusal
	switch {
	case errors.As(err, &refusal):
		return server.Identity{}, control.Refusal(refusal).Err()
	case errors.Is(err, oidc.ErrUnavailable):
		return server.Identity{}, task.Errorf(task.ReasonIssuerUnavailable, "the token cannot be verified now; try again").CausedBy(err)
	case err != nil:
		return server.Identity{}, err
	}
	b := binding{tenant: c.Text(l.claims.TenantClaim)}
	if b.tenant == "" && c.Has(l.claims.TenantClaim) {
		return server.Identity{}, control.NoTenant.Err() // not a caller without a tenant
	}
	for _, word := range c.Words(l.claims.ScopesClaim) {
		if name, ours := strings.CutPrefix(word, l.claims.ScopePrefix); ours {
			scope, _ := server.ParseScope(name)
			b.scopes |= scope
		}
	}
	return l.identity(ctx, "oidc:"+c.Subject, b, c.Left)
}

// Bound implements [server.Certificates]. Of several names of a certificate the first bound
// one counts: URIs before DNS names. The common name counts only if there are neither, because
// authorities check it less.
func (l *logins) Bound(c *x509.Certificate) (name string, ok bool) {
	var names []string
	for _, u := range c.URIs {
		names = append(names, "uri:"+u.String())
	}
	for _, n := range c.DNSNames {
		names = append(names, "dns:"+n)
	}
	if len(names) == 0 {
		names = append(names, "cn:"+c.Subject.CommonName)
	}
	for _, n := range names {
		if _, ok := l.bound[n]; ok {
			return n, true
		}
	}
	return "", false
}

// Identify implements [server.Certificates].
func (l *logins) Identify(ctx context.Context, name string) (server.Identity, error) {
	return l.identity(ctx, "cert:"+name, l.bound[name], 0)
}

// identity returns the identity for scopes of a tenant, or of the installation.
func (l *logins) identity(ctx context.Context, name string, b binding, left time.Duration) (server.Identity, error) {
	if b.tenant == "" {
		if b.scopes&server.OfInstallation == 0 {
			return server.Identity{}, control.NoTenant.Err()
		}
		return l.tenants.identity(caller(name), b.scopes&server.OfInstallation, control.Tenant{}, left), nil
	}
	if task.NameFault(b.tenant, maxTenantName) != "" {
		return server.Identity{}, control.NoTenant.Err()
	}
	t, err := l.tenants.store.Tenant(ctx, b.tenant)
	if task.CodeOf(err) == task.NotFound || err == nil && t.Rates.Deleting {
		return server.Identity{}, control.NoTenant.Err()
	}
	if err != nil {
		return server.Identity{}, err
	}
	return l.tenants.identity(caller(name), b.scopes&server.OfTenant, t, left), nil
}

const (
	maxTenantName = 63
	maxCaller     = 100
)

// caller returns the name of an identity for logs: printable and bounded.
func caller(name string) string {
	name = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, name)
	return name[:min(len(name), maxCaller)]
}

// parseBindings reads taskd.tls.client_identities.
func parseBindings(list []string) (map[string]binding, error) {
	bound := map[string]binding{}
	var faults []error
	for i, text := range list {
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("taskd.tls.client_identities[%d]: "+format, append([]any{i}, args...)...))
		}
		fields := strings.Fields(text)
		if len(fields) != 3 {
			fault("%q is not NAME TENANT SCOPES, such as \"uri:spiffe://example.org/acme/worker acme listen\"", text)
			continue
		}
		name, b := fields[0], binding{tenant: fields[1]}
		if _, dup := bound[name]; dup {
			fault("%s is bound twice", name)
		}
		if kind, rest, _ := strings.Cut(name, ":"); rest == "" || kind != "uri" && kind != "dns" && kind != "cn" {
			fault("%q begins with none of uri:, dns: and cn:", name)
		}
		allowed := server.OfTenant
		if b.tenant == "-" {
			b.tenant, allowed = "", server.OfInstallation
		}
		for word := range strings.SplitSeq(fields[2], "+") {
			scope, ok := server.ParseScope(word)
			if !ok || scope&allowed == 0 {
				fault("%q is not a scope of %s", word, fields[1])
			}
			b.scopes |= scope
		}
		bound[name] = b
	}
	return bound, errors.Join(faults...)
}
