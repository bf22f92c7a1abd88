package record_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// withPayload is a sample with a payload of JSON.
func withPayload(t testing.TB) task.Publication {
	t.Helper()
	p := sample(t)
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{
		Entries: map[string]string{"to": "ann"}, Payload: []byte(`{"n":1}`), ContentType: "application/json",
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Params = wire
	return p
}

func values(headers []record.Header) map[string]string {
	got := map[string]string{}
	for _, h := range headers {
		got[h.Key] = string(h.Value)
	}
	return got
}

func TestAConsumerOfCloudEventsFindsThePayloadOfAPayloadRecord(t *testing.T) {
	t.Parallel()
	p := withPayload(t)
	key, value, headers := record.EncodePayload(p, "shop")
	_, run, plain := record.Encode(p, "shop")
	got := values(headers)
	if string(key) != "3587" || string(value) != `{"n":1}` || got["content-type"] != "application/json" || got["ce_type"] != "perceptor.run.payload.v1" {
		t.Errorf("key %s, value %s, headers %q", key, value, got)
	}
	if strings.Contains(got["perceptor_run"], `{"n":1}`) {
		t.Error("the payload is there twice")
	}
	delete(got, "perceptor_run")
	want := values(plain)
	want["content-type"], want["ce_type"] = "application/json", "perceptor.run.payload.v1"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("other headers differ (-want +got):\n%s", d)
	}
	if !bytes.Contains(run, []byte(`{"n":1}`)) {
		t.Error("a record of the other form has no payload")
	}
	p.Params = paramsWire(t, map[string]string{"to": "ann"})
	_, value, headers = record.EncodePayload(p, "shop")
	_, same, _ := record.Encode(p, "shop")
	if !bytes.Equal(value, same) || values(headers)["ce_type"] != record.EventType {
		t.Error("the record of a task without a payload has changed")
	}
}

func TestBothFormsOfARecordAreReadAlike(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		want := drawPublication(r, t)
		_, value, headers := record.EncodePayload(want, "shop")
		got, err := record.Read(value, headers)
		if err != nil {
			r.Fatal(err)
		}
		if len(want.Params) == 0 {
			want.Params = nil
		}
		if d := cmp.Diff(want, got); d != "" {
			r.Fatal(d)
		}
	})
}

func TestTheSignatureCoversThePayloadInBothForms(t *testing.T) {
	t.Parallel()
	for name, encode := range map[string]func(task.Publication, string) ([]byte, []byte, []record.Header){"run": record.Encode, "payload": record.EncodePayload} {
		_, value, headers := encode(withPayload(t), "shop")
		headers = signKey.Signer().Sign(value, headers)
		s := signKey.Signer()
		if err := s.Verify(record.EventType, value, headers); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := s.Verify(record.DeadEventType, value, headers); !errors.Is(err, record.ErrOtherType) {
			t.Errorf("%s: as a dead run: %v", name, err)
		}
		tampered := bytes.Replace(value, []byte(`"n":1`), []byte(`"n":2`), 1)
		if err := s.Verify(record.EventType, tampered, headers); !errors.Is(err, record.ErrForged) {
			t.Errorf("%s: another payload: %v", name, err)
		}
		for i, h := range headers {
			if name == "run" || h.Key != record.HeaderRun && h.Key != record.HeaderContentType && h.Key != record.HeaderType {
				continue
			}
			changed := slices.Clone(headers)
			changed[i].Value = append(bytes.Clone(h.Value), 'x')
			if err := s.Verify(record.EventType, value, changed); !errors.Is(err, record.ErrForged) {
				t.Errorf("another %s: %v", h.Key, err)
			}
			if err := s.Verify(record.EventType, value, append(slices.Clone(headers), h)); !errors.Is(err, record.ErrForged) {
				t.Errorf("%s twice: %v", h.Key, err)
			}
			if err := s.Verify(record.EventType, value, slices.Delete(slices.Clone(headers), i, i+1)); !errors.Is(err, record.ErrForged) {
				t.Errorf("no %s: %v", h.Key, err)
			}
		}
	}
}

func TestADeadRunHasItsPayloadInBothForms(t *testing.T) {
	t.Parallel()
	d := &task.DeadLetter{
		DeadRun: task.DeadRun{RunID: task.RunID{Task: 1024, Seq: 3}, Kind: "mail", Reason: task.OutOfAttempts, Error: "full", DiedAt: 12, Type: task.OneShot},
		Terms:   task.Terms{AckTimeout: 1e9}, Params: withPayload(t).Params,
	}
	for name, encode := range map[string]func(*task.DeadLetter, string) ([]byte, []byte, []record.Header){"perceptor.dead.v1": record.EncodeDead, "perceptor.dead.payload.v1": record.EncodeDeadPayload} {
		_, value, headers := encode(d, "shop")
		headers = signKey.Signer().Sign(value, headers)
		if err := signKey.Signer().Verify(record.DeadEventType, value, headers); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p, err := record.Read(value, headers)
		if err != nil || !bytes.Equal(p.Params, d.Params) {
			t.Errorf("%s: %q, %v", name, p.Params, err)
		}
		if got := values(headers); got["ce_type"] != name || got["perceptor_reason"] != "OUT_OF_ATTEMPTS" {
			t.Errorf("%s: headers %q", name, got)
		}
	}
}

func TestPayloadRecordsThatNobodyWritesAreRefused(t *testing.T) {
	t.Parallel()
	_, value, headers := record.EncodePayload(withPayload(t), "shop")
	with := func(key, value string) []record.Header {
		changed := slices.Clone(headers)
		for i := range changed {
			if changed[i].Key == key {
				changed[i].Value = []byte(value)
			}
		}
		return changed
	}
	_, whole, _ := record.Encode(withPayload(t), "shop")
	without := slices.DeleteFunc(slices.Clone(headers), func(h record.Header) bool { return h.Key == record.HeaderRun })
	for name, c := range map[string]struct {
		value   []byte
		headers []record.Header
		want    string
	}{
		"no run":              {value, without, "header perceptor_run is there 0 times"},
		"no payload":          {nil, headers, "must have its payload in its value only"},
		"two payloads":        {value, with(record.HeaderRun, string(whole)), "must have its payload in its value only"},
		"a run that is none":  {value, with(record.HeaderRun, "{}"), "header perceptor_run: record: "},
		"a bad content type":  {value, with(record.HeaderContentType, "none"), "content_type"},
		"more than is stored": {make([]byte, task.MaxParamsBytes), headers, "at most 262144"},
	} {
		if _, err := record.Read(c.value, c.headers); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestAListenerFromBeforePayloadsReadsTheParams reads a record by record.proto without the
// fields of payloads.
func TestAListenerFromBeforePayloadsReadsTheParams(t *testing.T) {
	t.Parallel()
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(compiled, &set); err != nil {
		t.Fatal(err)
	}
	var older protoreflect.MessageDescriptor
	resolver := foreign(t).ParentFile()
	for _, f := range set.GetFile() {
		if f.GetName() != resolver.Path() {
			continue
		}
		for _, m := range f.GetMessageType() {
			if m.GetName() == "Params" {
				m.Field = m.GetField()[:1]
			}
		}
		file, err := protodesc.NewFile(f, protoregistry.GlobalFiles)
		if err != nil {
			t.Fatal(err)
		}
		older = file.Messages().ByName("RunRecord")
	}
	_, value, _ := record.Encode(withPayload(t), "shop")
	read := dynamicpb.NewMessage(older)
	if err := proto.Unmarshal(value, read); err != nil {
		t.Fatal(err)
	}
	params := read.Get(older.Fields().ByName("params")).Message()
	entries := params.Get(params.Descriptor().Fields().ByName("entries")).Map()
	if to := entries.Get(protoreflect.ValueOfString("to").MapKey()); entries.Len() != 1 || to.String() != "ann" {
		t.Errorf("it reads %v", params)
	}
	if read.Get(older.Fields().ByName("kind")).String() != "quality-check" {
		t.Errorf("it reads %v", read)
	}
}

func FuzzRead(f *testing.F) {
	_, value, headers := record.EncodePayload(withPayload(f), "shop")
	got := values(headers)
	f.Add(value, got["content-type"], []byte(got["perceptor_run"]))
	f.Add([]byte{}, "", []byte{})
	f.Fuzz(func(t *testing.T, value []byte, contentType string, run []byte) {
		p, err := record.Read(value, []record.Header{
			{Key: record.HeaderType, Value: []byte(record.PayloadEventType)}, {Key: record.HeaderContentType, Value: []byte(contentType)},
			{Key: record.HeaderRun, Value: run},
		})
		if err != nil {
			return
		}
		_, payload, err := record.Params(p.Params)
		if err != nil || payload == nil || !bytes.Equal(payload.Data, value) {
			t.Fatalf("Read accepted what Params reads as %v, %v", payload, err)
		}
		_, again, headers := record.EncodePayload(p, "shop")
		if q, err := record.Read(again, headers); err != nil || q.Task != p.Task || !bytes.Equal(again, value) {
			t.Fatalf("Read rejects the encoding of its own result: %v", err)
		}
	})
}
