package transfer

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func openJSON(tb testing.TB, text string, m Mapping) *jsonSource {
	tb.Helper()
	s, err := OpenJSON("x.jsonl", reader([]byte(text)), m)
	if err != nil {
		tb.Fatal(err)
	}
	return s.(*jsonSource)
}

// seeds are lines of all forms.
var seeds = []string{
	`{"kind":"x","type":"ONE_SHOT","beginTime":"2027-01-01T00:00:00Z","params":{"b":"1","a":"\"\n\\"},"idempotencyKey":"k"}`,
	`{"kind":"x","type":"NON_BLOCKING","interval":"3600s","begin_time":"2027-01-01T01:00:00.123456+01:00","tags":["b","a"]}`,
	` { "kind" : "x" , "type" : 2 , "cron" : { "expression" : "0 0 * * *", "timeZone" : "Europe/Berlin" } , "maxCount" : "3" } `,
	`{"kind":"x","type":"BLOCKING","interval":"1s","retryPolicy":{"maxAttempts":3,"jitter":0},"stopOnFailure":true,"params":{"é":"\u00e9"}}`,
	`{"id":"7","kind":"x","type":"ONE_SHOT","state":"SCHEDULED","paused":true,"runCount":"2","missedCount":"1","scheduledTime":"2027-01-01T00:00:00Z","version":1,"attempt":0,"openRunCount":0,` +
		`"dueTime":"2027-01-01T00:00:00Z","createTime":"2026-01-01T00:00:00Z","readTime":"2026-01-01T00:00:00Z","anchorTime":"2027-01-01T00:00:00Z"}`,
	`{"kind":"x","kind":"y"}`, `{"beginTime":null,"params":null,"kind":null,"idempotencyKey":null}`, `{"params":{"a":"1","a":"2"}}`, `{"kind":}`, `{"kind":"x"} x`, `{}`, `[]`, ``, `{"kind":1}`,
	`{"beginTime":"1969-12-31T23:59:59Z"}`, `{"beginTime":"9999-12-31T23:59:59Z"}`, `{"beginTime":"2027-02-30T00:00:00Z"}`, `{"params":{"a":1}}`, `{"kind":"x"]`, `{"cron":{"expression":"x"]}`,
	`{"runCount":-1}`, `{"runCount":1e2}`, `{"runCount":"01"}`, `{"id":"x"}`, `{"paused":"true"}`, `{"state":"RUNNING","runCount":"1"}`, `{"state":"COMPLETED"}`, `{"kind":"\ud800"}`, `{"kind":"` + "\x01" + `"}`,
	`{"maxCount":1,"max_count":2}`, `{"interval":"1s","cron":{"expression":"@daily"}}`, `{"traceParent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`, `{"kind":"x",}`, `{"unknown":1}`, "{\"kind\":\"\xff\"}",
	`{"kind":"x","payload":{"data":"YWJj","contentType":"text/plain"},"params":{"a":"1"}}`, `{"payload":{"json":{"a":[1,null]}}}`, `{"payload":{"data":"?"}}`,
	`{"kind":"x","params":{"a":"\u000a\u00e9\u20AC"},"overlap":"SKIP","excludeCalendars":["a"],"only_calendars":["b","c"]}`, `{"params":{"a":"\ud83d\ude00"}}`, `{"params":{"a":"\u12"}}`, `{"params":{"a":"\u00g0"}}`,
	`{"replayOf":"7.1","backfillOf":"7","backfillId":8,"finishTime":"2027-01-01T00:00:00Z"}`, `{"backfillOf":"x"}`, `{"replayOf":7}`, `{"state":"RUNNING"}`, `{"state":"RUNNING","runCount":"0","paused":true}`,
	`{"plannedTime":"x"}`, `{"state":"RUNNING","runCount":"1","planned_time":"2027-01-01T00:00:00Z"}`, `{"anchorTime":"x"}`, `{"anchorTime":1}`, `{"readTime":{}}`, `{"version":99999999999}`, `{"attempt":"3"}`, `{"finishTime":"2027-01-01T00:00:00Z"}`, `{"paused":true}`, `{"paused":tru}`, `{"runCount":5`,
}

// FuzzTheFastFormMeansTheSame holds the fast parser against protojson.
func FuzzTheFastFormMeansTheSame(f *testing.F) {
	for _, line := range seeds {
		f.Add(line, false)
		f.Add(line, true)
	}
	defaults := &perceptorv1.Task{Kind: "d", Params: map[string]string{"a": "0", "z": "9"}, Tags: []string{"t"}, Schedule: &perceptorv1.Task_Interval{Interval: durationpb.New(time.Hour)}}
	f.Fuzz(func(t *testing.T, text string, restore bool) {
		if strings.ContainsRune(text, '\n') {
			t.Skip("a line has no end of line in it")
		}
		raw := []byte(text)
		fast, slow := openJSON(t, "", Mapping{Restore: restore, Defaults: defaults}), openJSON(t, "", Mapping{Restore: restore, Defaults: defaults})
		var a, b Line
		fast.raw, slow.raw = raw, raw
		if !fast.fast(&a, raw) {
			return
		}
		x, templateErr := fast.Template(&a)
		err := slow.slow(&b, raw)
		if (templateErr != nil) != (err != nil) {
			t.Fatalf("%q: the fast form says %v, protojson %v", raw, templateErr, err)
		}
		if err != nil {
			return
		}
		y, err := slow.Template(&b)
		if err != nil {
			t.Fatal(err)
		}
		if a.Begin != b.Begin || !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Params, b.Params) || a.State != b.State || !proto.Equal(x, y) {
			t.Errorf("%q:\nfast %v %q %q %v %v\nslow %v %q %q %v %v", raw, a.Begin, a.Key, a.Params, a.State, x, b.Begin, b.Key, b.Params, b.State, y)
		}
	})
}

func TestUsualLinesTakeTheFastPath(t *testing.T) {
	t.Parallel()
	for _, line := range seeds[:5] {
		s := openJSON(t, "", Mapping{Restore: true})
		if !s.fast(&Line{}, []byte(line)) {
			t.Errorf("%s is read by protojson", line)
		}
	}
}

// TestEveryLineOfAnExportTakesTheFastPath fails if a term is added that the fast form does not know.
func TestEveryLineOfAnExportTakesTheFastPath(t *testing.T) {
	t.Parallel()
	for text := range bytes.Lines(exported(t, samples(1000))) {
		s := openJSON(t, "", Mapping{Restore: true})
		if !s.fast(&Line{}, text) {
			t.Fatalf("%s is read by protojson", text)
		}
	}
	fields := (&perceptorv1.Task{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		for _, name := range []string{fields.Get(i).JSONName(), string(fields.Get(i).Name())} {
			if !slices.ContainsFunc([]string{`"7"`, `7`, `true`, `{}`, `"2027-01-01T00:00:00Z"`, `"SCHEDULED"`}, func(value string) bool {
				return openJSON(t, "", Mapping{Restore: true}).fast(&Line{}, []byte(`{"`+name+`":`+value+`}`))
			}) {
				t.Errorf("a line with the field %s is read by protojson", name)
			}
		}
	}
}

func TestALineIsTheJSONOfTheAPI(t *testing.T) {
	t.Parallel()
	text := seeds[0] + "\n\n  \r\n" + seeds[1] + "\r\n" + seeds[3] + "\n" + `{"type":"ONE_SHOT","beginTime":"2027-01-01T00:00:00Z"}` + "\n" + `{"type":"ONE_SHOT","onlyCalendars":["own"]}`
	s := openJSON(t, text, Mapping{Defaults: &perceptorv1.Task{Kind: "d", Tags: []string{"t"}, OnlyCalendars: []string{"c"}, Params: map[string]string{"a": "0", "z": "9"}}})
	got, faults := tasksOf(t, s)
	same(t, got, []*perceptorv1.Task{
		parsed(t, `{"kind":"x","type":"ONE_SHOT","beginTime":"2027-01-01T00:00:00Z","params":{"b":"1","a":"\"\n\\","z":"9"},"idempotencyKey":"k","tags":["t"],"onlyCalendars":["c"]}`),
		parsed(t, `{"kind":"x","type":"NON_BLOCKING","interval":"3600s","beginTime":"2027-01-01T00:00:00.123Z","tags":["b","a"],"params":{"a":"0","z":"9"},"onlyCalendars":["c"]}`),
		parsed(t, `{"kind":"x","type":"BLOCKING","interval":"1s","retryPolicy":{"maxAttempts":3,"jitter":0},"stopOnFailure":true,"params":{"é":"é","a":"0","z":"9"},"tags":["t"],"onlyCalendars":["c"]}`),
		parsed(t, `{"kind":"d","type":"ONE_SHOT","beginTime":"2027-01-01T00:00:00Z","tags":["t"],"params":{"a":"0","z":"9"},"onlyCalendars":["c"]}`),
		parsed(t, `{"kind":"d","type":"ONE_SHOT","onlyCalendars":["own"],"tags":["t"],"params":{"a":"0","z":"9"}}`),
	})
	if len(faults) > 0 {
		t.Errorf("faults: %q", faults)
	}
}

func TestAFaultOfALineTellsKeyValueAndRule(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"kind":"x","knd":"y"}`:                          `x.jsonl:1: knd: no field has this name`,
		`{"kind":"x","beginTime":"tomorrow"}`:             `x.jsonl:1: beginTime: "tomorrow": is not an instant such as 2026-01-31T12:00:00Z`,
		`{"kind":"x","beginTime":"9999-01-01T00:00:00Z"}`: `x.jsonl:1: beginTime: "9999-01-01T00:00:00Z": 9999-01-01T00:00:00.000Z is not between 1970-01-01T00:00:00Z and 9000-01-01T00:00:00Z`,
		`{"kind":"x","interval":"soon"}`:                  `x.jsonl:1: interval: "soon": is not a duration in seconds such as 3600s`,
		"{\"kind\":\"\xff\"}":                             `x.jsonl:1: is not valid UTF-8`,
		`{"retryPolicy":{"maxAttempts":"many"}}`:          `x.jsonl:1: retryPolicy.maxAttempts: "many": is not a whole number that fits`,
		`not JSON`:                                        `x.jsonl:1: not is not valid JSON here`,
		`{"kind":"x"`:                                     `x.jsonl:1: is not a task in JSON: the line ends too early`,
		`{"kind":"x",}`:                                   `x.jsonl:1: kind: } is not valid JSON here`,
		`{"tags":"x"}`:                                    `x.jsonl:1: tags: "x": "x" is not valid JSON here, or not of this field's type`,
		`{"type":"FOO"}`:                                  `x.jsonl:1: type: "FOO": is not a value of this field`,
		`{"cron":{"expression":"x"},"interval":"3s"}`:     `x.jsonl:1: interval: "3s": the task has another schedule already`,
		strings.Repeat("x", MaxLine+1):                    `x.jsonl:1: the line has more than 1048576 bytes`,
	} {
		s := openJSON(t, line+"\n"+seeds[0]+"\n", Mapping{})
		tasks, faults := tasksOf(t, s)
		if len(faults) != 1 || !strings.HasPrefix(faults[0], want) || strings.Contains(faults[0], "google.protobuf") {
			t.Errorf("%.60q: the faults are %.300q, want %q", line, faults, want)
		}
		if len(tasks) != 1 {
			t.Errorf("%.60q: %d tasks are left, want 1", line, len(tasks))
		}
	}
}

func TestARunningTaskIsRestoredSoThatItsOpenRunFiresAgain(t *testing.T) {
	t.Parallel()
	s := openJSON(t, `{"kind":"x","type":"BLOCKING","interval":"60s","state":"RUNNING","runCount":"3","scheduledTime":"2027-01-01T00:00:00Z","anchorTime":"2026-01-01T00:00:00Z"}`, Mapping{Restore: true})
	var l Line
	if err := s.Next(t.Context(), &l); err != nil {
		t.Fatal(err)
	}
	same(t, l.State, State{Scheduled: 1798761600000, Anchor: 1767225600000, Runs: 2})
}

func TestATriggeredRunDoesNotMoveTheInstantThatWasPlannedBeforeIt(t *testing.T) {
	t.Parallel()
	const line = `{"kind":"x","type":"BLOCKING","interval":"60s","state":"RUNNING","runCount":"3","scheduledTime":"2026-01-01T00:00:00Z","plannedTime":"2027-01-01T00:00:00Z"}`
	for _, restore := range []bool{true, false} {
		s, l := openJSON(t, line, Mapping{Restore: restore}), Line{}
		if err := s.Next(t.Context(), &l); err != nil {
			t.Fatal(err)
		}
		want := State{}
		if restore {
			want = State{Scheduled: 1798761600000, Runs: 3}
		}
		same(t, l.State, want)
	}
}

func TestTasksOfAnotherProgramAreASource(t *testing.T) {
	t.Parallel()
	list := []Found{
		{At: Position{"table", 7}, Task: parsed(t, seeds[0]), State: State{Runs: 4}},
		{At: Position{"table", 8}, Task: parsed(t, `{"beginTime":"1969-01-01T00:00:00Z"}`)},
	}
	next := tasksOfList(list)
	chunks, faults := build(t, FromTasks(&perceptorv1.Task{Tags: []string{"moved"}}, next, nil), builder(t, 10))
	x, err := chunks[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	want := parsed(t, seeds[0])
	want.Tags = []string{"moved"}
	same(t, x.Task(0), want)
	same(t, x.States.RunCount, []int64{4})
	if len(faults) != 1 || faults[0].Line != 8 || faults[0].Field != "begin_time" {
		t.Errorf("faults: %v", faults)
	}
}

// FuzzTimesAreReadAsByTheLibrary holds the reader of instants against time.Parse.
func FuzzTimesAreReadAsByTheLibrary(f *testing.F) {
	for _, text := range []string{"2027-01-01T00:00:00Z", "2028-02-29T23:59:59.999999999+14:00", "1969-12-31T23:59:59.9Z", "0001-01-01T00:00:00-00:01", "2027-13-01T00:00:00Z", "2027-01-01T24:00:00Z", "9999-12-31T23:59:60Z"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ms, zoned, ok := parseDateTime([]byte(text), true)
		if !ok {
			return
		}
		want, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || !zoned {
			t.Fatalf("%q is read as %d, and the library says %v", text, ms, err)
		}
		if ms != want.UnixMilli() {
			t.Errorf("%q is read as %d, want %d", text, ms, want.UnixMilli())
		}
	})
}

func TestAnswersOfFaultsAreErrorsOfTheirType(t *testing.T) {
	t.Parallel()
	var f *Fault
	if err := located(&Fault{Rule: "r"}, Position{"a", 3}); !errors.As(err, &f) || f.Line != 3 || f.Error() != "a:3: r" {
		t.Errorf("got %v", err)
	}
}
