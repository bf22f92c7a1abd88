package record_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

var signKey = record.NewKey(3, []byte("0123456789abcdef0123456789abcdef"))

// signedSample returns a signed record of a run.
func signedSample(t testing.TB) (value []byte, headers []record.Header) {
	_, value, headers = record.Encode(sample(t), "shop")
	return value, signKey.Signer().Sign(value, headers)
}

// signedDead returns a signed record of a dead run.
func signedDead(t testing.TB) (value []byte, headers []record.Header) {
	t.Helper()
	d := &task.DeadLetter{DeadRun: task.DeadRun{RunID: task.RunID{Task: 1024, Seq: 3}, Kind: "mail", Reason: task.OutOfAttempts, Error: "full", DiedAt: 12}}
	_, value, headers = record.EncodeDead(d, "shop")
	return value, signKey.Signer().Sign(value, headers)
}

func TestASignatureIsWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	value, headers := signedDead(t)
	mac := hmac.New(sha256.New, []byte("0123456789abcdef0123456789abcdef"))
	for _, text := range []string{"perceptor.dead.v1", task.OutOfAttempts.String(), "full", "12"} {
		mac.Write([]byte{0, 0, 0, byte(len(text))})
		mac.Write([]byte(text))
	}
	mac.Write(value)
	want := []record.Header{{Key: "perceptor_key_id", Value: []byte("3")}, {Key: "perceptor_signature", Value: mac.Sum(nil)}}
	got := headers[len(headers)-2:]
	if !slices.EqualFunc(got, want, func(a, b record.Header) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }) {
		t.Errorf("headers = %q, want %q", got, want)
	}
	if id, err := record.KeyID(headers); id != 3 || err != nil {
		t.Errorf("KeyID = %d, %v", id, err)
	}
	if err := signKey.Signer().Verify(record.DeadEventType, value, headers); err != nil {
		t.Error(err)
	}
}

func TestASignatureCoversEveryByteOfTheValue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		p := drawPublication(r, t)
		_, value, headers := record.Encode(p, "shop")
		headers = signKey.Signer().Sign(value, headers)
		if err := signKey.Signer().Verify(record.EventType, value, headers); err != nil {
			r.Fatal(err)
		}
		i := rapid.IntRange(0, len(value)-1).Draw(r, "byte")
		value[i] ^= byte(rapid.IntRange(1, 255).Draw(r, "change"))
		if err := signKey.Signer().Verify(record.EventType, value, headers); !errors.Is(err, record.ErrForged) {
			r.Fatalf("byte %d was changed: %v, want %v", i, err, record.ErrForged)
		}
	})
}

func TestRecordsThatOthersHaveMadeAreRefused(t *testing.T) {
	t.Parallel()
	set := func(name string, value string) func([]byte, []record.Header) ([]byte, []record.Header) {
		return func(v []byte, headers []record.Header) ([]byte, []record.Header) {
			i := slices.IndexFunc(headers, func(h record.Header) bool { return h.Key == name })
			headers[i].Value = []byte(value)
			return v, headers
		}
	}
	without := func(name string) func([]byte, []record.Header) ([]byte, []record.Header) {
		return func(v []byte, headers []record.Header) ([]byte, []record.Header) {
			return v, slices.DeleteFunc(headers, func(h record.Header) bool { return h.Key == name })
		}
	}
	add := func(name, value string) func([]byte, []record.Header) ([]byte, []record.Header) {
		return func(v []byte, headers []record.Header) ([]byte, []record.Header) {
			return v, append(headers, record.Header{Key: name, Value: []byte(value)})
		}
	}
	for name, c := range map[string]struct {
		change func([]byte, []record.Header) ([]byte, []record.Header)
		want   error
	}{
		"no signature":       {without(record.HeaderSignature), record.ErrUnsigned},
		"empty signature":    {set(record.HeaderSignature, ""), record.ErrForged},
		"short signature":    {set(record.HeaderSignature, "abc"), record.ErrForged},
		"another error":      {set(record.HeaderError, "all is well"), record.ErrForged},
		"another reason":     {set(record.HeaderReason, "SILENT"), record.ErrForged},
		"another time":       {set(record.HeaderDiedAt, "13"), record.ErrForged},
		"another type":       {set(record.HeaderType, record.EventType), record.ErrForged},
		"no error":           {without(record.HeaderError), record.ErrForged},
		"two errors":         {add(record.HeaderError, "all is well"), record.ErrForged},
		"two signatures":     {add(record.HeaderSignature, "abc"), record.ErrForged},
		"text moved between": {func(v []byte, h []record.Header) ([]byte, []record.Header) { return v[1:], h }, record.ErrForged},
	} {
		value, headers := c.change(signedDead(t))
		if err := signKey.Signer().Verify(record.DeadEventType, value, headers); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	value, headers := signedSample(t)
	if err := record.NewKey(3, []byte("of another tenant")).Signer().Verify(record.EventType, value, headers); !errors.Is(err, record.ErrForged) {
		t.Errorf("another tenant's key: %v, want %v", err, record.ErrForged)
	}
	if err := signKey.Signer().Verify(record.DeadEventType, value, headers); !errors.Is(err, record.ErrOtherType) {
		t.Errorf("the record of a run on a dead-letter topic: %v, want %v", err, record.ErrOtherType)
	}
	value, headers = signedDead(t)
	if err := signKey.Signer().Verify(record.EventType, value, headers); !errors.Is(err, record.ErrOtherType) {
		t.Errorf("the record of a dead run on a topic of runs: %v, want %v", err, record.ErrOtherType)
	}
	value, headers = add("traceparent", "of a mirror")(signedSample(t))
	if err := signKey.Signer().Verify(record.EventType, value, headers); err != nil {
		t.Errorf("a header that a mirror adds: %v", err)
	}
}

func TestTheNumberOfAKeyIsCheckedBeforeItsUse(t *testing.T) {
	t.Parallel()
	of := func(values ...string) (headers []record.Header) {
		for _, v := range values {
			headers = append(headers, record.Header{Key: record.HeaderKeyID, Value: []byte(v)})
		}
		return headers
	}
	if _, err := record.KeyID(nil); !errors.Is(err, record.ErrUnsigned) {
		t.Errorf("no header: %v, want %v", err, record.ErrUnsigned)
	}
	for name, headers := range map[string][]record.Header{
		"empty": of(""), "zero": of("0"), "negative": of("-1"), "text": of("abc"), "too large": of("4294967297"), "two": of("1", "2"),
	} {
		if id, err := record.KeyID(headers); err == nil {
			t.Errorf("%s: KeyID = %d", name, id)
		}
	}
}

// BenchmarkSign measures what the signature adds to the encoding of a record.
func BenchmarkSign(b *testing.B) {
	_, value, headers := record.Encode(sample(b), "shop")
	s := signKey.Signer()
	b.SetBytes(int64(len(value)))
	b.ReportAllocs()
	for b.Loop() {
		s.Sign(value, headers)
	}
}

// BenchmarkVerify includes the preparation of the key.
func BenchmarkVerify(b *testing.B) {
	value, headers := signedSample(b)
	b.SetBytes(int64(len(value)))
	b.ReportAllocs()
	for b.Loop() {
		if err := signKey.Signer().Verify(record.EventType, value, headers); err != nil {
			b.Fatal(err)
		}
	}
}
