package transfer

import (
	"bytes"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// parquetFile writes rows to a file and returns it.
func parquetFile[T any](tb testing.TB, rows []T, o ...parquet.WriterOption) []File {
	tb.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, o...)
	if _, err := w.Write(rows); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	files, err := Find([]string{write(tb, filepath.Join(tb.TempDir(), "x.parquet"), b.Bytes())})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

type typedRow struct {
	Kind  *string           `parquet:"kind,dict"`
	Type  string            `parquet:"type,enum,dict"`
	Begin *time.Time        `parquet:"begin_time,timestamp(microsecond)"`
	End   time.Time         `parquet:"end_time,optional,timestamp(millisecond)"`
	Wait  int64             `parquet:"interval"`
	Max   *int32            `parquet:"max_count"`
	Stop  bool              `parquet:"stop_on_failure"`
	Retry typedRetry        `parquet:"retry_policy"`
	Tags  []string          `parquet:"tags,list"`
	All   map[string]string `parquet:"params"`
	Key   string            `parquet:"idempotency_key,optional"`
}

type typedRetry struct {
	Max    int32   `parquet:"max_attempts"`
	Factor float64 `parquet:"multiplier"`
}

func TestColumnsOfAParquetFileHaveTheirTypes(t *testing.T) {
	t.Parallel()
	x, n, at := "x", int32(3), time.Date(2027, 1, 1, 1, 2, 3, 456_789_000, time.UTC)
	row := typedRow{
		Kind: &x, Type: "NON_BLOCKING", Begin: &at, End: at.AddDate(1, 0, 0), Wait: 60, Max: &n, Stop: true, Retry: typedRetry{7, 1.5}, Tags: []string{"b", "a,c"},
		All: map[string]string{"b": "2", "a": ""}, Key: "k",
	}
	empty := typedRow{Type: "BLOCKING", Wait: 1, Retry: typedRetry{1, 1}}
	rows := []typedRow{row, empty}
	for i := range 2000 { // several batches of values
		more := row
		more.Key, more.All = fmt.Sprintf("k-%d", i), map[string]string{"n": fmt.Sprint(i), "m": strings.Repeat("m", i%7)}
		rows = append(rows, more)
	}
	o := Options{Mapping: Mapping{Unit: time.Second, Defaults: &perceptorv1.Task{Kind: "d", Params: map[string]string{"z": "9"}}}}
	files := parquetFile(t, rows, parquet.MaxRowsPerRowGroup(700), parquet.PageBufferSize(2000), parquet.Compression(&parquet.Zstd))
	got, faults := tasksOf(t, Open(files, o))
	if len(faults) > 0 || len(got) != len(rows) {
		t.Fatalf("%d tasks, want %d; faults: %q", len(got), len(rows), faults)
	}
	const terms = `"kind":"x","type":"NON_BLOCKING","beginTime":"2027-01-01T01:02:03.456Z","endTime":"2028-01-01T01:02:03.456Z","interval":"60s","maxCount":"3","stopOnFailure":true,
		"retryPolicy":{"maxAttempts":7,"multiplier":1.5},"tags":["b","a,c"]`
	same(t, got[0], parsed(t, `{`+terms+`,"params":{"a":"","b":"2","z":"9"},"idempotencyKey":"k"}`))
	same(t, got[1], parsed(t, `{"kind":"d","type":"BLOCKING","interval":"1s","retryPolicy":{"maxAttempts":1,"multiplier":1},"params":{"z":"9"}}`))
	for i, task := range got[2:] {
		same(t, task, parsed(t, fmt.Sprintf(`{%s,"params":{"n":"%d","m":%q,"z":"9"},"idempotencyKey":"k-%d"}`, terms, i, strings.Repeat("m", i%7), i)))
	}
	p, err := NewPlan(t.Context(), files, o)
	if err != nil || !p.Exact || p.Lines != int64(len(rows)) {
		t.Errorf("the plan is %+v, %v", p, err)
	}
}

func TestNestedAndOtherColumnsOfAParquetFileAreParams(t *testing.T) {
	t.Parallel()
	type order struct {
		ID    uint64  `parquet:"id"`
		Price int64   `parquet:"price,decimal(2:9)"`
		Paid  float32 `parquet:"paid"`
	}
	type row struct {
		Kind   string   `parquet:"kind"`
		Params order    `parquet:"params"`
		Day    int32    `parquet:"day,date"`
		UUID   [16]byte `parquet:"uuid,uuid"`
		Junk   [3]byte  `parquet:"junk"`
	}
	files := parquetFile(t, []row{{"x", order{1 << 63, -5, 0.5}, 20_819, [16]byte{1, 15: 255}, [3]byte{0xff}}})
	o := Options{Mapping: Mapping{ParamsRest: true, Map: map[string]string{"junk": "-", "day": "begin_time"}, Defaults: &perceptorv1.Task{Type: perceptorv1.Task_ONE_SHOT}}}
	got, faults := tasksOf(t, Open(files, o))
	if len(faults) > 0 || len(got) != 1 {
		t.Fatalf("%d tasks, faults: %q", len(got), faults)
	}
	same(t, got[0], parsed(t, `{"kind":"x","type":"ONE_SHOT","beginTime":"2027-01-01T00:00:00Z","params":{"id":"9223372036854775808","price":"-0.05","paid":"0.5","uuid":"01000000-0000-0000-0000-0000000000ff"}}`))
}

func TestARowOfAParquetFileThatIsNotATextIsAFault(t *testing.T) {
	t.Parallel()
	type row struct {
		Kind string    `parquet:"kind"`
		Note []byte    `parquet:"params.note"`
		At   time.Time `parquet:"begin_time,timestamp(millisecond)"`
	}
	at := time.UnixMilli(1)
	files := parquetFile(t, []row{{"a", []byte("\xff"), at}, {"b", nil, time.UnixMilli(-1)}, {"c", []byte("é"), at}})
	o := Options{Mapping: Mapping{Defaults: &perceptorv1.Task{Type: perceptorv1.Task_ONE_SHOT}}}
	if got := kinds(t, Open(files, o)); !strings.HasPrefix(got, "c ") || !strings.Contains(got, ":1: params.note: is not valid UTF-8") || !strings.Contains(got, ":2: begin_time: 1969-12-31T23:59:59.999Z is not between") {
		t.Errorf("got %s", got)
	}
}

func TestDecimalsKeepTheirDigits(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		n     int64
		scale int
	}{"0": {0, 0}, "-12": {-12, 0}, "0.00": {0, 2}, "1.05": {105, 2}, "-0.005": {-5, 3}, "-123.4": {-1234, 1}} {
		if got := string(appendDecimal(nil, big.NewInt(c.n), c.scale)); got != want {
			t.Errorf("%d with scale %d is %s, want %s", c.n, c.scale, got, want)
		}
	}
}

func BenchmarkParquet(b *testing.B) {
	const lines = 200_000
	type row struct {
		Kind  string    `parquet:"kind,dict"`
		Type  string    `parquet:"type,dict"`
		Begin time.Time `parquet:"begin_time,timestamp(millisecond)"`
		Wait  int64     `parquet:"interval,dict"`
		Order string    `parquet:"params.order_id"`
		User  string    `parquet:"params.user_id"`
	}
	var rows []row
	for _, s := range samples(lines) {
		rows = append(rows, row{s.kind, "NON_BLOCKING", s.begin, int64(s.interval.Seconds()), fmt.Sprintf("ord-%09d", s.order), fmt.Sprintf("u%07d", s.user)})
	}
	files := parquetFile(b, rows, parquet.Compression(&parquet.Snappy), parquet.MaxRowsPerRowGroup(100_000))
	benchmark(b, lines, nil, func([]byte) (Source, error) { return Open(files, Options{Mapping: Mapping{Unit: time.Second}}), nil })
}
