package virtualtest

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// example is a call that docs/record-format.md shows: a block that has a request line,
// a body, an empty line, and the answer.
type example struct {
	line, body, answer string
}

// examples returns all examples of the page, in order.
func examples(t *testing.T) []example {
	t.Helper()
	page, err := os.ReadFile("../../docs/record-format.md")
	if err != nil {
		t.Fatal(err)
	}
	var list []example
	for _, block := range regexp.MustCompile("(?s)```http\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		request, answer, ok := strings.Cut(block[1], "\n\n")
		if !ok {
			t.Fatalf("this example has no answer:\n%s", block[1])
		}
		line, body, _ := strings.Cut(request, "\n")
		list = append(list, example{line, body, answer})
	}
	return list
}

// pageTasks adds the tasks of the examples and returns their ids by those on the page.
// The run of each one is on the topic when it returns.
func pageTasks(t *testing.T, tenant *Tenant) map[string]int64 {
	t.Helper()
	ids := map[string]int64{}
	for id, what := range map[string]client.Task{
		"3587": {Kind: "mail", Type: client.Blocking, Interval: time.Hour, AckTimeout: time.Minute, Params: map[string]string{"to": "ann", "draft": "x"}},
		"4099": {Kind: "mail", Type: client.NonBlocking, Interval: time.Hour, Retention: day},
		"4611": {Kind: "mail", Type: client.OneShot, Retention: client.NoRetention},
		"5123": {Kind: "unknown", Type: client.OneShot},
	} {
		ids[id] = tenant.Add(t, what)
	}
	return ids
}

// call sends a request as a program that knows only the page.
func call(t *testing.T, at string, tenant *Tenant, line, body string) []byte {
	t.Helper()
	verb, path, _ := strings.Cut(line, " ")
	q, err := http.NewRequestWithContext(t.Context(), verb, "http://"+at+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+tenant.Token)
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v\n%s", line, answer.Status, err, text)
	}
	return text
}

func decoded(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// published reads the records of n runs from the topic that the service names.
func published(t *testing.T, delivery []byte, n int) map[int64]task.Publication {
	t.Helper()
	var at struct {
		Topic      string
		Brokers    []string
		RecordKeys []struct {
			ID     int
			Secret []byte
		}
	}
	if err := json.Unmarshal(delivery, &at); err != nil {
		t.Fatal(err)
	}
	conn, err := kafka.Dial("tcp", at.Brokers[0])
	if err != nil {
		t.Fatal(err)
	}
	partitions, err := conn.ReadPartitions(at.Topic)
	if err != nil || conn.Close() != nil {
		t.Fatal(err)
	}
	found := map[int64]task.Publication{}
	records := make(chan kafka.Message)
	for _, p := range partitions {
		r := kafka.NewReader(kafka.ReaderConfig{Brokers: at.Brokers, Topic: at.Topic, Partition: p.ID, MaxWait: 100 * time.Millisecond})
		go func() {
			for {
				m, err := r.ReadMessage(t.Context())
				if err != nil {
					return
				}
				select {
				case records <- m:
				case <-t.Context().Done():
				}
			}
		}()
		t.Cleanup(func() { _ = r.Close() })
	}
	for deadline := time.After(patience); len(found) < n; {
		select {
		case m := <-records:
			p, err := record.Decode(m.Value)
			if err != nil {
				t.Fatal(err)
			}
			if len(at.RecordKeys) != 1 || at.RecordKeys[0].ID != 1 || !genuine(&m, at.RecordKeys[0].Secret) {
				t.Fatalf("record of task %d is not signed with one of the keys %v", p.Task, at.RecordKeys)
			}
			found[int64(p.Task)] = p
		case <-deadline:
			t.Fatalf("%d of %d runs were published within %s", len(found), n, patience)
		}
	}
	return found
}

// genuine verifies the signature of a run's record as the page says.
func genuine(m *kafka.Message, secret []byte) bool {
	headers := map[string][]byte{}
	for _, h := range m.Headers {
		headers[h.Key] = h.Value
	}
	mac := hmac.New(sha256.New, secret)
	for _, name := range []string{"ce_type", "perceptor_reason", "perceptor_error", "perceptor_died_at"} {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(headers[name]))))
		mac.Write(headers[name])
	}
	mac.Write(m.Value)
	return string(headers["perceptor_key_id"]) == "1" && hmac.Equal(headers["perceptor_signature"], mac.Sum(nil))
}

func TestTheExamplesOfTheRecordFormatPageAreAnsweredAsShown(t *testing.T) {
	s := Start(t, Options{})
	tenant := s.Tenant(t)
	ids := pageTasks(t, tenant)
	var steps []string
	for _, e := range examples(t) {
		steps = append(steps, e.line)
		for shown, id := range ids {
			e.body = strings.ReplaceAll(e.body, `"`+shown+`"`, fmt.Sprintf(`"%d"`, id))
		}
		got := call(t, s.HTTP, tenant, e.line, e.body)
		if e.line == "GET /v1/delivery?holdsRuns=true" {
			sameKeys(t, e.answer, got)
			for id, p := range published(t, got, len(ids)) {
				if p.Seq != 1 || p.Attempt != 1 || p.Version != 1 {
					t.Fatalf("the page shows the first attempts of new tasks; the record of %d is %+v", id, p)
				}
			}
			edit := client.Task{Params: map[string]string{"to": "bob"}}
			if _, err := tenant.UpdateTask(t.Context(), ids["3587"], edit, client.UpdateOptions{Fields: []string{"params"}}); err != nil {
				t.Fatal(err)
			}
			if _, err := tenant.CancelTask(t.Context(), ids["4611"]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(decoded(t, []byte(e.answer)), decoded(t, got)); diff != "" {
			t.Errorf("%s\n%s\n(-page +server)\n%s", e.line, e.body, diff)
		}
	}
	if _, err := tenant.CancelTask(t.Context(), ids["4099"]); err != nil {
		t.Fatal(err)
	}
	got := call(t, s.HTTP, tenant, "POST /v1/runs:check", fmt.Sprintf(`{"attempts": [{"taskId": "%d", "seq": "1", "attempt": 1}]}`, ids["4099"]))
	if diff := cmp.Diff(decoded(t, []byte(`{"replies": [{"code": "RUN_CODE_FINISHED"}]}`)), decoded(t, got)); diff != "" {
		t.Errorf("a run of a task that was cancelled and is kept (-page +server)\n%s", diff)
	}
	want := []string{
		"GET /v1/delivery?holdsRuns=true", "POST /v1/runs:start", "POST /v1/runs:check", "POST /v1/runs:heartbeat", "POST /v1/runs:report",
		"POST /v1/runs:report", "POST /v1/runs:handBack",
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("calls on the page (-want +got):\n%s", diff)
	}
}

// sameKeys compares an answer whose values differ in each installation.
func sameKeys(t *testing.T, page string, got []byte) {
	t.Helper()
	keys := func(text []byte) map[string]string {
		var m map[string]any
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		types := map[string]string{}
		for k, v := range m {
			types[k] = fmt.Sprintf("%T", v)
		}
		return types
	}
	if diff := cmp.Diff(keys([]byte(page)), keys(bytes.TrimSpace(got))); diff != "" {
		t.Errorf("(-page +server)\n%s", diff)
	}
}
