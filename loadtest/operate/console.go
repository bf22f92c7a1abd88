package operate

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// ConsoleFigures has the figures of a page of the console: of the request and its whole answer, as
// a browser on the same machine sees it.
type ConsoleFigures struct {
	Path string `json:"path"`
	// As is whose login shows the page: tenant or operator.
	As string `json:"as"`
	// KiB is the size of the answer, compressed.
	KiB float64           `json:"compressed_kib"`
	P95 float64           `json:"p95_ms"`
	Ms  harness.Quantiles `json:"ms"`
}

// visits returns the pages that are measured, by login. id is a task of the large tenant.
func (r *runner) visits(id int64) map[string][]string {
	day := r.mix.ranges().day
	const minutes = "2006-01-02T15:04"
	due := url.Values{"from": {day.from.Time().UTC().Format(minutes)}, "until": {day.to.Time().UTC().Format(minutes)}}
	return map[string][]string{
		"tenant": {
			"", "tasks", "tasks?state=SCHEDULED", "tasks?" + due.Encode(), fmt.Sprintf("tasks/%d", id), fmt.Sprintf("tasks/%d/edit", id),
			"dead", "bulk", "bulk/new", "forecast", "schedule?expression=" + url.QueryEscape("30 6 * * MON-FRI"), "audit",
		},
		"operator": {"", "tenants", "tenants/" + largeTenant, "forecast", "cluster", "audit"},
	}
}

// console measures the pages of the console, one visitor after the other.
func (r *runner) console(ctx context.Context, tenantToken string) error {
	if r.stack.HTTP == "" {
		return fmt.Errorf("the HTTP address of the stack is not known, so the console cannot be measured: set --console=false")
	}
	page, _, err := r.large.page(ctx, &perceptorv1.ListTasksRequest{PageSize: 1})
	if err != nil || len(page.GetTasks()) == 0 {
		return fmt.Errorf("find a task of the tenant: %d tasks, %w", len(page.GetTasks()), err)
	}
	pages := r.visits(page.Tasks[0].Id)
	for _, as := range []struct{ name, token string }{{"tenant", tenantToken}, {"operator", r.stack.AdminToken()}} {
		v, err := newVisitor(ctx, r.stack, as.token)
		if err != nil {
			return err
		}
		for _, path := range pages[as.name] {
			f, err := v.measure(ctx, path, r.Pages)
			if err != nil {
				return err
			}
			f.As = as.name
			if limit := harness.Milliseconds(r.PageLimit); limit > 0 && f.P95 > limit {
				r.fault("console page %q of the %s: p95 %.1f ms, want at most %.0f", path, as.name, f.P95, limit)
			}
			r.report.Console = append(r.report.Console, f)
		}
	}
	return nil
}

// visitor is a browser with a session.
type visitor struct {
	base string
	http *http.Client
}

const visitLimit = 30 * time.Second

func newVisitor(ctx context.Context, s *stack.Stack, token string) (*visitor, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableCompression: true, TLSClientConfig: s.TLS.Clone()}
	v := &visitor{s.HTTP + "/console/", &http.Client{Jar: jar, Timeout: visitLimit, Transport: transport}}
	ctx, cancel := context.WithTimeout(ctx, visitLimit)
	defer cancel()
	form := url.Values{"token": {token}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, v.base+"login", strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	a, err := v.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK { // after the redirect to the overview
		return nil, fmt.Errorf("log in to the console: %s", a.Status)
	}
	return v, nil
}

// visit loads a page and returns its compressed size.
func (v *visitor) visit(ctx context.Context, path string) (int64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, v.base+path, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Accept-Encoding", "gzip")
	a, err := v.http.Do(r)
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	n, err := io.Copy(io.Discard, a.Body)
	if err == nil && (a.StatusCode != http.StatusOK || a.Request.URL.Path != r.URL.Path) {
		err = fmt.Errorf("%s at %s", a.Status, a.Request.URL.Path)
	}
	return n, err
}

func (v *visitor) measure(ctx context.Context, path string, visits int) (*ConsoleFigures, error) {
	f := &ConsoleFigures{Path: "/console/" + path}
	took := hdrhistogram.New(1, int64(visitLimit/time.Microsecond), 3)
	for range visits {
		began := time.Now()
		bytes, err := v.visit(ctx, path)
		if err != nil {
			return nil, fmt.Errorf("console page %q: %w", path, err)
		}
		took.RecordValue(time.Since(began).Microseconds()) //nolint:errcheck // a visit takes at most visitLimit
		f.KiB = harness.Round(float64(bytes) / 1024)
	}
	f.Ms, f.P95 = harness.QuantilesOf(took), harness.Round(float64(took.ValueAtQuantile(95))/1000)
	return f, nil
}
