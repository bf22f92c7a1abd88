package server

import (
	"context"
	"net"
	"net/http"
	"time"
)

// maxConnectionAge bounds how long a connection is used. The next one begins with the certificates
// and the CAs of then.
const maxConnectionAge = time.Hour

type beganKey struct{}

// withHTTPConnection stores the connection of calls over HTTP, and its beginning, in their context.
func withHTTPConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(withConnection(ctx, c), beganKey{}, time.Now())
}

// current ends an HTTP connection with the first answer after its maximum age, as gRPC does by
// itself. It refuses requests of callers whose certificate has expired since the connection began.
func (g *gate) current(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		c := verified(r.TLS)
		expired := c != nil && now.After(c.NotAfter)
		began, ok := r.Context().Value(beganKey{}).(time.Time)
		if expired || ok && now.Sub(began) >= maxConnectionAge {
			w.Header().Set("Connection", "close")
		}
		if expired {
			writeError(w, g.bearers.refuse(refusedCertificateExpired))
			return
		}
		next.ServeHTTP(w, r)
	})
}
