package outbox

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/clienttest"
)

// variants are tasks of all kinds: good ones, and ones with a fault.
func variants() (all []client.Task) {
	base := client.Task{Kind: "k", Type: client.NonBlocking, Interval: time.Hour, Begin: time.Now().Add(time.Hour)}
	for _, change := range []func(*client.Task){
		func(*client.Task) {},
		func(t *client.Task) { t.Type, t.Interval = client.OneShot, 0 },
		func(t *client.Task) { t.Type = client.OneShot },
		func(t *client.Task) { t.Type = client.Blocking },
		func(t *client.Task) { t.Type = 7 },
		func(t *client.Task) { t.Interval = 0 },
		func(t *client.Task) {
			t.Interval, t.Cron = 0, &client.Cron{Expression: "0 8 * * 1-5", Zone: "Europe/Berlin"}
		},
		func(t *client.Task) { t.Cron = &client.Cron{Expression: "0 8 * * *"} },
		func(t *client.Task) { t.Interval = 1500 * time.Microsecond },
		func(t *client.Task) { t.End = t.Begin.Add(-time.Second) },
		func(t *client.Task) { t.End = t.Begin.Add(10 * time.Hour) },
		func(t *client.Task) { t.Begin = time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC) },
		func(t *client.Task) { t.Begin = time.Time{} },
		func(t *client.Task) { t.MaxCount = -1 },
		func(t *client.Task) { t.MaxCount = 17 },
		func(t *client.Task) { t.Misfire, t.MisfireGrace = client.SkipMissed, client.NoGrace },
		func(t *client.Task) { t.Misfire, t.MisfireGrace = client.FireAll, time.Second },
		func(t *client.Task) { t.Misfire, t.MisfireLimit = client.FireAll, 7 },
		func(t *client.Task) { t.Misfire = 9 },
		func(t *client.Task) { t.Retry = client.RetryPolicy{MaxAttempts: 3, Jitter: client.NoJitter} },
		func(t *client.Task) { t.Retry = client.RetryPolicy{MaxAttempts: 1001} },
		func(t *client.Task) { t.Retry = client.RetryPolicy{Multiplier: math.NaN()} },
		func(t *client.Task) { t.Retry = client.RetryPolicy{InitialBackoff: 2 * time.Hour} },
		func(t *client.Task) { t.Retry = client.RetryPolicy{MaxBackoff: time.Millisecond} },
		func(t *client.Task) { t.Spread = 30 * time.Minute },
		func(t *client.Task) { t.Spread = 2 * time.Hour },
		func(t *client.Task) { t.Retention = client.NoRetention },
		func(t *client.Task) { t.Retention = 91 * 24 * time.Hour },
		func(t *client.Task) { t.AckTimeout, t.GiveUpAfter = 2*time.Hour, time.Hour },
		func(t *client.Task) { t.Tags = []string{"b", "a", "b"} },
		func(t *client.Task) { t.Tags = make([]string, 17) },
		func(t *client.Task) { t.Tags = []string{""} },
		func(t *client.Task) { t.IdempotencyKey = strings.Repeat("k", 128) },
		func(t *client.Task) { t.IdempotencyKey = strings.Repeat("k", 129) },
		func(t *client.Task) { t.IdempotencyKey = "tab\t" },
		func(t *client.Task) { t.Params = map[string]string{"a": strings.Repeat("x", 20<<10)} },
		func(t *client.Task) { t.Params = map[string]string{"": "x"} },
		func(t *client.Task) { t.Kind = "new\nline" },
		func(t *client.Task) { t.Overlap = client.SkipOverlap },
		func(t *client.Task) { t.Type, t.Overlap = client.Blocking, client.SkipOverlap },
		func(t *client.Task) {
			t.Payload = &client.Payload{Data: []byte(`{"a": 1}`), ContentType: "application/json"}
		},
		func(t *client.Task) { t.Payload = &client.Payload{Data: []byte(`{`), ContentType: "application/json"} },
	} {
		t := base
		change(&t)
		all = append(all, t)
	}
	return all
}

// What is refused before it is written must be what the service refuses, with the same fields. The other way
// round the service knows more.
func TestNothingIsRefusedThatTheServiceAccepts(t *testing.T) {
	api := clienttest.New(t)
	refused := 0
	for i, v := range variants() {
		_, err := client.Encode(t.Context(), v, nil)
		_, service := api.AddTask(t.Context(), v)
		if err == nil {
			continue
		}
		refused++
		var ours, theirs *client.Error
		if !errors.As(err, &ours) || !errors.As(service, &theirs) {
			t.Errorf("variant %d: %v, and the service says %v", i, err, service)
			continue
		}
		for _, f := range ours.Fields {
			if !strings.Contains(theirs.Error(), f.Field) {
				t.Errorf("variant %d: the field %s is refused here (%s), and the service says %v", i, f.Field, f.Message, service)
			}
		}
	}
	if refused < 15 {
		t.Errorf("%d variants were refused, which are too few to be all with faults", refused)
	}
}

func FuzzARowIsReadOrRefused(f *testing.F) {
	f.Add(int16(1), int16(2), []byte(`{"task": {"kind": "k", "type": "ONE_SHOT"}}`))
	f.Add(int16(3), int16(2), []byte(`{"task": {"params": {"a": 1}}}`))
	f.Add(int16(2), int16(1), []byte{0x12, 0x01, 'k'})
	f.Add(int16(9), int16(9), []byte(nil))
	f.Fuzz(func(t *testing.T, op, form int16, body []byte) {
		o := operation{op: Op(op), form: form, body: body}
		q, err := o.decode()
		if (err == nil) != (q != nil) && err == nil {
			t.Errorf("neither a request nor an error")
		}
		if o.text() == "" && form != formJSON {
			t.Errorf("no text for people")
		}
	})
}
