package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/perceptor/perceptor/client"
)

// count is the payload of the tasks here.
type count struct {
	N int `json:"n"`
}

// TestAPayloadGoesThroughTheWholeInstallation follows payloads from their add over HTTP to
// handlers that change them, a dead run and its replay, in both forms of records.
func TestAPayloadGoesThroughTheWholeInstallation(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	o := ephemeral(t, &output{})
	at, _ := running(t, o)
	c := dial(t, at)
	l, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	sad := errors.New("sad")
	seen := make(chan string, 100)
	l.Handle("count", client.TypedJSON(func(_ context.Context, r *client.Run, p count) error {
		seen <- fmt.Sprintf("%d by %s, replay %q", p.N, r.Params["by"], r.ReplayOf)
		if p.N == 2 && r.ReplayOf == "" {
			return client.Permanent(sad)
		}
		return r.SetJSON(count{p.N + 1})
	}))
	l.Handle("tapped", func(context.Context, *client.Run) error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != want {
				t.Errorf("the handler saw %s, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the handler did not see %s", want)
		}
	}
	for _, by := range []string{"run", "payload"} {
		t.Run(by, func(t *testing.T) {
			if by == "payload" {
				call(t, at.HTTP, at.Admin, http.MethodPost, "/v1/admin/tenants/demo:update", `{"tenant":{"payloadRecords":true},"updateMask":"payloadRecords"}`)
				awaitPayloadRecord(t, c, at)
			}
			answer := call(t, at.HTTP, at.Token, http.MethodPost, "/v1/tasks",
				`{"kind":"count","type":"BLOCKING","interval":"0.1s","maxCount":2,"retention":"3600s","params":{"by":"`+by+`"},"payload":{"json":{"n":1}}}`)
			var id int64
			if _, err := fmt.Sscanf(strings.ReplaceAll(answer, " ", ""), `{"id":"%d"`, &id); err != nil {
				t.Fatalf("%v in %s", err, answer)
			}
			expect(fmt.Sprintf(`1 by %s, replay ""`, by))
			expect(fmt.Sprintf(`2 by %s, replay ""`, by))
			info := ended(t, c, id)
			var kept count
			if err := info.Payload.Decode(&kept); err != nil || kept.N != 2 {
				t.Errorf("the task has %+v, %v", info.Payload, err)
			}
			dead := client.RunID(id, 2)
			d, err := c.GetDeadRun(t.Context(), dead)
			if err != nil || string(d.Payload.Data) != `{"n":2}` {
				t.Fatalf("the dead run is %+v, %v", d, err)
			}
			if shown := call(t, at.HTTP, at.Token, http.MethodGet, "/v1/deadRuns/"+dead, ""); !strings.Contains(strings.ReplaceAll(shown, " ", ""), `"json":{"n":2}`) {
				t.Errorf("over HTTP the dead run is %s", shown)
			}
			if _, err := c.ReplayDeadRun(t.Context(), dead); err != nil {
				t.Fatal(err)
			}
			expect(fmt.Sprintf(`2 by %s, replay "%s"`, by, dead))
		})
	}
}

// call calls the API over HTTP and returns the body of the answer.
func call(t *testing.T, address, token, method, path, body string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s, %v", method, path, answer.Status, text, err)
	}
	return string(text)
}

// awaitPayloadRecord adds tasks until one of their records is a payload record, as a consumer
// of CloudEvents sees it: dispatchers learn of the setting within seconds.
func awaitPayloadRecord(t *testing.T, c *client.Client, at Info) {
	t.Helper()
	var tenant struct{ Topic string }
	if err := json.Unmarshal([]byte(call(t, at.HTTP, at.Admin, http.MethodGet, "/v1/admin/tenants/demo", "")), &tenant); err != nil {
		t.Fatal(err)
	}
	tap, err := kgo.NewClient(kgo.SeedBrokers(at.Kafka), kgo.ConsumeTopics(tenant.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if _, err := c.AddTask(t.Context(), client.Task{Kind: "tapped", Type: client.OneShot, Payload: client.MustJSON(count{7})}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		for _, r := range tap.PollFetches(ctx).Records() {
			headers := map[string]string{}
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			if headers["ce_type"] == "perceptor.run.payload.v1" {
				cancel()
				if headers["content-type"] != "application/json" || headers["ce_id"] == "" || string(r.Value) != `{"n":7}` {
					t.Errorf("the event is %q with the data %s", headers, r.Value)
				}
				return
			}
		}
		cancel()
	}
	t.Fatal("no payload record came within a minute")
}
