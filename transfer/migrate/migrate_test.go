package migrate

import (
	"encoding/base64"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func simple(change func(*trigger)) *trigger {
	t := &trigger{
		Group: "g", Name: "n", JobGroup: "DEFAULT", JobName: "mail", State: "WAITING", Type: "SIMPLE", Next: 1_900_000_000_000, Start: 1_899_999_000_000,
		Priority: 5, RepeatCount: -1, RepeatInterval: 500_000, Triggered: 2,
	}
	change(t)
	return t
}

func TestMisfireInstructionsHaveTheirPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		t    *trigger
		want perceptorv1.Task_MisfirePolicy
		note bool
	}{
		"smart, once":    {simple(func(t *trigger) { t.RepeatCount = 0 }), perceptorv1.Task_FIRE_ONCE, false},
		"smart, some":    {simple(func(t *trigger) { t.RepeatCount = 4 }), perceptorv1.Task_FIRE_ONCE, true},
		"smart, forever": {simple(func(*trigger) {}), perceptorv1.Task_SKIP, false},
		"ignore":         {simple(func(t *trigger) { t.Misfire = misfireIgnore }), perceptorv1.Task_FIRE_ALL, false},
		"fire now":       {simple(func(t *trigger) { t.Misfire = misfireFireNow }), perceptorv1.Task_FIRE_ONCE, false},
		"now, remaining": {simple(func(t *trigger) { t.Misfire = simpleNowRemaining }), perceptorv1.Task_FIRE_ONCE, true},
		"next":           {simple(func(t *trigger) { t.Misfire = simpleNextExisting }), perceptorv1.Task_SKIP, false},
		"cron, smart":    {simple(func(t *trigger) { t.Type, t.Expression, t.Zone = "CRON", "0 0 9 * * ?", "UTC" }), perceptorv1.Task_FIRE_ONCE, false},
		"cron, do nothing": {simple(func(t *trigger) {
			t.Type, t.Expression, t.Zone, t.Misfire = "CRON", "0 0 9 * * ?", "UTC", cronDoNothing
		}), perceptorv1.Task_SKIP, false},
		"cron, ignore": {simple(func(t *trigger) {
			t.Type, t.Expression, t.Zone, t.Misfire = "CRON", "0 0 9 * * ?", "UTC", misfireIgnore
		}), perceptorv1.Task_FIRE_ALL, false},
		"interval, nothing": {simple(func(t *trigger) { t.Type, t.Unit, t.Interval, t.Misfire = "CAL_INT", "HOUR", 3, cronDoNothing }), perceptorv1.Task_SKIP, false},
	} {
		i := c.t.item()
		if i.Task == nil || i.Task.MisfirePolicy != c.want || len(i.Notes) > 0 != c.note {
			t.Errorf("%s: %v, %s, notes %q", name, i.Task, i.Reason, i.Notes)
		}
	}
}

func TestCronExpressionsAtNightHaveANoteWhereTheClockChanges(t *testing.T) {
	for expression, want := range map[string]bool{"0 0 9 * * ?": false, "0 30 2 * * ?": true, "0 0 9,2 * * ?": true, "0 0 * * * ?": true, "0 0 5,17 * * ?": false, "0 0 1-5 * * ?": true} {
		for zone, changes := range map[string]bool{"Europe/Berlin": true, "UTC": false} {
			i := simple(func(t *trigger) { t.Type, t.Expression, t.Zone = "CRON", expression, zone }).item()
			if len(i.Notes) > 0 != (want && changes) {
				t.Errorf("%s in %s: %q", expression, zone, i.Notes)
			}
		}
	}
}

func TestASimpleTriggerGoesOnWhereItWas(t *testing.T) {
	i := simple(func(t *trigger) { t.RepeatCount, t.State, t.Exclusive, t.Priority = 9, "PAUSED_BLOCKED", true, 7 }).item()
	if i.Task.MaxCount != 10 || i.Runs != 2 || i.Next != 1_900_000_000_000 || i.Last != 1_899_999_500_000 || !i.Paused ||
		i.Task.GetInterval().AsDuration() != 500*time.Second || i.Task.BeginTime.AsTime().UnixMilli() != 1_899_999_000_000 ||
		i.Task.Overlap != perceptorv1.Task_Overlap_BUFFER_ONE || len(i.Notes) != 3 || i.Task.Kind != "mail" || i.Task.IdempotencyKey != "quartz:g.n" {
		t.Errorf("%+v", i)
	}
}

func TestTriggersWithoutCounterpartSayWhy(t *testing.T) {
	for want, c := range map[string]*trigger{
		"will not fire again":         simple(func(t *trigger) { t.Next = -1 }),
		"will not fire  again":        simple(func(t *trigger) { t.State = "COMPLETE" }),
		`scheduler "A" has a trigger`: simple(func(t *trigger) { t.Twin = "A" }),
		`calendar "holidays"`:         simple(func(t *trigger) { t.Calendar = "holidays" }),
		"next fire time 9999-12-31":   simple(func(t *trigger) { t.Next = 253_402_214_400_000 }),
		"type BLOB":                   simple(func(t *trigger) { t.Type = "BLOB" }),
		`time zone "GMT+02:00"`:       simple(func(t *trigger) { t.Type, t.Zone = "CRON", "GMT+02:00" }),
		"unit DECADE":                 simple(func(t *trigger) { t.Type, t.Unit = "CAL_INT", "DECADE" }),
		"within a second":             simple(func(t *trigger) { t.Type, t.Unit, t.IntervalZone, t.Start = "CAL_INT", "DAY", "UTC", 1 }),
		"cannot be a kind":            simple(func(t *trigger) { t.JobName = strings.Repeat("x", 101) }),
		"its data cannot be params":   simple(func(t *trigger) { t.Data = []byte(streamMagic + "\x70") }),
		"its data cannot  be params":  simple(func(t *trigger) { t.Data = []byte("a=\\u12") }),
		"February 29": simple(func(t *trigger) {
			t.Type, t.Unit, t.IntervalZone, t.Start = "CAL_INT", "YEAR", "UTC", time.Date(2032, 2, 29, 0, 0, 0, 0, time.UTC).UnixMilli()
		}),
	} {
		if i := c.item(); i.Task != nil || !strings.Contains(i.Reason, strings.ReplaceAll(want, "  ", " ")) {
			t.Errorf("%q: %+v", want, i)
		}
	}
}

func TestTheEndOfATriggerIsThatOfItsTask(t *testing.T) {
	const end = 1_900_000_900_000
	for name, c := range map[string]struct {
		typ  string
		end  int64
		want int64 // 0: none
	}{
		"an interval does not fire at its end": {"SIMPLE", end, end},
		"a cron trigger does":                  {"CRON", end, end + 1},
		"no end":                               {"CRON", 0, 0},
		"the end of time":                      {"CRON", math.MaxInt64, 0},
		"the end of time, of an interval":      {"SIMPLE", math.MaxInt64, 0},
	} {
		i := simple(func(t *trigger) { t.Type, t.End, t.Expression, t.Zone = c.typ, c.end, "0 0 9 * * ?", "UTC" }).item()
		got := int64(0)
		if i.Task.EndTime != nil {
			got = i.Task.EndTime.AsTime().UnixMilli()
		}
		if got != c.want {
			t.Errorf("%s: end_time %d, want %d", name, got, c.want)
		}
	}
}

func TestKeysTellAllNamesApart(t *testing.T) {
	seen := map[string]string{}
	for _, c := range [][2]string{{"a.b", "c"}, {"a", "b.c"}, {"a%2Eb", "c"}, {"ä", "x"}, {strings.Repeat("g", 200), "n"}, {strings.Repeat("g", 200), "m"}, {"a b", "c"}} {
		tr := simple(func(t *trigger) { t.Group, t.Name = c[0], c[1] })
		key := tr.item().Task.IdempotencyKey
		if other := seen[key]; other != "" || len(key) > 128 {
			t.Errorf("%v has the key %q of %s", c, key, other)
		}
		seen[key] = tr.name()
	}
}

func TestInstantsThatNoTaskCanHaveHaveNoCounterpart(t *testing.T) {
	for at, want := range map[int64]string{math.MaxInt64: "never", 568_971_820_800_000: "20000-01-01", -1: "1969-12-31"} {
		for field, i := range map[string]*Item{
			"execution_time": (&execution{Name: "k", Instance: "i", At: at}).item(), "scheduled_at": (&job{Kind: "k", State: "scheduled", At: at}).item(),
		} {
			if i.Task != nil || !strings.Contains(i.Reason, "its "+field+" "+want) {
				t.Errorf("%s %d: %+v", field, at, i)
			}
		}
	}
}

func TestKeysTellAllExecutionsApart(t *testing.T) {
	seen := map[string]string{}
	for _, c := range [][2]string{{"a/b", "c"}, {"a", "b/c"}, {"a%2Fb", "c"}, {"a", "b%2Fc"}, {"mail", "42"}} {
		key := (&execution{Name: c[0], Instance: c[1], At: 1}).item().Task.IdempotencyKey
		if other := seen[key]; other != "" {
			t.Errorf("%q has the key %q of %s", c, key, other)
		}
		seen[key] = fmt.Sprintf("%q", c)
	}
	if seen["db-scheduler:mail/42"] == "" {
		t.Errorf("keys %v", seen)
	}
}

func TestPropertiesAreReadAsJavaWritesThem(t *testing.T) {
	got, err := readProperties([]byte("#\n#Wed Nov 25\na=1\nb\\ c\\=d=\\ x \\u4e16\\n\\\\ \\: y\n! note\nempty=\n\\#k=\\!v\n"))
	want := map[string]string{"a": "1", "b c=d": " x 世\n\\ : y", "empty": "", "#k": "!v"}
	if err != nil || len(got) != len(want) {
		t.Fatalf("%q, %v", got, err)
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%q is %q, want %q", k, got[k], v)
		}
	}
}

func TestJobsOfRiverThatDoNotWaitHaveNoCounterpart(t *testing.T) {
	for state, want := range map[string]string{"pending": "pending", "completed": "it is completed", "cancelled": "it is cancelled"} {
		if i := (&job{ID: 1, Kind: "k", State: state}).item(); i.Task != nil || !strings.Contains(i.Reason, want) {
			t.Errorf("%s: %+v", state, i)
		}
	}
	i := (&job{ID: 1, Kind: "k", State: "running", Queue: "default", MaxAttempts: 3, Attempt: 3, Args: []byte(`[1]`)}).item()
	if i.Task.RetryPolicy.MaxAttempts != 1 || i.Task.Params["args"] != "[1]" || len(i.Notes) != 1 {
		t.Errorf("%+v", i)
	}
}

func TestExecutionsOfDBSchedulerKeepTheirData(t *testing.T) {
	i := (&execution{Name: "k", Instance: "i", At: 1, Data: []byte{0xff, 0}, Picked: true, Failures: 2}).item()
	if i.Task.Params["data_base64"] != "/wA=" || len(i.Notes) != 3 {
		t.Errorf("%+v", i)
	}
	if i := (&execution{Name: "k", Instance: "i"}).item(); i.Task != nil {
		t.Errorf("%+v", i)
	}
}

// plainScheduleAndData is what db-scheduler's JavaSerializer writes of new PlainScheduleAndData(FixedDelay.of(1 h), "for 42").
const plainScheduleAndData = "rO0ABXNyAEFjb20uZ2l0aHViLmthZ2thcmxzc29uLnNjaGVkdWxlci50YXNrLmhlbHBlci5QbGFpblNjaGVkdWxlQW5kRGF0YQAAAAAAAAABAgACTAAEZGF0YXQAEkxq" +
	"YXZhL2xhbmcvT2JqZWN0O0wACHNjaGVkdWxldAA5TGNvbS9naXRodWIva2Fna2FybHNzb24vc2NoZWR1bGVyL3Rhc2svc2NoZWR1bGUvU2NoZWR1bGU7eHB0AAZmb3IgNDJz" +
	"cgA5Y29tLmdpdGh1Yi5rYWdrYXJsc3Nvbi5zY2hlZHVsZXIudGFzay5zY2hlZHVsZS5GaXhlZERlbGF5AAAAAAAAAAECAAFMAAhkdXJhdGlvbnQAFExqYXZhL3RpbWUvRHVy" +
	"YXRpb247eHBzcgANamF2YS50aW1lLlNlcpVdhLobIkiyDAAAeHB3DQEAAAAAAAAOEAAAAAB4"

func TestAnExecutionWithAScheduleInItsDataIsNotTakenForARunWithoutFurtherOnes(t *testing.T) {
	serialized, err := base64.StdEncoding.DecodeString(plainScheduleAndData)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data string
		want bool
	}{
		"serialized":     {string(serialized), true},
		"JSON":           {`{"schedule":{"type":"cron","pattern":"0 0 8 * * *","zoneId":"UTC"},"data":1}`, true},
		"a text":         {`{"schedule":"daily"}`, false},
		"another object": {`{"schedule":{"from":1}}`, false},
	} {
		i := (&execution{Name: "report", Instance: "42", At: 1, Data: []byte(c.data)}).item()
		if (i.Task == nil) != c.want || c.want && !strings.Contains(i.Reason, "recurs by a schedule in its data") {
			t.Errorf("%s: task %v, %s", name, i.Task, i.Reason)
		}
	}
}

func TestConnectionStringsAndPrefixesAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"scheduler": {Scheduler: "cron"}, "prefix": {Scheduler: "quartz", Prefix: "x; DROP TABLE y; --"}, "string": {Scheduler: "river", DSN: "postgres://:::secret@"},
		"keys": {Scheduler: "river", KeyPrefix: "a:b"},
	} {
		if _, err := Open(t.Context(), o); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzJavaMap(f *testing.F) {
	f.Add([]byte("a=b\n"))
	f.Add([]byte(streamMagic + "sr\x00\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16`\xd1\x03\x00\x02F\x00\nloadFactorI\x00\tthresholdxp?@\x00\x00\x00\x00\x00\x0cw\x08\x00\x00\x00\x10\x00\x00\x00\x01t\x00\x01at\x00\x01bx"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readJavaMap(data)
		if err != nil && m != nil {
			t.Errorf("%v and %v", m, err)
		}
	})
}

func TestASerializedMapIsRead(t *testing.T) {
	m, err := readJavaMap([]byte(streamMagic + "sr\x00\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16`\xd1\x03\x00\x02F\x00\nloadFactorI\x00\tthresholdxp?@\x00\x00\x00\x00\x00\x0cw\x08\x00\x00\x00\x10\x00\x00\x00\x01t\x00\x01at\x00\x01bx"))
	if err != nil || len(m) != 1 || m["a"] != "b" {
		t.Errorf("%v, %v", m, err)
	}
}
