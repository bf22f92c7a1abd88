package dev

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/testenv"
)

// tellWithin is what operators are promised, and half a minute more for a machine that stands still or is slow for a while.
const tellWithin = 10*time.Second + 30*time.Second

// until waits until a condition holds, longer on a busy machine.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	begun, within := time.Now(), tellWithin
	for !holds() {
		if time.Since(begun) > within {
			if within = max(within, testenv.Within(tellWithin)); time.Since(begun) > within {
				t.Fatalf("%s: not within %s", what, within)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%s: after %s", what, time.Since(begun).Round(100*time.Millisecond))
}

// metrics returns what the process serves.
func metrics(t *testing.T, at Info) string {
	t.Helper()
	res, err := http.Get("http://" + at.Ops + "/metrics") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A tenant that nobody has heard of adds a task and has no listener; then its listener has no
// handler for the kind. explain, the figures that the console shows, the metrics and the findings
// say so within 10 s each.
func TestMissingListenersAndHandlersAreToldWithinTenSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	o := ephemeral(t, &output{})
	at, _ := running(t, o)
	c := dial(t, at)
	id, err := c.AddTask(t.Context(), client.Task{Kind: "fax", Type: client.OneShot})
	if err != nil {
		t.Fatal(err)
	}
	explained := func(code string) func() bool {
		return func() bool {
			e, err := c.ExplainTask(t.Context(), id, 0)
			return err == nil && slices.ContainsFunc(e.Reasons, func(r client.Reason) bool { return r.Code == code })
		}
	}
	found := func(text string) func() bool {
		return func() bool { return strings.Contains(get(t, at, "/v1/admin/cluster"), text) }
	}
	measured := func(series string) func() bool {
		return func() bool { return regexp.MustCompile("(?m)^" + series + "$").MatchString(metrics(t, at)) }
	}
	until(t, "explain: no listener", explained("NO_LISTENER"))
	until(t, "metrics: no listener", measured(`perceptor_tenants_without_listener 1`))
	until(t, "findings: no listener", found("no listener: demo"))
	callsOf(t, at) // its kind is "k"
	until(t, "explain: no handler", explained("NO_HANDLER"))
	until(t, "metrics: a listener", measured(`perceptor_listeners{tenant="demo"} 1`))
	until(t, "metrics: no handler", measured(`perceptor_runs_unhandled_total{tenant="demo"} [1-9]\d*`))
	until(t, "findings: no handler", found("demo: fax"))
	until(t, "explain: a listener", func() bool { return !explained("NO_LISTENER")() })
	until(t, "metrics: stored tasks", measured(`perceptor_tasks{state="RUNNING",tenant="demo",type="ONE_SHOT"} 1`))
}

// get makes a call of the API with the admin token and returns the text of the answer.
func get(t *testing.T, at Info, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at.HTTP+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+at.Admin)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(fmt.Errorf("%s: %s %s %w", path, res.Status, text, err))
	}
	return string(text)
}
