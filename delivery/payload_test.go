package delivery

import (
	"context"
	"testing"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// payloadTenants are tenants with payload records.
type payloadTenants struct{ names }

func (p payloadTenants) Tenant(ctx context.Context, id int32) (Tenant, error) {
	t, err := p.names.Tenant(ctx, id)
	t.PayloadRecords = true
	return t, err
}

func TestATenantGetsPayloadRecordsIfItWantsThem(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants)
	topics, err := NewTopics(Config{Brokers: c.ListenAddrs()}, TopicConfig{Replication: 1})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := NewDeadLetters(Config{Brokers: c.ListenAddrs()}, topics, payloadTenants{tenants})
	if err != nil {
		t.Fatal(err)
	}
	pubs := deliveries(1, 2, 10)
	pubs[0].Params = append(pubs[0].Params, 0x12, 2, '{', '}', 0x1a, 7, 't', 'e', 'x', 't', '/', 'x', 'x')
	publishAll(t, publisher(t, c.ListenAddrs(), payloadTenants{tenants}, nil), pubs)
	d := &task.DeadLetter{DeadRun: task.DeadRun{Tenant: 1, Type: task.OneShot, RunID: pubs[0].RunID(), Kind: "mail"}, Params: pubs[0].Params}
	if done, err := dead.Publish(t.Context(), []*task.DeadLetter{d}); err != nil || len(done) != 1 {
		t.Fatal(done, err)
	}
	want := map[string]string{"perceptor.run.payload.v1": "{}", "perceptor.dead.payload.v1": "{}", "perceptor.run.v1": ""}
	for _, r := range stored(t, c.ListenAddrs(), 3, tenants[1], tenants[1]+DeadSuffix) {
		headers := map[string]string{}
		var all []record.Header
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
			all = append(all, record.Header(h))
		}
		kind := headers["ce_type"]
		value, known := want[kind]
		delete(want, kind)
		switch {
		case !known:
			t.Errorf("a record has the type %q", kind)
		case value == "" && headers["content-type"] != record.ContentType:
			t.Errorf("the record of a task without a payload has the headers %q", headers)
		case value != "" && (string(r.Value) != value || headers["content-type"] != "text/xx"):
			t.Errorf("%s has the value %q and the headers %q", kind, r.Value, headers)
		}
		event := record.EventType
		if kind == record.DeadPayloadEventType {
			event = record.DeadEventType
		}
		if err := testKey.Signer().Verify(event, r.Value, all); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if len(want) > 0 {
		t.Errorf("there is no record of the types %v", want)
	}
}
