package record_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

func paramsWire(t testing.TB, params map[string]string) []byte {
	t.Helper()
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: params})
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func sample(t testing.TB) task.Publication {
	return task.Publication{
		Task: task.NewID(7, 3), Seq: 2, Attempt: 4, Type: task.Blocking, Kind: "quality-check",
		ScheduledAt: 1_700_000_000_123, ClaimedAt: 1_700_000_000_456, Missed: 5, Version: 6,
		AckTimeout: 1500 * time.Millisecond, Params: paramsWire(t, map[string]string{"content": "42", "empty": ""}),
	}
}

func generated(t testing.TB, p task.Publication) []byte {
	t.Helper()
	m := &perceptorv1.RunRecord{
		TaskId: int64(p.Task), Seq: p.Seq, Attempt: p.Attempt, Type: perceptorv1.Task_Type(p.Type), Kind: p.Kind,
		ScheduledTime: timestamppb.New(p.ScheduledAt.Time()), MissedCount: p.Missed, Version: p.Version,
		AckTimeout: durationpb.New(p.AckTimeout), TraceParent: p.TraceParent,
		Dispatcher: p.Dispatcher, BackfillOf: int64(p.BackfillOf),
	}
	if p.PublishedAt != 0 {
		m.PublishTime = timestamppb.New(p.PublishedAt.Time())
	}
	if p.ClaimedAt != 0 {
		m.ClaimTime = timestamppb.New(p.ClaimedAt.Time())
	}
	if len(p.Params) > 0 {
		m.Params = &perceptorv1.Params{}
		if err := proto.Unmarshal(p.Params, m.Params); err != nil {
			t.Fatal(err)
		}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func drawPublication(r *rapid.T, t *testing.T) task.Publication {
	text := rapid.StringMatching(`[a-zà-ÿ 0-9]{1,20}`)
	var origin task.Origin
	if rapid.Bool().Draw(r, "traced") {
		origin.TraceParent = rapid.StringMatching(`00-[0-9a-f]{31}1-[0-9a-f]{15}1-01`).Draw(r, "trace_parent")
	}
	if rapid.Bool().Draw(r, "a backfill") {
		origin.BackfillOf = task.NewID(rapid.Int64Range(1, 1<<50).Draw(r, "source"), 7)
	}
	return task.Publication{
		Task:        task.NewID(rapid.Int64Range(1, 1<<50).Draw(r, "number"), task.Shard(rapid.IntRange(0, 511).Draw(r, "shard"))),
		Seq:         rapid.Int64Range(1, task.MaxCountLimit).Draw(r, "seq"),
		Attempt:     rapid.Int32Range(1, 1<<31-1).Draw(r, "attempt"),
		Type:        rapid.SampledFrom(task.Types).Draw(r, "type"),
		Kind:        text.Draw(r, "kind"),
		ScheduledAt: task.Instant(rapid.Int64Range(0, int64(task.LastInstant)-1).Draw(r, "scheduled")),
		ClaimedAt:   task.Instant(rapid.Int64Range(0, int64(task.LastInstant)-1).Draw(r, "claimed")),
		PublishedAt: task.Instant(rapid.Int64Range(0, int64(task.LastInstant)-1).Draw(r, "published")),
		Dispatcher:  rapid.StringMatching(`[a-z0-9-]{0,20}`).Draw(r, "dispatcher"),
		Missed:      rapid.Int64Range(0, 1<<40).Draw(r, "missed"),
		Version:     rapid.Int32Range(0, 1<<31-1).Draw(r, "version"),
		AckTimeout:  time.Duration(rapid.Int64Range(1, task.MaxAckTimeout.Milliseconds()).Draw(r, "ack")) * time.Millisecond,
		Params:      drawParams(r, t),
		Origin:      origin,
	}
}

// drawParams returns stored params, some of which have a payload.
func drawParams(r *rapid.T, t *testing.T) []byte {
	text := rapid.StringMatching(`[a-zà-ÿ 0-9]{1,20}`)
	p := perceptorv1.Params{Entries: rapid.MapOfN(text, rapid.String(), 0, 20).Draw(r, "params")}
	if rapid.Bool().Draw(r, "has a payload") {
		p.Payload = rapid.SliceOfN(rapid.Byte(), 1, 100).Draw(r, "payload")
		p.ContentType = rapid.SampledFrom([]string{"", "application/json", "text/csv; charset=utf-8"}).Draw(r, "content type")
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(&p)
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func TestValueIsWhatTheGeneratedCodeWrites(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := drawPublication(r, t)
		_, value, _ := record.Encode(p, "shop")
		if want := generated(t, p); !bytes.Equal(value, want) {
			r.Fatalf("Encode wrote\n%x\nthe generated code writes\n%x", value, want)
		}
	})
}

func TestDecodeReturnsWhatWasEncoded(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		want := drawPublication(r, t)
		_, value, _ := record.Encode(want, "shop")
		got, err := record.Decode(value)
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

func TestParamsBytesAreCarriedUntouched(t *testing.T) {
	p := sample(t)
	// No encoder would choose this order of entries.
	p.Params = append(paramsWire(t, map[string]string{"z": "1"}), paramsWire(t, map[string]string{"a": "2"})...)
	_, value, _ := record.Encode(p, "shop")
	got, err := record.Decode(value)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Params, p.Params) {
		t.Errorf("params = %[2]x, want %[1]x", p.Params, got.Params)
	}
	params, _, err := record.Params(got.Params)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"z": "1", "a": "2"}, params); d != "" {
		t.Error(d)
	}
}

func TestKeyAndHeadersSayWhichDeliveryThisIs(t *testing.T) {
	p := sample(t)
	key, _, headers := record.Encode(p, "shop")
	if string(key) != "3587" {
		t.Errorf("key %q, want the task id 3587", key)
	}
	got := map[string]string{}
	for _, h := range headers {
		got[h.Key] = string(h.Value)
	}
	want := map[string]string{
		"ce_specversion": "1.0", "ce_id": "3587-2.4", "ce_source": "/tenants/shop", "ce_type": "perceptor.run.v1",
		"ce_time": "2023-11-14T22:13:20.123Z", "content-type": "application/protobuf",
		"perceptor_run_id": "3587-2", "perceptor_attempt": "4", "perceptor_scheduled_at": "1700000000123",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestLargestRecordFitsTheStatedOverhead(t *testing.T) {
	largest := &perceptorv1.Params{Entries: map[string]string{}, ContentType: "text/" + strings.Repeat("x", task.MaxContentTypeBytes-len("text/"))}
	left := task.MaxParamsBytes
	for i := range task.MaxParams {
		k := fmt.Sprintf("%0*d", task.MaxParamKeyBytes, i)
		size := task.MaxParamsBytes/task.MaxParams/2 - len(k)
		largest.Entries[k] = strings.Repeat("x", size)
		left -= size + len(k)
	}
	largest.Payload = make([]byte, left)
	wire, err := proto.Marshal(largest)
	if err != nil {
		t.Fatal(err)
	}
	p := task.Publication{
		Task: 1<<63 - 1, Seq: 1<<63 - 1, Attempt: 1<<31 - 1, Type: task.Blocking, Kind: strings.Repeat("k", task.MaxKindBytes),
		ScheduledAt: task.LastInstant - 1, ClaimedAt: task.LastInstant - 1, Missed: 1<<63 - 1, Version: 1<<31 - 1,
		AckTimeout: task.MaxAckTimeout, Params: wire, Origin: task.Origin{BackfillOf: 1<<63 - 1},
	}
	for name, encode := range map[string]func(task.Publication, string) ([]byte, []byte, []record.Header){"run": record.Encode, "payload": record.EncodePayload} {
		key, value, headers := encode(p, strings.Repeat("t", 63))
		total := len(key) + len(value)
		for _, h := range headers {
			total += len(h.Key) + len(h.Value) + 10
		}
		if over := total - task.MaxParamsBytes; over > record.MaxOverheadBytes {
			t.Errorf("%s: overhead = %d bytes, want at most %d", name, over, record.MaxOverheadBytes)
		}
		if got, err := record.Read(value, headers); err != nil || len(got.Params) != len(wire) {
			t.Errorf("%s: Read rejects the largest record: %v", name, err)
		}
	}
}

func TestDecodeNamesWhatIsWrong(t *testing.T) {
	good := func() *perceptorv1.RunRecord {
		var m perceptorv1.RunRecord
		if err := proto.Unmarshal(generated(t, sample(t)), &m); err != nil {
			t.Fatal(err)
		}
		return &m
	}
	edited := func(edit func(*perceptorv1.RunRecord)) []byte {
		m := good()
		edit(m)
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	valid := edited(func(*perceptorv1.RunRecord) {})
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint("key", i)] = ""
	}
	cases := map[string]struct {
		value []byte
		want  string
	}{
		"empty":              {nil, "value is empty"},
		"json":               {[]byte(`{"task_id":1}`), "field 15"},
		"too long":           {make([]byte, record.MaxValueBytes+1), "at most"},
		"cut off":            {valid[:len(valid)-3], "params"},
		"field twice":        {append(bytes.Clone(valid), valid[:3]...), "duplicate field task_id"},
		"no task":            {edited(func(m *perceptorv1.RunRecord) { m.TaskId = 0 }), "task_id is missing"},
		"bad task":           {edited(func(m *perceptorv1.RunRecord) { m.TaskId = -5 }), "task_id: -5"},
		"no seq":             {edited(func(m *perceptorv1.RunRecord) { m.Seq = 0 }), "seq is missing"},
		"negative seq":       {edited(func(m *perceptorv1.RunRecord) { m.Seq = -1 }), "seq: -1"},
		"negative attempt":   {edited(func(m *perceptorv1.RunRecord) { m.Attempt = -1 }), "attempt: -1"},
		"unknown type":       {edited(func(m *perceptorv1.RunRecord) { m.Type = 9 }), "type: 9"},
		"no kind":            {edited(func(m *perceptorv1.RunRecord) { m.Kind = "" }), "kind is missing"},
		"control character":  {edited(func(m *perceptorv1.RunRecord) { m.Kind = "a\x01" }), "kind"},
		"no scheduled time":  {edited(func(m *perceptorv1.RunRecord) { m.ScheduledTime = nil }), "scheduled_time is missing"},
		"year 10000":         {edited(func(m *perceptorv1.RunRecord) { m.ScheduledTime.Seconds = 253402300800 }), "scheduled_time"},
		"negative nanos":     {edited(func(m *perceptorv1.RunRecord) { m.ClaimTime.Nanos = -1 }), "claim_time"},
		"negative ack":       {edited(func(m *perceptorv1.RunRecord) { m.AckTimeout.Seconds = -1 }), "ack_timeout"},
		"no ack":             {edited(func(m *perceptorv1.RunRecord) { m.AckTimeout = nil }), "ack_timeout is missing"},
		"negative missed":    {edited(func(m *perceptorv1.RunRecord) { m.MissedCount = -1 }), "missed_count: -1"},
		"negative version":   {edited(func(m *perceptorv1.RunRecord) { m.Version = -1 }), "version: -1"},
		"empty param key":    {edited(func(m *perceptorv1.RunRecord) { m.Params.Entries = map[string]string{"": "x"} }), "params: entry 0: key"},
		"too many params":    {edited(func(m *perceptorv1.RunRecord) { m.Params.Entries = many }), "params: 65 entries"},
		"wrong wire type":    {append(bytes.Clone(valid[:0]), 0x0a, 0x00), "task_id: wire type 2"},
		"attempt beyond i32": {[]byte{0x18, 0xff, 0xff, 0xff, 0xff, 0x7f}, "attempt: 34359738367 does not fit"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := record.Decode(c.value)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestUnknownFieldsArePassedOver(t *testing.T) {
	_, value, _ := record.Encode(sample(t), "shop")
	value = append(value, 0x82, 0x06, 0x03, 'n', 'e', 'w') // field 96, bytes
	if _, err := record.Decode(value); err != nil {
		t.Error(err)
	}
}

func TestPartitionSpreadsTheTasksOfOneShard(t *testing.T) {
	const n, tasks = 16, 16_000
	var counts [n]int
	for i := range int64(tasks) {
		counts[record.Partition(task.NewID(i+1, 7), n)]++
	}
	for p, c := range counts {
		if c < tasks/n*8/10 || c > tasks/n*12/10 {
			t.Errorf("partition %d has %d of %d tasks: %v", p, c, tasks, counts)
		}
	}
	// The partition of a task never changes, because its records may still be on the topic.
	if got := record.Partition(task.NewID(12345, 67), 12); got != 10 {
		t.Errorf("Partition of a known task = %d, want 10", got)
	}
}

func FuzzDecode(f *testing.F) {
	_, value, _ := record.Encode(sample(f), "shop")
	f.Add(value)
	f.Add([]byte(`{"task_id":1}`))
	f.Add([]byte{0x7a, 0x02, 0x0a, 0x00})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, value []byte) {
		p, err := record.Decode(value)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "record: ") || len(err.Error()) > 1000 {
				t.Errorf("error = %q, want the prefix \"record: \" and at most 1000 bytes", err)
			}
			return
		}
		if _, _, err := record.Params(p.Params); err != nil {
			t.Fatalf("Decode accepted params that Params rejects: %v", err)
		}
		_, again, _ := record.Encode(p, "shop")
		q, err := record.Decode(again)
		if err != nil {
			t.Fatalf("Decode rejects the encoding of its own result: %v", err)
		}
		if d := cmp.Diff(p, q); d != "" && !(len(p.Params) == 0 && len(q.Params) == 0) {
			t.Fatal(d)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	p := sample(b)
	b.ReportAllocs()
	for b.Loop() {
		record.Encode(p, "shop")
	}
}

func BenchmarkEncodeWithAPayload(b *testing.B) {
	p := withPayload(b)
	b.ReportAllocs()
	for b.Loop() {
		record.Encode(p, "shop")
	}
}

func BenchmarkEncodePayloadRecord(b *testing.B) {
	p := withPayload(b)
	b.ReportAllocs()
	for b.Loop() {
		record.EncodePayload(p, "shop")
	}
}

func BenchmarkDecode(b *testing.B) {
	_, value, _ := record.Encode(sample(b), "shop")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := record.Decode(value); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTheSpanThatPublishedARecordIsInAHeader(t *testing.T) {
	t.Parallel()
	const add, span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-11112222333344445555666677778888-1111222233334444-01"
	p := sample(t)
	p.TraceParent, p.Trace = add, span
	_, value, headers := record.Encode(p, "shop")
	got, err := record.Decode(value)
	if err != nil {
		t.Fatal(err)
	}
	unsampled := got
	unsampled.TraceParent = ""
	header := func(value string) record.Header { return record.Header{Key: record.HeaderTrace, Value: []byte(value)} }
	for name, c := range map[string]struct {
		p       task.Publication
		headers []record.Header
		want    string
	}{
		"as it was written":           {got, headers, span},
		"a task without a trace":      {unsampled, headers, ""},
		"no header":                   {got, nil, ""},
		"another one, by a mirror":    {got, append(headers[:len(headers):len(headers)], header(span)), ""},
		"what is no trace context":    {got, []record.Header{header("of a mirror")}, ""},
		"a context that is too short": {got, []record.Header{header(span[:54])}, ""},
	} {
		if trace := record.Trace(&c.p, c.headers); trace != c.want {
			t.Errorf("%s: %q, want %q", name, trace, c.want)
		}
	}
}
