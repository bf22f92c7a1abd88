package transfer

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// parsed is a task of the HTTP API's JSON.
func parsed(tb testing.TB, text string) *perceptorv1.Task {
	tb.Helper()
	t := &perceptorv1.Task{}
	if err := protojson.Unmarshal([]byte(text), t); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return t
}

// tasksOf returns the tasks of a source as the service would see them, and its faults as texts.
func tasksOf(tb testing.TB, s Source) (tasks []*perceptorv1.Task, faults []string) {
	tb.Helper()
	chunks, list := build(tb, s, builder(tb, 3)) // several chunks
	for _, c := range chunks {
		x, err := c.Open()
		if err != nil {
			tb.Fatal(err)
		}
		for i := range c.Lines {
			tasks = append(tasks, x.Task(i))
		}
	}
	for _, f := range list {
		faults = append(faults, f.Error())
	}
	return tasks, faults
}

func same(tb testing.TB, got, want any) {
	tb.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		tb.Errorf("(-want +got)\n%s", diff)
	}
}

func zone(tb testing.TB, name string) *time.Location {
	tb.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		tb.Fatal(err)
	}
	return z
}

func TestAColumnSetsTheFieldOfItsName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text, want string
		d          Dialect
		m          Mapping
	}{
		"all terms": {
			text: "kind,type,begin_time,end_time,interval,max_count,ack_timeout,give_up_after,stop_on_failure,misfire_policy,misfire_grace,retention,spread,tags,idempotency_key," +
				"retry_policy.max_attempts,initial_backoff,multiplier,max_backoff,jitter,params.user\n" +
				"mail,non-blocking,2027-01-02T03:04:05.678Z,2028-01-01,1h30m,7,90s,1d,true,skip,2m,3d,10m,\"a, b\",k-1,9,2s,1.5,1m,0.25,42\n",
			want: `{"kind":"mail","type":"NON_BLOCKING","beginTime":"2027-01-02T03:04:05.678Z","endTime":"2028-01-01T00:00:00Z","interval":"5400s","maxCount":"7","ackTimeout":"90s",
				"giveUpAfter":"86400s","stopOnFailure":true,"misfirePolicy":"SKIP","misfireGrace":"120s","retention":"259200s","spread":"600s","tags":["a","b"],"idempotencyKey":"k-1",
				"retryPolicy":{"maxAttempts":9,"initialBackoff":"2s","multiplier":1.5,"maxBackoff":"60s","jitter":0.25},"params":{"user":"42"}}`,
		},
		"names as in JSON, and a calendar": {
			text: "kind,type,beginTime,cron,timeZone,maxCount\nreport,NON_BLOCKING,2027-01-01 00:00:00+01,30 6 * * MON,Europe/Berlin,3\n",
			want: `{"kind":"report","type":"NON_BLOCKING","beginTime":"2026-12-31T23:00:00Z","cron":{"expression":"30 6 * * MON","timeZone":"Europe/Berlin"},"maxCount":"3"}`,
		},
		"day calendars": {
			text: "kind,type,interval,exclude_calendars,onlyCalendars,tags\nx,BLOCKING,1h,\"holidays,closed\",trading,a\ny,BLOCKING,1h,,,\n",
			m:    Mapping{Defaults: &perceptorv1.Task{ExcludeCalendars: []string{"default"}}},
			want: `{"kind":"x","type":"BLOCKING","interval":"3600s","excludeCalendars":["holidays","closed"],"onlyCalendars":["trading"],"tags":["a"]}
			       {"kind":"y","type":"BLOCKING","interval":"3600s","excludeCalendars":["default"]}`,
		},
		"a zone beside an interval means nothing": {
			text: "kind,type,interval,cron,time_zone\nx,BLOCKING,1m,,Europe/Berlin\n",
			want: `{"kind":"x","type":"BLOCKING","interval":"60s"}`,
		},
		"mapped and ignored columns, the rest as params": {
			text: "what;when;Order Id;junk;note\nmail;1799000000.25;7;x;\n", d: Dialect{Delimiter: ';'},
			m: Mapping{
				Map: map[string]string{"what": "kind", "when": "begin_time", "junk": "-"}, ParamsRest: true, Clock: Clock{Format: "unix-s"},
				Defaults: &perceptorv1.Task{Type: perceptorv1.Task_ONE_SHOT, Params: map[string]string{"note": "none", "a": "1"}},
			},
			want: `{"kind":"mail","type":"ONE_SHOT","beginTime":"2027-01-03T18:13:20.250Z","params":{"Order Id":"7","note":"none","a":"1"}}`,
		},
		"defaults": {
			text: "kind,interval\n,\nx,2h\n",
			m: Mapping{Defaults: &perceptorv1.Task{
				Kind: "d", Type: perceptorv1.Task_BLOCKING, BeginTime: timestamppb.New(time.UnixMilli(1799000000000)), Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "@daily"}},
			}},
			want: `{"kind":"d","type":"BLOCKING","beginTime":"2027-01-03T18:13:20Z","cron":{"expression":"@daily"}}
			       {"kind":"x","type":"BLOCKING","beginTime":"2027-01-03T18:13:20Z","interval":"7200s"}`,
		},
		"quotes, nulls, comments and ends of lines": {
			text: "\xef\xbb\xbf#\tby hand\r\n'kind'\ttype\tparams.a\tparams.b\r\n\r\n'x'\tONE_SHOT\t'it''s\r\n2'\tNULL\r\ny\tONE_SHOT\t''\t'NULL'",
			d:    Dialect{Delimiter: '\t', Quote: '\'', Comment: '#', Null: "NULL"},
			want: `{"kind":"x","type":"ONE_SHOT","params":{"a":"it's\r\n2"}}
			       {"kind":"y","type":"ONE_SHOT","params":{"a":"","b":"NULL"}}`,
		},
		"no header": {
			text: "x,ONE_SHOT,3600\n", d: Dialect{Header: []string{"kind", "type", "retention"}}, m: Mapping{Unit: time.Second},
			want: `{"kind":"x","type":"ONE_SHOT","retention":"3600s"}`,
		},
		"times in a zone": {
			text: "kind,type,begin_time\nx,ONE_SHOT,2027-07-01 12:00\n", m: Mapping{Clock: Clock{Zone: zone(t, "America/New_York")}},
			want: `{"kind":"x","type":"ONE_SHOT","beginTime":"2027-07-01T16:00:00Z"}`,
		},
		"all params in one column": {
			text: "kind,type,params\nx,ONE_SHOT,\"{\"\"b\"\":1,\"\"a\"\":\"\"t\"\",\"\"n\"\":null,\"\"o\"\":{\"\"c\"\":[]}}\"\n",
			want: `{"kind":"x","type":"ONE_SHOT","params":{"a":"t","b":"1","o":"{\"c\":[]}"}}`,
		},
		"a payload": {
			text: "kind,type,params.a,payload,payload.content_type\nx,ONE_SHOT,1,abc,text/plain\ny,ONE_SHOT,2,,\n",
			want: `{"kind":"x","type":"ONE_SHOT","params":{"a":"1"},"payload":{"data":"YWJj","contentType":"text/plain"}}
			       {"kind":"y","type":"ONE_SHOT","params":{"a":"2"}}`,
		},
		"a payload of JSON": {
			text: "kind,type,payload.json\nx,ONE_SHOT,\"{\"\"a\"\":[1]}\"\n", want: `{"kind":"x","type":"ONE_SHOT","payload":{"json":{"a":[1]}}}`,
		},
		"counts without restore mean nothing": {
			text: "kind,type,run_count,state\nx,ONE_SHOT,3,COMPLETED\n", want: `{"kind":"x","type":"ONE_SHOT"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := OpenCSV("x.csv", reader([]byte(c.text)), c.d, c.m)
			if err != nil {
				t.Fatal(err)
			}
			got, faults := tasksOf(t, s)
			if len(faults) > 0 {
				t.Errorf("faults: %q", faults)
			}
			var want []*perceptorv1.Task
			for _, text := range strings.SplitAfter(strings.TrimSpace(strings.ReplaceAll(c.want, "}\n\t\t\t       {", "}\x00{")), "\x00") {
				want = append(want, parsed(t, strings.Trim(text, "\x00")))
			}
			same(t, got, want)
		})
	}
}

func TestAFaultOfATableTellsLineColumnValueAndRule(t *testing.T) {
	t.Parallel()
	head := "kind,type,begin_time,interval,max_count,tags,params.a\n"
	for row, want := range map[string]string{
		"x,ONE_SHOT":                                      `x.csv:2: "x,ONE_SHOT": the line has 2 columns, and the header has 7`,
		"x,ONE_SHOT,,,,,,":                                `x.csv:2: "x,ONE_SHOT,,,,,,": the line has 8 columns, and the header has 7`,
		"x,ONE_SHOT,tomorrow,,,,":                         `x.csv:2: begin_time: "tomorrow": is not an instant such as 2026-01-31T12:00:00Z`,
		"x,ONE_SHOT,1969-12-31T23:59:59.999Z,,,,":         `x.csv:2: begin_time: "1969-12-31T23:59:59.999Z": 1969-12-31T23:59:59.999Z is not between 1970-01-01T00:00:00Z and 9000-01-01T00:00:00Z`,
		"x,ONE_SHOT,9999-01-01T00:00:00Z,,,,":             `x.csv:2: begin_time: "9999-01-01T00:00:00Z": 9999-01-01T00:00:00.000Z is not between 1970-01-01T00:00:00Z and 9000-01-01T00:00:00Z`,
		"x,ONE_SHOT,2027-02-29T00:00:00Z,,,,":             `x.csv:2: begin_time: "2027-02-29T00:00:00Z": is not an instant such as 2026-01-31T12:00:00Z`,
		"x,sometimes,,,,,":                                `x.csv:2: type: "sometimes": is not one of ONE_SHOT, NON_BLOCKING, BLOCKING`,
		"x,BLOCKING,,soon,,,":                             `x.csv:2: interval: "soon": is not a duration such as 90s, 36h or 1d12h`,
		"x,BLOCKING,,90,,,":                               `x.csv:2: interval: "90": is not a duration such as 90s, 36h or 1d12h: it has no unit, and no unit of numbers was chosen`,
		"x,BLOCKING,,P1M,,,":                              `x.csv:2: interval: "P1M": is not a duration such as 90s, 36h or 1d12h; years and months are not allowed`,
		"x,BLOCKING,,1s,many,,":                           `x.csv:2: max_count: "many": is not a whole number`,
		"x,BLOCKING,,1s,,[1],":                            `x.csv:2: tags: "[1]": is not a list of texts`,
		"x,ONE_SHOT,,,,,\xff":                             `x.csv:2: params.a: is not valid UTF-8`,
		`x,ONE_SHOT,,,,,a"b`:                              `x.csv:2: the quote in a cell without quotes: enclose the cell in " and double the quote`,
		`x,ONE_SHOT,,,,,"a"b`:                             `x.csv:2: a text follows the closing quote "`,
		`x,ONE_SHOT,,,,,"a`:                               `x.csv:2: a quote is not closed before the end of the file`,
		"x,ONE_SHOT,,,,," + strings.Repeat("a", MaxLine):  fmt.Sprintf("x.csv:2: the line has more than %d bytes", MaxLine),
		`x,ONE_SHOT,,,,,"` + strings.Repeat("a", MaxLine): fmt.Sprintf("x.csv:2: the line has more than %d bytes", MaxLine),
		"\"" + strings.Repeat("a\n", MaxLine):             fmt.Sprintf("x.csv:2: a quote is not closed within %d bytes", MaxLine),
		strings.Repeat(",", MaxColumns+1) + `"`:           fmt.Sprintf("x.csv:2: the line has more than %d columns", MaxColumns),
	} {
		s, err := OpenCSV("x.csv", reader([]byte(head+row+"\ngood,ONE_SHOT,,,,,\n")), Dialect{}, Mapping{})
		if err != nil {
			t.Fatal(err)
		}
		tasks, faults := tasksOf(t, s)
		if len(faults) == 0 || faults[0] != want {
			t.Errorf("%.60q: the faults are %.300q, want %q", row, faults, want)
		}
		if n := len(tasks); n == 0 || tasks[n-1].Kind != "good" {
			t.Errorf("%.60q: the line after it is lost", row)
		}
	}
}

func TestATableWithoutMeaningIsRefused(t *testing.T) {
	t.Parallel()
	wide := strings.Repeat("a,", MaxColumns) + "b\n"
	for text, want := range map[string]string{
		"":                                "the file is empty: it has no header",
		"kind,type,knd\n":                 `no field has the name of column "knd"`,
		"type\n":                          "no column is the kind of a task",
		"kind\n":                          "no column is the type of a task",
		"kind,type,begin,begin_time\n":    `the columns "begin" and "begin_time" both mean begin_time`,
		"kind,type,params,params.a\n":     `the column "params" has all params`,
		"kind,ty\xffpe\n":                 "the header is not valid UTF-8",
		"kind,\"type\n":                   "a quote is not closed",
		"\xff\xfek\x00":                   "the text is in UTF-16",
		"\x7fELF\x00\x01\x02":             "this is not a text",
		strings.Repeat("k", MaxLine+1):    "more than",
		wide:                              "the table has 1001 columns; at most 1000 are allowed",
		strings.Repeat("k", 100) + ",,\n": `no field has the name of column`,
	} {
		_, err := OpenCSV("x.csv", reader([]byte(text)), Dialect{}, Mapping{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	for to, want := range map[string]string{"kin": "is not a field of a task", "kind": "both mean kind"} {
		_, err := OpenCSV("x.csv", reader([]byte("kind,type,a\n")), Dialect{}, Mapping{Map: map[string]string{"a": to}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a column mapped to %s: %v, want %q", to, err, want)
		}
	}
	if _, err := OpenCSV("x.csv", reader([]byte("kind,type\n")), Dialect{}, Mapping{Map: map[string]string{"a": "kind"}}); err == nil || !strings.Contains(err.Error(), "no such column") {
		t.Errorf("a mapped column that is not there: %v", err)
	}
}

func TestWithRestoreColumnsTellHowFarATaskHasCome(t *testing.T) {
	t.Parallel()
	const text = "kind,type,interval,run_count,missed_count,paused,scheduled_time,anchor_time,state\n" +
		"x,NON_BLOCKING,1h,3,1,true,2027-01-01T00:00:00Z,2027-01-01T01:00:00Z,SCHEDULED\nx,NON_BLOCKING,1h,,,,,,\nx,NON_BLOCKING,1h,,,,,,COMPLETED\nx,NON_BLOCKING,1h,-1,,,,,\n"
	s, err := OpenCSV("x.csv", reader([]byte(text)), Dialect{}, Mapping{Restore: true})
	if err != nil {
		t.Fatal(err)
	}
	chunks, faults := build(t, s, builder(t, 10))
	x, err := chunks[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	same(t, x.States, &perceptorv1.LineStates{
		ScheduledMs: []int64{1798761600000, 0}, RunCount: []int64{3, 0}, MissedCount: []int64{1, 0}, Paused: []bool{true, false}, AnchorMs: []int64{1798765200000, 0},
	})
	if len(faults) != 2 || faults[0].Field != "state" || faults[1].Field != "run_count" {
		t.Errorf("faults: %v", faults)
	}
}

// FuzzCSVIsReadAsByTheLibrary holds the reader against encoding/csv.
func FuzzCSVIsReadAsByTheLibrary(f *testing.F) {
	for _, text := range []string{"a,b\n1,2\n", "\"a\nb\",\"c\"\"d\"\n,\n", "a\"b\n", "\"a\"b\n", "\"a", "a,b,c\n\n\nd", `"",""`, "\"\"\"\"\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(text, "\r\x00") || strings.HasPrefix(text, "\xef\xbb\xbf") || strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") || len(text) > 4096 {
			t.Skip("the library treats these differently")
		}
		l := csv.NewReader(strings.NewReader(text))
		l.FieldsPerRecord = -1
		want, failed := l.ReadAll()
		var got [][]string
		r := newCSVReader(&shortReader{text: text}, Dialect{})
		r.buf = make([]byte, 4) // it grows
		faulty := false
		for {
			_, _, err := r.record()
			if errors.Is(err, io.EOF) {
				break
			}
			var fault *Fault
			if errors.As(err, &fault) {
				faulty = true
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			var cells []string
			for _, c := range r.cells {
				cells = append(cells, string(c))
			}
			got = append(got, cells)
		}
		if faulty != (failed != nil) {
			t.Fatalf("faulty %t, and the library says %v", faulty, failed)
		}
		if !faulty && !cmp.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// shortReader reads a few bytes at a time.
type shortReader struct {
	text string
	n    int
}

func (r *shortReader) Read(p []byte) (int, error) {
	if r.text == "" {
		return 0, io.EOF
	}
	r.n = r.n%3 + 1
	n := copy(p[:min(len(p), r.n)], r.text)
	r.text = r.text[n:]
	return n, nil
}

func TestLineNumbersCountTheLinesWithinQuotes(t *testing.T) {
	t.Parallel()
	text := "kind,type,params.a\nx,ONE_SHOT,\"1\n2\n3\"\nx,ONE_SHOT,4\nx,,\"5\n6\"\nbad\nx,ONE_SHOT,7\n"
	s, err := OpenCSV("x.csv", reader([]byte(text)), Dialect{}, Mapping{Defaults: &perceptorv1.Task{Type: perceptorv1.Task_BLOCKING, Schedule: &perceptorv1.Task_Interval{Interval: durationpb.New(time.Hour)}}})
	if err != nil {
		t.Fatal(err)
	}
	chunks, faults := build(t, s, builder(t, 10))
	var lines []int64
	for i := range chunks[0].Lines {
		lines = append(lines, chunks[0].Position(i).Line)
	}
	same(t, lines, []int64{2, 5, 6, 9})
	if len(faults) != 1 || faults[0].Line != 8 {
		t.Errorf("faults: %v, want one in line 8", faults)
	}
}

func TestTheSameInputMakesTheSameChunks(t *testing.T) {
	t.Parallel()
	text := csvOf(samples(5000), true)
	all := func() (wires [][]byte, sum uint64) {
		s, err := OpenCSV("x.csv", reader(text), Dialect{}, Mapping{})
		if err != nil {
			t.Fatal(err)
		}
		chunks, _ := build(t, s, builder(t, 700))
		for _, c := range chunks {
			wires, sum = append(wires, c.Wire), sum+c.Sum
		}
		return wires, sum
	}
	first, sum := all()
	second, again := all()
	if len(first) != 8 || !cmp.Equal(first, second) || sum != again {
		t.Errorf("%d and %d chunks with sums %x and %x, which must be equal", len(first), len(second), sum, again)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines[1], lines[4000] = lines[4000], lines[1]
	text = bytes.Join(lines, nil)
	if _, turned := all(); turned != sum {
		t.Errorf("the sum of the same lines in another order is %x, want %x", turned, sum)
	}
}

func TestParamsAreInCanonicalForm(t *testing.T) {
	t.Parallel()
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: map[string]string{"b": "", "a": "1", "": "x", "aa": strings.Repeat("é", 200)}})
	if err != nil {
		t.Fatal(err)
	}
	got, distinct := appendParams(nil, []param{{[]byte("b"), nil}, {[]byte("aa"), []byte(strings.Repeat("é", 200))}, {nil, []byte("x")}, {[]byte("a"), []byte("1")}})
	if !distinct || !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if v, found := paramValue(got, "aa"); !found || len(v) != 400 {
		t.Errorf("the value of aa has %d bytes, want 400", len(v))
	}
	if _, distinct := appendParams(nil, []param{{[]byte("a"), nil}, {[]byte("a"), nil}}); distinct {
		t.Error("the same key twice is accepted")
	}
}
