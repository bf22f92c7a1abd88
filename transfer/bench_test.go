package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/export/line"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// sample is one line of the benchmarks.
type sample struct {
	kind        string
	begin       time.Time
	interval    time.Duration
	order, user int
	key         string
}

// samples returns lines like those of a data warehouse: few kinds and intervals, begins and params of their own.
func samples(n int) []sample {
	rng := rand.New(rand.NewPCG(1, 2))
	start := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	list := make([]sample, n)
	for i := range list {
		list[i] = sample{
			kind:  [...]string{"payment.reminder", "order.timeout", "coupon.expiry"}[rng.IntN(3)],
			begin: start.Add(time.Duration(rng.Int64N(30*86400_000)) * time.Millisecond), interval: time.Duration(1+rng.IntN(24)) * time.Hour,
			order: rng.IntN(1e9), user: rng.IntN(1e7), key: fmt.Sprintf("order-%09d", i),
		}
	}
	return list
}

func csvOf(list []sample, keys bool) []byte {
	var b bytes.Buffer
	b.WriteString("kind,type,begin_time,interval,params.order_id,params.user_id")
	if keys {
		b.WriteString(",idempotency_key")
	}
	for _, s := range list {
		fmt.Fprintf(&b, "\n%s,NON_BLOCKING,%s,%s,ord-%09d,u%07d", s.kind, s.begin.Format("2006-01-02T15:04:05.000Z"), s.interval, s.order, s.user)
		if keys {
			b.WriteString("," + s.key)
		}
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func jsonOf(list []sample, keys bool) []byte {
	var b bytes.Buffer
	for _, s := range list {
		fmt.Fprintf(&b, `{"kind":%q,"type":"NON_BLOCKING","beginTime":%q,"interval":"%ds"`, s.kind, s.begin.Format("2006-01-02T15:04:05.000Z"), int(s.interval.Seconds()))
		if keys {
			fmt.Fprintf(&b, `,"idempotencyKey":%q`, s.key)
		}
		fmt.Fprintf(&b, ",\"params\":{\"order_id\":\"ord-%09d\",\"user_id\":\"u%07d\"}}\n", s.order, s.user)
	}
	return b.Bytes()
}

// build makes chunks of all lines of a source.
func build(tb testing.TB, s Source, b *Builder) (chunks []*Chunk, faults []*Fault) {
	tb.Helper()
	var l Line
	for {
		err := s.Next(context.Background(), &l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = b.Add(s, &l)
		}
		if err != nil {
			var f *Fault
			if !errors.As(err, &f) {
				tb.Fatal(err)
			}
			faults = append(faults, f)
		}
		if b.Full() {
			chunks = append(chunks, take(tb, b))
		}
	}
	if b.Len() > 0 {
		chunks = append(chunks, take(tb, b))
	}
	return chunks, faults
}

func take(tb testing.TB, b *Builder) *Chunk {
	tb.Helper()
	c, err := b.Take()
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func builder(tb testing.TB, lines int) *Builder {
	tb.Helper()
	b, err := NewBuilder(lines)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// benchmark reports the time of a line from its text to the compressed chunk.
func benchmark(b *testing.B, lines int, text []byte, open func([]byte) (Source, error)) {
	b.SetBytes(int64(len(text)))
	var bytes int
	before := processorTime(b)
	for b.Loop() {
		bl := builder(b, DefaultChunkLines)
		s, err := open(text)
		if err != nil {
			b.Fatal(err)
		}
		chunks, faults := build(b, s, bl)
		if len(faults) > 0 {
			b.Fatal(faults[0])
		}
		bytes = 0
		for _, c := range chunks {
			bytes += len(c.Wire)
		}
	}
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N)/float64(lines), "cpu-ns/line")
	b.ReportMetric(float64(bytes)/float64(lines), "wire-B/line")
}

// processorTime is that of this process, which says more than the time by the clock on a busy machine.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func reader(text []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(text)) }

func BenchmarkLines(b *testing.B) {
	const lines = 200_000
	list := samples(lines)
	openCSV := func(text []byte) (Source, error) { return OpenCSV("x.csv", reader(text), Dialect{}, Mapping{}) }
	openJSON := func(text []byte) (Source, error) { return OpenJSON("x.jsonl", reader(text), Mapping{}) }
	quoted := bytes.ReplaceAll(bytes.ReplaceAll(csvOf(list, false), []byte(","), []byte(`","`)), []byte("\n"), []byte("\"\n\""))
	quoted = append([]byte{'"'}, quoted[:len(quoted)-1]...)
	for _, c := range []struct {
		name string
		text []byte
		open func([]byte) (Source, error)
	}{
		{"csv", csvOf(list, false), openCSV},
		{"csv-keys", csvOf(list, true), openCSV},
		{"csv-quoted", quoted, openCSV},
		{"jsonl", jsonOf(list, false), openJSON},
		{"jsonl-keys", jsonOf(list, true), openJSON},
	} {
		b.Run(c.name, func(b *testing.B) { benchmark(b, lines, c.text, c.open) })
	}
}

// exported returns the export of tasks like those of a service in use: of all types, one-shot tasks more than others, with terms in
// many combinations, params with quotes and ends of lines, some that run, and some whose end, calendars or trace are their own.
func exported(tb testing.TB, list []sample) []byte {
	tb.Helper()
	var w line.Writer
	var text []byte
	rng := rand.New(rand.NewPCG(3, 4))
	for i, s := range list {
		at := task.At(s.begin)
		r := task.Row{
			ID: task.ID(i+1) * 512, Type: task.OneShot, State: task.Scheduled, DueAt: at, ScheduledAt: at, Anchor: at, Version: 1, CreatedAt: at.Add(-time.Hour),
			Terms: task.Terms{
				Kind: s.kind, Begin: at, End: task.Never, MaxCount: 1, AckTimeout: time.Duration(1+rng.IntN(3)) * time.Minute, GiveUpAfter: task.DefaultGiveUpAfter,
				Retention: time.Duration(rng.IntN(3)) * time.Hour,
				Retry: task.RetryPolicy{
					MaxAttempts: int32(1 + rng.IntN(5)), InitialBackoff: task.DefaultInitialBackoff, Multiplier: task.DefaultMultiplier,
					MaxBackoff: task.DefaultMaxBackoff, Jitter: float64(rng.IntN(3)) / 10,
				},
			},
		}
		entries := map[string]string{"order_id": fmt.Sprintf("ord-%09d", s.order), "user_id": fmt.Sprintf("u%07d", s.user), "note": "pay \"soon\"\n"}
		var err error
		if r.Params, err = (proto.MarshalOptions{Deterministic: true}).Marshal(&perceptorv1.Params{Entries: entries}); err != nil {
			tb.Fatal(err)
		}
		if share := rng.IntN(100); share >= 70 {
			r.Type, r.Interval, r.MaxCount, r.Seq = task.NonBlocking, s.interval, 0, int64(rng.IntN(500))
			r.Anchor = at.Add(-s.interval)
			switch {
			case share >= 95:
				r.End = at.Add(365 * 24 * time.Hour)
			case share >= 90:
				r.Type, r.State, r.Seq = task.Blocking, task.Running, r.Seq+1
			case share >= 85:
				r.Exclude = []string{"holidays"}
			}
		}
		if i%5 == 0 {
			r.Tags = []string{"campaign-7", fmt.Sprintf("region-%02d", rng.IntN(20))}
		}
		if i%2 == 0 {
			r.Key = s.key
		}
		if i%20 == 0 {
			r.TraceParent = fmt.Sprintf("00-%032x-%016x-01", i+1, i+1)
		}
		if text, err = w.Append(text, &r, task.Never, at); err != nil {
			tb.Fatal(err)
		}
	}
	return text
}

// BenchmarkRestore is the import of an export.
func BenchmarkRestore(b *testing.B) {
	const lines = 20_000
	text := exported(b, samples(lines))
	benchmark(b, lines, text, func(text []byte) (Source, error) { return OpenJSON("x.jsonl", reader(text), Mapping{Restore: true}) })
}
