package client

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

type order struct {
	ID int64 `json:"id"`
}

func TestAPayloadIsDecodedIfItIsJSON(t *testing.T) {
	t.Parallel()
	var got order
	if err := MustJSON(order{1 << 60}).Decode(&got); err != nil || got.ID != 1<<60 {
		t.Errorf("%+v, %v", got, err)
	}
	for want, p := range map[string]*Payload{
		"has no payload":                  nil,
		`is "text/plain" and not JSON`:    {Data: []byte("{}"), ContentType: "text/plain"},
		"unexpected end of JSON input":    {Data: []byte("{"), ContentType: "application/json"},
		"cannot unmarshal string into Go": {Data: []byte(`{"id":"x"}`), ContentType: "application/json"},
	} {
		if err := (&Run{Payload: p}).Decode(&got); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := JSON(func() {}); err == nil {
		t.Error("a function became JSON")
	}
	handler := TypedJSON(func(_ context.Context, _ *Run, o order) error { got = o; return nil })
	if o := Execute(t.Context(), handler, &Run{Payload: MustJSON(order{7})}); o.Status != Success || got.ID != 7 {
		t.Errorf("%+v, decoded %+v", o, got)
	}
	if o := Execute(t.Context(), handler, &Run{}); o.Status != Failure || !o.Permanent {
		t.Errorf("without a payload: %+v", o)
	}
}

func TestAnEncryptedPayloadIsReadOnlyWithItsKey(t *testing.T) {
	t.Parallel()
	c := aesOf(t, "a", "a", "b")
	rapid.Check(t, func(r *rapid.T) {
		p := Payload{Data: rapid.SliceOf(rapid.Byte()).Draw(r, "data"), ContentType: rapid.StringMatching(`[a-z]{1,5}/[a-z]{1,200}`).Draw(r, "type")}
		stored, err := c.EncodePayload(p)
		if err != nil {
			r.Fatal(err)
		}
		if again, _ := c.EncodePayload(p); !bytes.Equal(again.Data, stored.Data) {
			r.Fatal("the same payload has another stored form: a repeated add would not be recognised")
		}
		if len(p.Data) > 8 && bytes.Contains(stored.Data, p.Data) || stored.ContentType != EncryptedContentType {
			r.Fatalf("%q shows the payload", stored)
		}
		if got, err := c.DecodePayload(stored); err != nil || !bytes.Equal(got.Data, p.Data) || got.ContentType != p.ContentType {
			r.Fatalf("DecodePayload = %q, %v", got, err)
		}
		damaged := Payload{Data: bytes.Clone(stored.Data), ContentType: stored.ContentType}
		damaged.Data[rapid.IntRange(len("aes1.a."), len(damaged.Data)-1).Draw(r, "at")] ^= 1
		if _, err := c.DecodePayload(damaged); !errors.Is(err, errDamaged) {
			r.Fatalf("damaged: %v", err)
		}
	})
	stored, _ := c.EncodePayload(*MustJSON(order{1}))
	if _, err := aesOf(t, "b", "b").DecodePayload(stored); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("without its key: %v, want the name of the key", err)
	}
	plain := *MustJSON(order{1})
	if _, err := c.DecodePayload(plain); !errors.Is(err, errPlain) {
		t.Errorf("in the clear: %v", err)
	}
	lenient, err := NewAESCodec(AESConfig{Keys: map[string][]byte{"a": bytes.Repeat([]byte("a"), 32)}, Current: "a", AcceptPlain: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := lenient.DecodePayload(plain); err != nil || !cmp.Equal(got, plain) {
		t.Errorf("from before the codec: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "aes1.", "aes1.a", "aes1.a.", "aes1.a.short"} {
		if got, err := c.DecodePayload(Payload{Data: []byte(bad), ContentType: EncryptedContentType}); err == nil {
			t.Errorf("%q was decoded to %q", bad, got)
		}
	}
}

// runWithPayload returns a run whose task has a payload.
func runWithPayload(t testing.TB, number int64, p *Payload) task.Publication {
	t.Helper()
	pub := newRunOf(number, task.OneShot, "order", nil)
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Payload: p.Data, ContentType: p.ContentType})
	if err != nil {
		t.Fatal(err)
	}
	pub.Params = wire
	return pub
}

// TestAPayloadReachesItsHandlerInBothFormsOfRecords also follows what the handler makes of it.
func TestAPayloadReachesItsHandlerInBothFormsOfRecords(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	codec := aesOf(t, "a", "a")
	b.client = b.newClient(Config{Codec: codec})
	want := MustJSON(order{42})
	stored, err := codec.EncodePayload(*want)
	if err != nil {
		t.Fatal(err)
	}
	b.listen(ListenerConfig{}, map[string]Handler{"order": func(_ context.Context, r *Run) error {
		if !cmp.Equal(r.Payload, want) {
			t.Errorf("the handler got %q", r.Payload)
		}
		if r.TaskID == int64(task.NewID(1, 1)) {
			return r.SetJSON(order{43})
		}
		r.SetPayload(want)
		r.SetPayload(nil)
		return nil
	}})
	plain := runWithPayload(t, 1, &stored)
	b.publish(plain)
	b.svc.await(t, "the result", func() bool { return len(b.svc.results) == 1 })
	second := runWithPayload(t, 2, &stored)
	b.svc.with(func() { b.svc.runs[second.RunID()] = newRefRun(second.Type, 5) })
	k, value, headers := record.EncodePayload(second, "shop")
	m := kafka.Message{Key: k, Value: value}
	for _, h := range testKey.Signer().Sign(value, headers) {
		m.Headers = append(m.Headers, kafka.Header(h))
	}
	b.write(m)
	b.svc.await(t, "the second result", func() bool { return len(b.svc.results) == 2 })
	changed, _ := codec.EncodePayload(*MustJSON(order{43}))
	b.svc.with(func() {
		for i, want := range []*perceptorv1.ParamsPatch{
			{Payload: &perceptorv1.Payload{Data: changed.Data, ContentType: changed.ContentType}}, {RemovePayload: true},
		} {
			r := b.svc.results[i]
			if diff := cmp.Diff(want, r.GetParamsPatch(), protocmp.Transform()); diff != "" || r.GetError() != "" {
				t.Errorf("result %d: %q (-want +got)\n%s", i, r.GetError(), diff)
			}
		}
	})
}

func TestATaskIsSentAndReadWithItsPayload(t *testing.T) {
	t.Parallel()
	want := Task{Kind: "k", Type: OneShot, Payload: &Payload{Data: []byte{0, 1}, ContentType: "application/x"}}
	if got := TaskInfoOf(want.proto()).Task; !cmp.Equal(want, got) {
		t.Error(cmp.Diff(want, got))
	}
	if got := TaskInfoOf((&Task{Kind: "k"}).proto()).Task; got.Payload != nil {
		t.Errorf("no payload became %v", got.Payload)
	}
	bad := Task{Kind: "k", Payload: &Payload{Data: []byte("x"), ContentType: "\xff"}}
	if f := bad.fault(); f == nil || f.Field != "payload.content_type" {
		t.Errorf("a content type that is no text: %+v", f)
	}
}
