package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// chunkOf makes a chunk of tasks as a client does: what differs by line is in columns.
func chunkOf(tasks ...*perceptorv1.Task) *perceptorv1.ImportChunk {
	c := &perceptorv1.ImportChunk{Number: 1, LineCount: int32(len(tasks))}
	last := int64(0)
	for i, t := range tasks {
		t = proto.Clone(t).(*perceptorv1.Task)
		begin := int64(-1)
		if t.BeginTime != nil {
			begin = t.BeginTime.AsTime().UnixMilli()
		}
		payload := (&reader{}).payload("payload", t.Payload)
		params := paramsWire(t.Params, payload)
		c.BeginMs = append(c.BeginMs, begin-last)
		c.ParamsSize, c.Params = append(c.ParamsSize, uint32(len(params))), append(c.Params, params...)
		c.KeySize, c.Keys = append(c.KeySize, uint32(len(t.IdempotencyKey))), append(c.Keys, t.IdempotencyKey...)
		last, t.BeginTime, t.Params, t.Payload, t.IdempotencyKey = begin, nil, nil, nil, ""
		c.Template, c.Templates = append(c.Template, uint32(i)), append(c.Templates, t)
	}
	return c
}

// oddTask returns a task that breaks about one rule.
func oddTask(rng *rand.Rand) *perceptorv1.Task {
	now := time.UnixMilli(int64(fakeNow))
	t := &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_Type(1 + rng.IntN(3)), Params: map[string]string{"a": "1", "b": ""}}
	if t.Type != perceptorv1.Task_ONE_SHOT {
		t.Schedule = &perceptorv1.Task_Interval{Interval: durationpb.New(time.Minute)}
	}
	t.BeginTime = timestamppb.New(now.Add(time.Duration(rng.IntN(100)) * time.Hour))
	if rng.IntN(3) == 0 {
		t.EndTime = timestamppb.New(now.Add(time.Duration(rng.IntN(120)-10) * time.Hour))
	}
	if rng.IntN(3) == 0 {
		t.IdempotencyKey = fmt.Sprint("key", rng.IntN(100))
	}
	changes := []func(){
		func() { t.BeginTime = nil },
		func() { t.BeginTime = timestamppb.New(time.UnixMilli(-1000 * int64(1+rng.IntN(1e9)))) },
		func() { t.BeginTime = timestamppb.New(time.Date(9000+rng.IntN(2), 1, 1, 0, 0, 0, 0, time.UTC)) },
		func() { t.Kind = "" },
		func() { t.Kind = strings.Repeat("k", 101) },
		func() { clear(t.Params) },
		func() { t.Params["c"] = "\xff" },
		func() { t.Params["d\x00"] = "" },
		func() { t.Params[""] = "x" },
		func() { t.Params["big"] = strings.Repeat("x", rng.IntN(1200)) },
		func() { t.Params[strings.Repeat("k", 99+rng.IntN(4))] = "" },
		func() {
			for i := range 60 + rng.IntN(8) {
				t.Params[fmt.Sprint(i)] = ""
			}
		},
		func() { t.IdempotencyKey = "k\x01" },
		func() { t.IdempotencyKey = strings.Repeat("k", 127+rng.IntN(4)) },
		func() { t.Payload = &perceptorv1.Payload{Data: []byte("hello")} },
		func() { t.Payload = &perceptorv1.Payload{Data: []byte(`{"a":1}`), ContentType: "application/json"} },
		func() { t.Payload = &perceptorv1.Payload{Data: []byte(`{"a":`), ContentType: "application/json"} },
		func() { t.Payload = &perceptorv1.Payload{Data: []byte("x"), ContentType: "text"} },
		func() { t.Payload = &perceptorv1.Payload{Data: bytes.Repeat([]byte("x"), 900+rng.IntN(200))} },
		func() { t.Payload = &perceptorv1.Payload{} },
		func() { t.Overlap = perceptorv1.Task_Overlap_Policy(rng.IntN(5)) },
		func() { t.Type = 9 },
		func() { t.MaxCount = -1 },
		func() { t.Spread = durationpb.New(time.Duration(rng.IntN(90)) * time.Second) },
		func() { t.RetryPolicy = &perceptorv1.RetryPolicy{MaxAttempts: int32(rng.IntN(2000) - 500)} },
		func() { t.Schedule = &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "0 25 * * *"}} },
		func() { t.Schedule = &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "0 5 * * *"}} },
		func() { t.Tags = slices.Repeat([]string{strings.Repeat("t", rng.IntN(70))}, 1) },
		func() { t.TraceParent = "no" },
		func() { t.Retention = durationpb.New(time.Duration(rng.IntN(100)) * 24 * time.Hour) },
		func() { t.MisfirePolicy, t.MisfireGrace = perceptorv1.Task_SKIP, durationpb.New(time.Second) },
	}
	for range rng.IntN(3) {
		changes[rng.IntN(len(changes))]()
	}
	return t
}

// TestALineIsJudgedLikeTheTaskOfAnAdd: and valid lines become the same spec, with the same hash of
// their body.
func TestALineIsJudgedLikeTheTaskOfAnAdd(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	limits := task.DefaultLimits()
	valid := 0
	for range 20_000 {
		in := oddTask(rng)
		spec, faults := specOf(proto.Clone(in).(*perceptorv1.Task), &acme, limits)
		c := newChunkReader(chunkOf(in), &acme, limits, false)
		out, err := c.read(t.Context())
		if err != nil {
			t.Fatalf("%v: %v", in, err)
		}
		want, got := map[string]string{}, map[string]string{}
		for _, f := range faults {
			want[ofParams(f.Field)] = f.Message
		}
		for _, f := range c.faults {
			got[ofParams(f.Field)] = f.Message
		}
		if !slices.Equal(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))) {
			t.Fatalf("%v\nan add says %v\na chunk says %v", in, want, got)
		}
		for field, message := range want {
			if got[field] != message && field != "params" {
				t.Fatalf("%v: %s: an add says %q, a chunk %q", in, field, message, got[field])
			}
		}
		if len(faults) > 0 {
			if out.Rejected != 1 || len(out.Lines) != 0 {
				t.Fatalf("%v: %d lines are rejected, %d valid", in, out.Rejected, len(out.Lines))
			}
			continue
		}
		valid++
		sameSpec(t, in, &spec, out)
	}
	if valid < 2000 || valid > 18_000 {
		t.Errorf("%d of 20000 tasks are valid", valid)
	}
}

// ofParams returns the same field for all faults of params: of several, either way tells any.
func ofParams(field string) string {
	if strings.HasPrefix(field, "params") || field == "payload" {
		return "params"
	}
	return field
}

// sameSpec compares a line with the spec of an add.
func sameSpec(t *testing.T, in *perceptorv1.Task, want *task.Spec, out *task.ImportChunk) {
	t.Helper()
	l, s := out.Lines[0], out.Specs[0]
	s.Begin, s.Key, s.ParamsWire = l.Begin, string(l.Key), l.Params
	add := newKeyedAdd(&acme, 0, proto.Clone(in).(*perceptorv1.Task), *want, false)
	if l.Key != nil && *l.KeyHash != [16]byte(add.request.Hash[:16]) {
		t.Fatalf("%v: the hash of the body differs from that of an add", in)
	}
	w := *want
	w.Params, s.Params, w.Payload, s.Payload, w.Calendar, s.Calendar = nil, nil, nil, nil, nil, nil
	if string(task.Seal(&w.Terms, &w.Origin)) != string(task.Seal(&s.Terms, &s.Origin)) || w.Begin != s.Begin || w.End != s.End || w.Kind != s.Kind || string(w.ParamsWire) != string(s.ParamsWire) {
		t.Fatalf("%v:\nan add stores %+v\na chunk stores %+v", in, w, s)
	}
}

func TestAChunkWhoseArraysDoNotFitIsRefused(t *testing.T) {
	base := func() *perceptorv1.ImportChunk {
		return chunkOf(&perceptorv1.Task{Kind: "k", Type: 1, Params: map[string]string{"a": "b"}, IdempotencyKey: "x"}, &perceptorv1.Task{Kind: "k", Type: 1})
	}
	for field, change := range map[string]func(*perceptorv1.ImportChunk){
		"number":              func(c *perceptorv1.ImportChunk) { c.Number = 0 },
		"line_count":          func(c *perceptorv1.ImportChunk) { c.LineCount = 0 },
		"templates":           func(c *perceptorv1.ImportChunk) { c.Templates, c.Template = nil, nil },
		"template":            func(c *perceptorv1.ImportChunk) { c.Template = c.Template[:1] },
		"template[1]":         func(c *perceptorv1.ImportChunk) { c.Template[1] = 2 },
		"begin_ms":            func(c *perceptorv1.ImportChunk) { c.BeginMs = append(c.BeginMs, 1) },
		"params_size":         func(c *perceptorv1.ImportChunk) { c.ParamsSize = c.ParamsSize[:1] },
		"params":              func(c *perceptorv1.ImportChunk) { c.ParamsSize[0] = math.MaxUint32 },
		"keys":                func(c *perceptorv1.ImportChunk) { c.Keys = append(c.Keys, 'x') },
		"key_size":            func(c *perceptorv1.ImportChunk) { c.KeySize = []uint32{1, 0, 0} },
		"states":              func(c *perceptorv1.ImportChunk) { c.States = &perceptorv1.LineStates{} },
		"states.run_count":    func(c *perceptorv1.ImportChunk) { c.States = &perceptorv1.LineStates{RunCount: []int64{1}} },
		"templates[1].params": func(c *perceptorv1.ImportChunk) { c.Templates[1].Params = map[string]string{"a": "b"} },
		"templates[0].idempotency_key": func(c *perceptorv1.ImportChunk) {
			c.Templates[0].IdempotencyKey = "k"
		},
		"templates[0].begin_time": func(c *perceptorv1.ImportChunk) { c.Templates[0].BeginTime = timestamppb.Now() },
	} {
		c := base()
		change(c)
		_, err := newChunkReader(c, &acme, task.DefaultLimits(), field == "states.run_count").read(t.Context())
		found := false
		for _, v := range statusFaults(err) {
			found = found || v == field
		}
		if !found {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := newChunkReader(base(), &acme, task.DefaultLimits(), false).read(t.Context()); err != nil {
		t.Errorf("as it was: %v", err)
	}
}

func statusFaults(err error) (fields []string) {
	if err == nil {
		return nil
	}
	for field := range unpacked(status.Convert(err)).faults {
		fields = append(fields, field)
	}
	return fields
}

// TestParamsThatAreEncodedInAnotherWayAreRefused: the bytes are stored as they are.
func TestParamsThatAreEncodedInAnotherWayAreRefused(t *testing.T) {
	good := paramsWire(map[string]string{"a": "1", "b": ""}, &task.Payload{Data: []byte("x"), ContentType: "text/plain"})
	entry := func(parts ...string) []byte {
		body := strings.Join(parts, "")
		return append([]byte{0x0a, byte(len(body))}, body...)
	}
	if judgeParams(good, 100) != paramsFine {
		t.Fatal("params as an add stores them are not fine")
	}
	for name, wire := range map[string][]byte{
		"out of order":       append(entry("\x0a\x01b", "\x12\x00"), entry("\x0a\x01a", "\x12\x00")...),
		"twice":              append(entry("\x0a\x01a", "\x12\x00"), entry("\x0a\x01a", "\x12\x00")...),
		"value first":        entry("\x12\x011", "\x0a\x01a"),
		"no value":           entry("\x0a\x01a"),
		"another field":      entry("\x0a\x01a", "\x12\x00", "\x1a\x00"),
		"of another message": {0x22, 0x00},
		"type alone":         {0x1a, 0x03, 'a', '/', 'b'},
		"the default type":   append([]byte{0x12, 0x01, 'x', 0x1a, byte(len(task.DefaultContentType))}, task.DefaultContentType...),
		"payload first":      append([]byte{0x12, 0x01, 'x'}, entry("\x0a\x01a", "\x12\x00")...),
		"a long length":      {0x0a, 0x85, 0x00, 0x0a, 0x01, 'a', 0x12, 0x00},
		"cut":                good[:len(good)-1],
	} {
		c := chunkOf(&perceptorv1.Task{Kind: "k", Type: 1})
		c.ParamsSize, c.Params = []uint32{uint32(len(wire))}, wire
		if _, err := newChunkReader(c, &acme, task.DefaultLimits(), false).read(t.Context()); !slices.Contains(statusFaults(err), "params") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAStateElsewhereThatCannotBeIsRejected(t *testing.T) {
	for field, s := range map[string]*perceptorv1.LineStates{
		"scheduled_time": {ScheduledMs: []int64{-1}},
		"anchor_time":    {AnchorMs: []int64{1000}}, // of a task without an interval
		"run_count":      {RunCount: []int64{1}},    // of a ONE_SHOT
		"missed_count":   {MissedCount: []int64{-1}},
	} {
		c := chunkOf(&perceptorv1.Task{Kind: "k", Type: 1})
		c.States = s
		r := newChunkReader(c, &acme, task.DefaultLimits(), true)
		out, err := r.read(t.Context())
		if err != nil || out.Rejected != 1 || len(r.faults) != 1 || r.faults[0].Field != field {
			t.Errorf("%s: %v, %v", field, r.faults, err)
		}
	}
}

// TestAChunkIsNotJudgedBeyondItsStream: its templates may take minutes of the processor.
func TestAChunkIsNotJudgedBeyondItsStream(t *testing.T) {
	c := chunkOf(&perceptorv1.Task{Kind: "k", Type: 1})
	ended := errors.New("the stream has ended")
	ctx, end := context.WithCancelCause(t.Context())
	end(ended)
	if _, err := newChunkReader(c, &acme, task.DefaultLimits(), false).read(ctx); !errors.Is(err, ended) {
		t.Errorf("%v, want that the stream has ended", err)
	}
}

// FuzzNextParam: whatever is accepted is encoded again as it was.
func FuzzNextParam(f *testing.F) {
	f.Add(paramsWire(map[string]string{"a": "1", "b": strings.Repeat("x", 200)}, &task.Payload{Data: []byte("{}"), ContentType: "application/json"}))
	f.Add([]byte{0x0a, 0x85, 0x00, 0x0a, 0x01, 'a', 0x12, 0x00})
	f.Fuzz(func(t *testing.T, wire []byte) {
		if judgeParams(wire, 1000) != paramsFine {
			return
		}
		var p perceptorv1.Params
		if err := proto.Unmarshal(wire, &p); err != nil {
			t.Fatalf("%x is accepted: %v", wire, err)
		}
		var payload *task.Payload
		if len(p.Payload) > 0 {
			payload = &task.Payload{Data: p.Payload, ContentType: p.ContentType}
		}
		if again := paramsWire(p.Entries, payload); string(again) != string(wire) {
			t.Errorf("%x is accepted, and encoded again as %x", wire, again)
		}
	})
}

// BenchmarkChunk prints what one line of a chunk costs before it is stored, without the
// decompression.
func BenchmarkChunk(b *testing.B) {
	const n = 100_000
	c := &perceptorv1.ImportChunk{Number: 1, LineCount: n, Templates: []*perceptorv1.Task{{Kind: "order.remind", Type: 1}}}
	for i := range n {
		params := paramsWire(map[string]string{"order_id": fmt.Sprint("A", 100000+i), "customer": fmt.Sprintf("c%d@example.com", i*7), "text": "please remember the milk"}, nil)
		c.BeginMs = append(c.BeginMs, int64(binary.BigEndian.Uint16([]byte{byte(i), byte(i * 7)})))
		c.ParamsSize, c.Params = append(c.ParamsSize, uint32(len(params))), append(c.Params, params...)
	}
	wire, err := proto.Marshal(c)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := countChunk(wire); err != nil {
			b.Fatal(err)
		}
		in := &perceptorv1.ImportChunk{}
		if err := proto.Unmarshal(wire, in); err != nil {
			b.Fatal(err)
		}
		out, err := newChunkReader(in, &Tenant{ParamsBytes: 1 << 14}, task.DefaultLimits(), false).read(b.Context())
		if err != nil || len(out.Lines) != n {
			b.Fatal(len(out.Lines), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/line")
	b.ReportMetric(float64(len(wire))/n, "B/line")
	b.ReportMetric(0, "ns/op")
}
