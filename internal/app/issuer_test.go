package app

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/testenv"
)

func TestTheCAOfTheIssuerCountsThroughAProxy(t *testing.T) {
	ca := testenv.NewCA(t)
	c := ca.Issue(t, testenv.Server)
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	issuer := httptest.NewUnstartedServer(http.NotFoundHandler())
	issuer.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	issuer.StartTLS()
	t.Cleanup(issuer.Close)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		w.WriteHeader(http.StatusOK)
		from, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
		_, _ = io.Copy(from, to)
	}))
	t.Cleanup(proxy.Close)
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	standard := http.DefaultTransport.(*http.Transport)
	environment := standard.Proxy
	standard.Proxy = http.ProxyURL(at)
	t.Cleanup(func() { standard.Proxy = environment })
	client, err := issuerClient(&config.OIDC{CAFile: ca.File}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Get(issuer.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
}
