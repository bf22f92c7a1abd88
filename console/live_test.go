package console_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/console"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// growing is an API with a reader of one tenant, and a bulk operation that goes on for ever.
type growing struct {
	grpc.ClientConnInterface
	asked atomic.Int64
}

func (g *growing) Invoke(_ context.Context, full string, _, reply any, _ ...grpc.CallOption) error {
	switch {
	case strings.HasSuffix(full, "/GetIdentity"):
		proto.Merge(reply.(proto.Message), &perceptorv1.Identity{Name: "t1", Tenant: "acme", Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_READ}})
	case strings.HasSuffix(full, "/GetBulkOperation"):
		proto.Merge(reply.(proto.Message), &perceptorv1.BulkOperation{Id: 9, State: perceptorv1.BulkOperation_RUNNING, Action: perceptorv1.BulkOperation_CANCEL, Done: g.asked.Add(1)})
	}
	return nil
}

func TestALivePageOutlastsTheAnswersOfAProxy(t *testing.T) {
	ctx := chrome(t)
	c, err := console.New(console.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	pages, away := c.Serve(&growing{}), atomic.Bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<html><body><h1>502 Bad Gateway</h1></body></html>")
			return
		}
		pages.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	x := newTour(ctx, t, server.URL)
	x.do(chromedp.Navigate(x.base + c.Link("secret")))
	x.sees("acme")
	x.do(chromedp.Navigate(x.base + "/console/bulk/9"))
	const changed = `Number(document.querySelectorAll("main dd")[1].innerText)`
	x.until(changed + " > 2")
	away.Store(true)
	x.until(`document.body.innerText.includes("The server does not answer") || document.body.innerText.includes("502")`)
	x.until(`!document.body.innerText.includes("502") && ` + changed + " > 2")
	away.Store(false)
	x.until(`!document.body.innerText.includes("The server does not answer")`)
	x.scriptsWorked()
}
