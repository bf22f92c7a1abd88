package console_test

import (
	"context"
	"fmt"
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

// growing is an API with an operator of one tenant, a bulk operation that goes on for ever, and a dry run
// that ends.
type growing struct {
	grpc.ClientConnInterface
	asked atomic.Int64
	ended atomic.Bool
}

func (g *growing) Invoke(_ context.Context, full string, request, reply any, _ ...grpc.CallOption) error {
	switch {
	case strings.HasSuffix(full, "/GetIdentity"):
		proto.Merge(reply.(proto.Message), &perceptorv1.Identity{Name: "t1", Tenant: "acme", Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_READ, perceptorv1.Token_OPERATE}})
	case strings.HasSuffix(full, "/GetBulkOperation") && request.(*perceptorv1.GetBulkOperationRequest).Id == dryRun:
		o := &perceptorv1.BulkOperation{Id: dryRun, State: perceptorv1.BulkOperation_RUNNING, Action: perceptorv1.BulkOperation_CANCEL, DryRun: true, Matched: 12}
		if g.ended.Load() {
			o.State = perceptorv1.BulkOperation_DONE
		}
		proto.Merge(reply.(proto.Message), o)
	case strings.HasSuffix(full, "/GetBulkOperation"):
		proto.Merge(reply.(proto.Message), &perceptorv1.BulkOperation{Id: 9, State: perceptorv1.BulkOperation_RUNNING, Action: perceptorv1.BulkOperation_CANCEL, Done: g.asked.Add(1)})
	}
	return nil
}

// dryRun is the id of the dry run.
const dryRun = 10

// growingTour returns a user of an installation with that API.
func growingTour(t *testing.T) (*tour, *growing) {
	ctx := chrome(t)
	c, err := console.New(console.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	api := &growing{}
	server := httptest.NewServer(c.Serve(api))
	t.Cleanup(server.Close)
	x := newTour(ctx, t, server.URL)
	x.do(chromedp.Navigate(x.base + c.Link("secret")))
	x.sees("acme")
	return x, api
}

func TestACountIsConfirmedWithTheKeyboardOnALivePage(t *testing.T) {
	x, api := growingTour(t)
	x.do(chromedp.Navigate(fmt.Sprintf("%s/console/bulk/%d", x.base, dryRun)))
	x.sees("Working")
	api.ended.Store(true)
	x.sees("Type the count")
	const button = `document.querySelector("button[data-guarded]")`
	x.until(button + ".disabled")
	x.write("#count", "12\t")
	x.until(`document.activeElement === ` + button)
	x.await(`new Promise((resolve) => setTimeout(resolve, 2500))`, nil) // it used to be fetched each second
	x.until(`document.activeElement === ` + button + ` && !` + button + `.disabled && document.querySelector("#count").value === "12"`)
	x.scriptsWorked()
}

func TestTheResultOfAnActionStaysOnALivePage(t *testing.T) {
	x, api := growingTour(t)
	x.do(chromedp.Navigate(x.base + "/console/bulk/9"))
	x.click(`form[action$="/pause"] button`)
	x.sees("Operation 9 is paused.")
	seen := api.asked.Load()
	x.until(fmt.Sprintf(`Number(document.querySelectorAll("main dd")[1].innerText) > %d`, seen+2))
	x.sees("Operation 9 is paused.")
	x.scriptsWorked()
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
