package certs

import (
	"net/http"
	"sync"
)

// Transport returns what sends HTTP requests as base does, over TLS connections that go by what the files hold when they
// begin, also through a proxy.
func (s *Source) Transport(base *http.Transport) http.RoundTripper {
	return &transport{source: s, base: base}
}

// transport has one transport for each reading of the files.
type transport struct {
	source *Source
	base   *http.Transport

	mu      sync.Mutex
	of      *Material
	current *http.Transport
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.newest().RoundTrip(r)
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() { t.newest().CloseIdleConnections() }

func (t *transport) newest() *http.Transport {
	m := t.source.Newest()
	t.mu.Lock()
	defer t.mu.Unlock()
	if m != t.of {
		if t.current != nil {
			t.current.CloseIdleConnections()
		}
		t.of, t.current = m, t.base.Clone()
		t.current.TLSClientConfig = m.client()
	}
	return t.current
}
