package app

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// knowsAll is an API that accepts every token.
type knowsAll struct{ grpc.ClientConnInterface }

func (knowsAll) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	proto.Merge(reply.(proto.Message), &perceptorv1.Identity{Name: "t1", Tenant: "acme"})
	return nil
}

func TestCookiesOfTheConsoleAreSecureWhereBrowsersReachItByTLS(t *testing.T) {
	for _, c := range []struct {
		url  string
		tls  bool
		want bool
	}{
		{"", false, false}, {"http://perceptor.example.com", false, false}, {"https://perceptor.example.com", false, true},
		{"HTTPS://perceptor.example.com/", false, true}, {"", true, true}, {"http://perceptor.example.com", true, true},
	} {
		a := &API{o: APIOptions{Options: Options{Log: slog.New(slog.DiscardHandler), Config: &config.Config{Taskd: config.Taskd{Console: config.Console{Enabled: true, URL: c.url}}}}}}
		serve, err := a.newConsole(c.tls)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/console/login", strings.NewReader(url.Values{"token": {"x"}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		serve(knowsAll{}).ServeHTTP(w, r)
		cookies := w.Result().Cookies()
		if len(cookies) != 1 || cookies[0].Secure != c.want || strings.HasPrefix(cookies[0].Name, "__Secure-") != c.want {
			t.Errorf("url %q, TLS of taskd %v: %v, want Secure %v", c.url, c.tls, cookies, c.want)
		}
	}
}
