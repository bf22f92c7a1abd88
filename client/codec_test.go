package client

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func aesOf(t testing.TB, current string, names ...string) Codec {
	t.Helper()
	cfg := AESConfig{Keys: map[string][]byte{}, Current: current}
	for _, name := range names {
		cfg.Keys[name] = bytes.Repeat([]byte(name[:1]), 32)
	}
	c, err := NewAESCodec(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAnEncryptedValueIsReadOnlyWithItsKeyAndUnderItsName(t *testing.T) {
	t.Parallel()
	c := aesOf(t, "a", "a", "b")
	rapid.Check(t, func(r *rapid.T) {
		key, value := rapid.String().Draw(r, "key"), rapid.String().Draw(r, "value")
		stored, err := c.Encode(key, value)
		if err != nil {
			r.Fatal(err)
		}
		if again, _ := c.Encode(key, value); again != stored {
			r.Fatalf("%q and %q are stored for one value: a repeated add would not be recognised", stored, again)
		}
		if got, err := c.Decode(key, stored); got != value || err != nil {
			r.Fatalf("Decode = %q, %v", got, err)
		}
		if len(value) > 8 && strings.Contains(stored, value) {
			r.Fatalf("%q shows the value", stored)
		}
		if _, err := c.Decode(key+"x", stored); !errors.Is(err, errDamaged) {
			r.Fatalf("under another key of the params: %v", err)
		}
		damaged := []byte(stored)
		damaged[len(damaged)-2] ^= 1
		if _, err := c.Decode(key, string(damaged)); !errors.Is(err, errDamaged) {
			r.Fatalf("damaged: %v", err)
		}
	})
	stored, _ := c.Encode("k", "v")
	if got, err := aesOf(t, "b", "a", "b").Decode("k", stored); got != "v" || err != nil {
		t.Errorf("after the key was replaced: %q, %v", got, err)
	}
	if _, err := aesOf(t, "b", "b").Decode("k", stored); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("without its key: %v, want the name of the key", err)
	}
	for _, plain := range []string{"v", "aes1.", "aes1.a.", "aes1.a.!", "aes1.a.AAAA"} {
		if got, err := c.Decode("k", plain); err == nil {
			t.Errorf("%q was decoded to %q", plain, got)
		}
	}
}

func TestKeysOfACodecAreChecked(t *testing.T) {
	t.Parallel()
	good := bytes.Repeat([]byte("k"), 32)
	for name, cfg := range map[string]AESConfig{
		"none": {}, "no current": {Keys: map[string][]byte{"a": good}, Current: "b"}, "short": {Keys: map[string][]byte{"a": good[1:]}, Current: "a"},
		"a dot in the name": {Keys: map[string][]byte{"a.b": good}, Current: "a.b"},
	} {
		if _, err := NewAESCodec(cfg); err == nil || strings.Contains(err.Error(), "kkkk") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := NewAESCodec(AESConfig{Keys: map[string][]byte{"a": good}, Current: "a", AcceptPlain: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Decode("k", "v"); got != "v" || err != nil {
		t.Errorf("a value from before the codec: %q, %v", got, err)
	}
}

// TestTheServiceSeesOnlyCiphertext follows the params of a task from its add to the handler
// and back.
func TestTheServiceSeesOnlyCiphertext(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	codec := aesOf(t, "a", "a")
	b.client = b.newClient(Config{Codec: codec})
	const secret = "a very private value"
	plain := map[string]string{"to": secret}
	if _, err := b.client.AddTask(t.Context(), Task{Kind: "mail", Type: OneShot, Params: plain}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.AddTasks(t.Context(), []Task{{Kind: "mail", Type: OneShot, Params: plain}}); err != nil {
		t.Fatal(err)
	}
	stored, err := codec.Encode("to", secret)
	if err != nil {
		t.Fatal(err)
	}
	b.svc.with(func() {
		for _, q := range b.svc.adds {
			for _, added := range q.GetTasks() {
				if !maps.Equal(added.GetParams(), map[string]string{"to": stored}) {
					t.Errorf("the service got the params %q", added.GetParams())
				}
			}
		}
		if len(b.svc.adds) != 2 {
			t.Errorf("%d adds, want 2", len(b.svc.adds))
		}
	})
	if plain["to"] != secret {
		t.Errorf("the caller's params are changed to %q", plain)
	}

	var calls atomic.Int32
	b.listen(ListenerConfig{}, map[string]Handler{"mail": func(_ context.Context, r *Run) error {
		calls.Add(1)
		if !maps.Equal(r.Params, plain) {
			t.Errorf("the handler got %q", r.Params)
		}
		r.SetParam("to", secret+secret)
		return nil
	}})
	b.publish(newRunOf(1, task.OneShot, "mail", map[string]string{"to": stored}))
	b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
	b.publish(newRunOf(2, task.OneShot, "mail", map[string]string{"to": "in the clear"}))
	b.svc.await(t, "2 results", func() bool { return len(b.svc.results) == 2 })
	b.svc.with(func() {
		changed, _ := codec.Encode("to", secret+secret)
		if got := b.svc.results[0].GetParamsPatch().GetSet(); !maps.Equal(got, map[string]string{"to": changed}) {
			t.Errorf("the handler's change is reported as %q", got)
		}
		if r := b.svc.results[1]; r.GetError() == "" || strings.Contains(r.GetError(), "in the clear") {
			t.Errorf("a value that is not encrypted is answered with %v, want an error that does not quote it", r)
		}
	})
	if n := calls.Load(); n != 1 {
		t.Errorf("the handler was called %d times, want once: not with a value that could not be decoded", n)
	}
}

// brokenCodec panics on what it reads and writes, once it is broken.
type brokenCodec struct {
	Codec
	reads, writes bool
}

func (c brokenCodec) Decode(key, stored string) (string, error) {
	if c.reads {
		panic("cannot read")
	}
	return stored, nil
}

func (c brokenCodec) Encode(key, value string) (string, error) {
	if c.writes {
		panic("cannot write")
	}
	return value, nil
}

func TestACodecThatPanicsFailsTheRunAndNotTheProgram(t *testing.T) {
	t.Parallel()
	for want, codec := range map[string]brokenCodec{"cannot read": {reads: true}, "cannot write": {writes: true}} {
		b := setup(t, 1)
		b.client = b.newClient(Config{Codec: codec})
		b.listen(ListenerConfig{}, map[string]Handler{"mail": func(_ context.Context, r *Run) error { r.SetParam("to", "eve"); return nil }})
		b.publish(newRunOf(1, task.OneShot, "mail", map[string]string{"to": "bob"}))
		b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
		if r := b.svc.results[0]; r.GetOutcome() != perceptorv1.RunResult_FAIL || !strings.Contains(r.GetError(), want) {
			t.Errorf("reported %v, want FAIL with %q", r, want)
		}
	}
}

func TestWhatAStuckHandlerHasSetIsEncrypted(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	codec := aesOf(t, "a", "a")
	b.client = b.newClient(Config{Codec: codec})
	l, release := b.listener(ListenerConfig{}), make(chan struct{})
	l.Handle("deaf", func(_ context.Context, r *Run) error {
		r.SetParam("card", "very private")
		r.SetPayload(&Payload{Data: []byte("very private, too")})
		<-release
		return nil
	}, MaxDuration(10*time.Millisecond))
	b.start(l)
	t.Cleanup(func() { close(release) })
	b.publish(newRunOf(1, task.OneShot, "deaf", nil))
	b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
	patch := b.svc.results[0].GetParamsPatch()
	card, err := codec.Decode("card", patch.GetSet()["card"])
	payload, err2 := codec.DecodePayload(*payloadOf(patch.GetPayload()))
	if err != nil || err2 != nil || card != "very private" || string(payload.Data) != "very private, too" {
		t.Errorf("the service got %v; decoded: %q, %v, %q, %v", patch, card, err, payload.Data, err2)
	}
}
