package client

import (
	"context"
	"crypto/tls"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// bearer adds the token to every call. It implements [credentials.PerRPCCredentials], so
// grpc sends the token over no connection that is not secret enough, whatever the
// DialOptions are.
type bearer struct {
	token  func(ctx context.Context) (string, error)
	secret bool // the token needs TLS
}

// GetRequestMetadata returns the header with the token, or none without a token. While the
// source of tokens fails, the error is one that callers retry.
func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := b.token(ctx)
	switch {
	case err != nil:
		return nil, status.Errorf(codes.Unavailable, "TokenSource: %v", err)
	case !isPrintable(token):
		return nil, status.Error(codes.Unauthenticated, "TokenSource: the token contains spaces or characters that are not printable ASCII")
	case token == "":
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials].
func (b bearer) RequireTransportSecurity() bool { return b.secret }

// tokenSource returns the function that returns the token of each call.
func tokenSource(cfg *Config) func(context.Context) (string, error) {
	if cfg.TokenSource != nil {
		return cfg.TokenSource
	}
	token := cfg.Token
	return func(context.Context) (string, error) { return token, nil }
}

// isPrintable reports whether a token can be sent in a header.
func isPrintable(token string) bool {
	return !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
}

// hasCertificate reports whether the client presents a certificate.
func hasCertificate(c *tls.Config) bool {
	return c != nil && (len(c.Certificates) > 0 || c.GetClientCertificate != nil)
}
