package task

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func limits() Limits { return DefaultLimits() }

func valid(typ Type) Spec {
	s := Spec{Terms: Terms{Kind: "check", Begin: Never, End: Never, Retry: RetryPolicy{Jitter: UnsetJitter}}, Type: typ}
	if typ != OneShot {
		s.Interval = time.Hour
	}
	return s
}

func TestBrokenRulesAreNamedByField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Spec)
		field  string
	}{
		"kind is missing":              {func(s *Spec) { s.Kind = "" }, "kind"},
		"kind is too long":             {func(s *Spec) { s.Kind = strings.Repeat("x", 101) }, "kind"},
		"kind has a control character": {func(s *Spec) { s.Kind = "a\nb" }, "kind"},
		"kind is not UTF-8":            {func(s *Spec) { s.Kind = "\xff" }, "kind"},
		"type is unknown":              {func(s *Spec) { s.Type = 9 }, "type"},
		"one-shot with interval":       {func(s *Spec) { s.Type = OneShot }, "interval"},
		"one-shot with count":          {func(s *Spec) { s.Type, s.Interval, s.MaxCount = OneShot, 0, 2 }, "max_count"},
		"interval is missing":          {func(s *Spec) { s.Interval = 0 }, "interval"},
		"interval is negative":         {func(s *Spec) { s.Interval = -time.Hour }, "interval"},
		"interval below the minimum":   {func(s *Spec) { s.Interval = 999 * time.Millisecond }, "interval"},
		"interval above the maximum":   {func(s *Spec) { s.Interval = MaxInterval + 1 }, "interval"},
		"count is negative":            {func(s *Spec) { s.MaxCount = -1 }, "max_count"},
		"begin in year 0":              {func(s *Spec) { s.Begin = At(time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)) }, "begin_time"},
		"begin in year 9999":           {func(s *Spec) { s.Begin = At(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)) }, "begin_time"},
		"end before begin":             {func(s *Spec) { s.Begin, s.End = 2000, 1000 }, "end_time"},
		"end at begin":                 {func(s *Spec) { s.Begin, s.End = 2000, 2000 }, "end_time"},
		"ack_timeout too short":        {func(s *Spec) { s.AckTimeout = time.Millisecond }, "ack_timeout"},
		"give_up_after too short":      {func(s *Spec) { s.GiveUpAfter = time.Second }, "give_up_after"},
		"retention too long":           {func(s *Spec) { s.Retention = 91 * 24 * time.Hour }, "retention"},
		"too many attempts":            {func(s *Spec) { s.Retry.MaxAttempts = 1001 }, "retry_policy.max_attempts"},
		"multiplier below 1":           {func(s *Spec) { s.Retry.Multiplier = 0.5 }, "retry_policy.multiplier"},
		"max_backoff below initial":    {func(s *Spec) { s.Retry.InitialBackoff, s.Retry.MaxBackoff = 2, 1 }, "retry_policy.max_backoff"},
		"jitter above 1":               {func(s *Spec) { s.Retry.Jitter = 1.5 }, "retry_policy.jitter"},
		"param key is empty":           {func(s *Spec) { s.Params = map[string]string{"": "x"} }, "params"},
		"empty tag between others":     {func(s *Spec) { s.Tags = []string{"z", "", "a"} }, "tags[1]"},
		"param value has NUL":          {func(s *Spec) { s.Params = map[string]string{"k": "a\x00"} }, `params["k"]`},
		"params too large":             {func(s *Spec) { s.Params = map[string]string{"k": strings.Repeat("x", 16<<10)} }, "params"},
	} {
		s := valid(NonBlocking)
		c.change(&s)
		faults := s.Validate(limits())
		if !slices.ContainsFunc(faults, func(f Fault) bool { return f.Field == c.field }) {
			t.Errorf("%s: want a fault of field %s, got %v", name, c.field, faults)
		}
	}
}

// TestAckTimeoutMustEndBeforeARecordMayBeDeleted checks the fault's text, too, because the limit
// is a setting that callers do not know.
func TestAckTimeoutMustEndBeforeARecordMayBeDeleted(t *testing.T) {
	l := limits()
	for retention, want := range map[time.Duration]string{
		0:                 "",
		3*time.Hour + 1:   "",
		3 * time.Hour:     "3h0m0s is not below kafka.retention 3h0m0s",
		2 * time.Hour:     "3h0m0s is not below kafka.retention 2h0m0s",
		MaxAckTimeout * 3: "",
	} {
		l.RecordRetention = retention
		s := valid(OneShot)
		s.AckTimeout = 3 * time.Hour
		faults := s.Validate(l)
		if want == "" && len(faults) == 0 {
			continue
		}
		if len(faults) != 1 || faults[0].Field != "ack_timeout" || want == "" || !strings.Contains(faults[0].Message, want) {
			t.Errorf("retention %s: faults = %v, want %q", retention, faults, want)
		}
	}
}

func TestAllFaultsComeAtOnce(t *testing.T) {
	s := Spec{Type: Blocking, Terms: Terms{Interval: -1, MaxCount: -1, Begin: Never, End: Never}}
	if faults := s.Validate(limits()); len(faults) != 3 {
		t.Fatalf("faults = %v", faults)
	}
}

func TestTaskThatCouldNeverFireIsRefused(t *testing.T) {
	for name, s := range map[string]Spec{
		"the end has passed":   {Terms: Terms{Begin: 10, End: 99}},
		"the end is now":       {Terms: Terms{Begin: 10, End: 100}},
		"begins at its end":    {Terms: Terms{Begin: Never, End: 100}},
		"begins after the end": {Terms: Terms{Begin: 200, End: 150}},
	} {
		if faults := s.ResolveBegin(100); len(faults) != 1 || faults[0].Field != "end_time" {
			t.Errorf("%s: faults = %v", name, faults)
		}
	}
	s := Spec{Terms: Terms{Begin: Never, End: 101}}
	if faults := s.ResolveBegin(100); len(faults) != 0 || s.Begin != 100 {
		t.Errorf("begin = %s, faults = %v", s.Begin, faults)
	}
}

func TestBackoffGrowsToItsLimit(t *testing.T) {
	p := RetryPolicy{InitialBackoff: time.Second, Multiplier: 3, MaxBackoff: 10 * time.Second, Jitter: 0.5}
	want := []time.Duration{time.Second, 3 * time.Second, 9 * time.Second, 10 * time.Second, 10 * time.Second}
	for i, w := range want {
		if got := p.Backoff(int32(i+1), 0); got != w {
			t.Errorf("backoff %d = %s, want %s", i+1, got, w)
		}
	}
	if got := p.Backoff(1, 0.5); got != 1250*time.Millisecond {
		t.Errorf("backoff with jitter = %s", got)
	}
	if got := p.Backoff(1_000_000, 0); got != 10*time.Second {
		t.Errorf("backoff after a million failures = %s", got)
	}
}

func TestIDsTellTheirShard(t *testing.T) {
	for _, shard := range []Shard{0, 1, 31, 32, 511} {
		id := NewID(77, shard)
		if id.Shard() != shard || !id.Valid() || shard.Database() != int(shard)/32 {
			t.Errorf("shard of id %s, made for shard %d, = %d", id, shard, id.Shard())
		}
	}
	for _, id := range []ID{0, 511, -512} {
		if id.Valid() {
			t.Errorf("id %s is valid, want invalid", id)
		}
	}
}

func TestRunIDsAreReadAsTheyAreWritten(t *testing.T) {
	want := RunID{Task: 123456, Seq: 7}
	got, err := ParseRunID(want.String())
	if err != nil || got != want {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, s := range []string{"", "1", "-", "5-1", "123456-0", "123456--1", "x-1", "123456-x", "99999999999999999999-1"} {
		if _, err := ParseRunID(s); err == nil {
			t.Errorf("ParseRunID(%q) returns no error", s)
		}
	}
}

// TestDocumentedStatesAreThoseOfTheCode compares docs/task-states.md and the
// constraints of the schema with the table in the code.
func TestDocumentedStatesAreThoseOfTheCode(t *testing.T) {
	doc := read(t, "../docs/task-states.md")
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\w+) \| ([A-Z]+) \| `).FindAllStringSubmatch(doc, -1) {
		documented[m[1]+" "+m[2]] = true
	}
	coded := map[string]bool{}
	for _, from := range States {
		for _, to := range States {
			if from != to && from.CanBecome(to) {
				coded[from.String()+" "+to.String()] = true
			}
		}
	}
	if diff := cmp.Diff(coded, documented); diff != "" {
		t.Errorf("docs/task-states.md: code -, document +\n%s", diff)
	}
	schema := read(t, "../migrations/sql/00001_tasks.sql")
	for _, want := range []string{"task_living         CHECK (state IN (1, 2))", "task_done_final CHECK (state IN (3, 4, 5))"} {
		if !strings.Contains(schema, want) {
			t.Errorf("the schema does not contain %s", want)
		}
	}
	for _, s := range States {
		if s.Final() != (s >= 3) {
			t.Errorf("%s: Final() = %v", s, s.Final())
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
