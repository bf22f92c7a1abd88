package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Certificates identifies callers by the certificates that they present. It may be called
// concurrently.
type Certificates interface {
	// Bound returns the name under which a verified certificate is bound to an identity, or
	// false if it is not bound.
	Bound(c *x509.Certificate) (name string, ok bool)
	// Identify returns the identity that is bound to a name, or [task.NotFound].
	Identify(ctx context.Context, name string) (Identity, error)
}

type certificateKey struct{}

// withCertificate stores the verified certificate of an HTTP connection in the context.
func withCertificate(ctx context.Context, state *tls.ConnectionState) context.Context {
	if c := verified(state); c != nil {
		return context.WithValue(ctx, certificateKey{}, c)
	}
	return ctx
}

// certificateOf returns the verified certificate of the caller, or nil.
func certificateOf(ctx context.Context) *x509.Certificate {
	if c, ok := ctx.Value(certificateKey{}).(*x509.Certificate); ok {
		return c
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			return verified(&info.State)
		}
	}
	return nil
}

// verified returns the caller's certificate only if it was verified.
func verified(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.VerifiedChains[0][0]
}

// identify returns the identity of a caller. A certificate that is bound to an identity is
// enough. If the caller also sends a token, the token has the scopes, and must belong to the
// same tenant: a token is of no use to the services of other tenants.
func (g *gate) identify(ctx context.Context, headers []string) (*Identity, error) {
	bound, err := g.bound(ctx)
	switch {
	case err != nil:
		return nil, err
	case bound == nil:
		return g.bearers.identify(ctx, headers)
	case len(headers) == 0:
		return bound, nil
	}
	id, err := g.bearers.identify(ctx, headers)
	if err == nil && id.Tenant.ID != bound.Tenant.ID {
		return nil, g.bearers.refuse(refusedCertificate)
	}
	return id, err
}

// bound returns the identity to which the caller's certificate is bound, or nil if it has
// none or it is not bound.
func (g *gate) bound(ctx context.Context) (*Identity, error) {
	if g.certificates == nil {
		return nil, nil
	}
	c := certificateOf(ctx)
	if c == nil {
		return nil, nil
	}
	name, ok := g.certificates.Bound(c)
	if !ok {
		return nil, nil
	}
	// No secret has this form, because secrets have no NUL.
	key := sha256.Sum256([]byte("certificate\x00" + name))
	return g.bearers.lookup(ctx, key, func(ctx context.Context) (Identity, error) { return g.certificates.Identify(ctx, name) })
}
