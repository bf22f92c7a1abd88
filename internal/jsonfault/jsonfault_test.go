package jsonfault

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestEachFaultHasItsPathAndSaysWhatToWrite(t *testing.T) {
	t.Parallel()
	const instant = ` is not an instant; write RFC 3339, such as "2026-11-25T10:00:00Z"`
	const duration = ` is not a duration; write seconds with an s, such as "3600s"`
	for text, want := range map[string]string{
		`{"tasks":[{"kind":5}]}`:                                       `tasks[0].kind: 5 is not a text; write it in double quotes, such as "42"`,
		`{"tasks":[{},{"beginTime":"yesterday","interval":"soon"}]}`:   `tasks[1].begin_time: "yesterday"` + instant + `|tasks[1].interval: "soon"` + duration,
		`{"tasks":[{"begin_time":1764064800}]}`:                        "tasks[0].begin_time: 1764064800" + instant,
		`{"tasks":[{"interval":"99999999999999s"}]}`:                   `tasks[0].interval: "99999999999999s" is not between -315576000000s and 315576000000s`,
		`{"tasks":[{"interval":"1.0000000001s"}]}`:                     `tasks[0].interval: "1.0000000001s"` + duration,
		`{"tasks":[{"begin_time":"0000-01-01T00:00:00Z"}]}`:            `tasks[0].begin_time: "0000-01-01T00:00:00Z" is not of the years 1 to 9999`,
		`{"tasks":[{"begin_time":"10000-01-01T00:00:00Z"}]}`:           `tasks[0].begin_time: "10000-01-01T00:00:00Z"` + instant,
		`{"tasks":[{"interval":"05s"}]}`:                               `tasks[0].interval: "05s"` + duration,
		`{"tasks":[{"begin_time":"2026-01-01T00:00:00.0123456789Z"}]}`: `tasks[0].begin_time: "2026-01-01T00:00:00.0123456789Z" has more than nine digits after the second`,
		`{"tasks":[{"begin_time":"9999-12-31T23:59:59-01:00"}]}`:       `tasks[0].begin_time: "9999-12-31T23:59:59-01:00" is not of the years 1 to 9999`,
		`{"tasks":[{"maxCount":"05"}]}`:                                `tasks[0].max_count: "05" has a plus sign or a leading zero; leave it out`,
		`{"tasks":[{"retryPolicy":{"maxAttempts":"+5"}}]}`:             `tasks[0].retry_policy.max_attempts: "+5" has a plus sign or a leading zero; leave it out`,
		`{"tasks":[{"interval":3600}]}`:                                "tasks[0].interval: 3600" + duration,
		`{"tasks":[{"retryPolicy":{"maxAttempts":"many"}}]}`:           `tasks[0].retry_policy.max_attempts: "many" is not a whole number`,
		`{"tasks":[{"retryPolicy":{"maxAttempts":2147483648}}]}`:       "tasks[0].retry_policy.max_attempts: 2147483648 is not between -2147483648 and 2147483647",
		`{"tasks":[{"maxCount":"9223372036854775808"}]}`:               `tasks[0].max_count: "9223372036854775808" is not between -9223372036854775808 and 9223372036854775807`,
		`{"tasks":[{"maxCount":1.5}]}`:                                 "tasks[0].max_count: 1.5 is not a whole number",
		`{"tasks":[{"retryPolicy":{"multiplier":"x"}}]}`:               `tasks[0].retry_policy.multiplier: "x" is not a number, or too large`,
		`{"tasks":[{"type":"FOO"}]}`:                                   `tasks[0].type: "FOO" is not one of ONE_SHOT, NON_BLOCKING, BLOCKING`,
		`{"tasks":[{"stopOnFailure":"yes"}]}`:                          `tasks[0].stop_on_failure: "yes" is not true or false`,
		`{"tasks":[{"payload":{"data":"!"}}]}`:                         `tasks[0].payload.data: "!" is not bytes in base64, such as "aGVsbG8="`,
		`{"tasks":[{"payload":{"json":{"a":1,"a":2}}}]}`:               `tasks[0].payload.json: {"a":1,"a":2} has a name twice in one object, or a number that is too large; send the JSON as data`,
		`{"tasks":[{"nonsense":1}]}`:                                   "tasks[0].nonsense: unknown field",
		`{"tasks":[{"maxcount":1,"max_cuont":2}]}`:                     "tasks[0].maxcount: unknown field; did you mean max_count?|tasks[0].max_cuont: unknown field; did you mean max_count?",
		`{"tasks":[{"begin":1,"zone":2,"key":3,"count":4}]}`: "tasks[0].begin: unknown field; did you mean begin_time?|tasks[0].zone: unknown field|" +
			"tasks[0].key: unknown field; did you mean idempotency_key?|tasks[0].count: unknown field; did you mean max_count?",
		`{"tasks":[{"retryPolicy":{"backoff":"1s"}}]}`:          "tasks[0].retry_policy.backoff: unknown field; did you mean initial_backoff or max_backoff?",
		`{"tasks":[{"a b":1}]}`:                                 `tasks[0]["a b"]: unknown field`,
		`{"tasks":[{"kind":"a","kind":"b"}]}`:                   "tasks[0].kind: is given twice",
		`{"tasks":[{"maxCount":1,"max_count":1}]}`:              "tasks[0].max_count: is given twice",
		`{"tasks":[{"interval":"1s","cron":{}}]}`:               "tasks[0].cron: cannot be given beside interval",
		`{"tasks":[{"interval":null,"cron":{"expression":5}}]}`: `tasks[0].cron.expression: 5 is not a text; write it in double quotes, such as "42"`,
		`{"tasks":[{"cron":"* * * * *"}]}`:                      `tasks[0].cron: "* * * * *" is not an object`,
		`{"tasks":[{"tags":["a",null,7]}]}`:                     `tasks[0].tags[1]: null is not allowed here|tasks[0].tags[2]: 7 is not a text; write it in double quotes, such as "42"`,
		`{"tasks":[{"tags":"a"}]}`:                              `tasks[0].tags: "a" is not a list; write it in brackets`,
		`{"tasks":[{"params":{"k":1,"l":"x","k2":{}}}]}`: `tasks[0].params["k"]: 1 is not a text; write it in double quotes, such as "42"|` +
			`tasks[0].params["k2"]: {} is not a text; write it in double quotes, such as "42"`,
		`{"tasks":[{"params":{"k":"1","k":"2"}}]}`:    `tasks[0].params["k"]: is given twice`,
		`{"tasks":[{"params":["k"]}]}`:                `tasks[0].params: ["k"] is not an object`,
		`{"tasks":{"kind":"a"}}`:                      `tasks: {"kind":"a"} is not a list; write it in brackets`,
		`{"tasks":["a", null]}`:                       `tasks[0]: "a" is not an object|tasks[1]: null is not an object`,
		"{\"tasks\":[{\"kind\":\"\xff\"}]}":           "tasks[0].kind: contains invalid UTF-8",
		"{\"tasks\":[{\"params\":{\"a\":\"\xff\"}}]}": `tasks[0].params["a"]: contains invalid UTF-8`,
		"{\"tasks\":[{\"params\":{\"\xff\":\"a\"}}]}": `tasks[0].params: a key contains invalid UTF-8`,
		"{\"tasks\":[{\"\xff\":\"a\"}]}":              `tasks[0]: a name contains invalid UTF-8`,
		`{"tasks":[{"kind":"\ud800"}]}`:               `tasks[0].kind: has an escape from \ud800 to \udfff that is half of a pair`,
		`{"tasks":[{"params":{"\\\udc00x":""}}]}`:     `tasks[0].params: a key has an escape from \ud800 to \udfff that is half of a pair`,
		`[]`: "body: [] is not an object",
		`{"tasks":[{"kind":[` + strings.Repeat(`"long", `, 20) + `1]}]}`: `tasks[0].kind: ["long","long","long","long","long","long","long","long","lo… is not a text; write it in double quotes, such as "42"`,
	} {
		var got []string
		m := &perceptorv1.AddTasksRequest{}
		if protojson.Unmarshal([]byte(text), m) == nil {
			t.Errorf("%s is good", text)
		}
		for _, f := range Faults([]byte(text), &perceptorv1.AddTasksRequest{}, "") {
			got = append(got, f.Field+": "+f.Message)
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%s:\n%s\nwant\n%s", text, strings.Join(got, "|"), want)
		}
	}
}

func TestAPathBeginsWithThatOfTheMessage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{`{"kind":1}`: "task.kind", `[]`: "task", `{"":1}`: `task[""]`} {
		if got := Faults([]byte(text), &perceptorv1.Task{}, "task"); len(got) != 1 || got[0].Field != want {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
	}
}

func TestAtMostAHundredFaultsAreFound(t *testing.T) {
	t.Parallel()
	text := `{"tasks":[` + strings.Repeat(`{"kind":1},`, 200) + `{}]}`
	if got := Faults([]byte(text), &perceptorv1.AddTasksRequest{}, ""); len(got) != maxFaults {
		t.Errorf("%d faults", len(got))
	}
}

func FuzzWhatTheLibraryRefusesHasFaults(f *testing.F) {
	for _, seed := range []string{`{"kind":1}`, `{"params":{"a":"\ud800"}}`, `{"payload":{"json":[1e999]}}`, `{"interval":"1s","cron":{}}`, `{"[a]":1}`, `{"a":{"a":1}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		found := &finder{}
		found.message("task", text, (&perceptorv1.Task{}).ProtoReflect())
		err := protojson.Unmarshal(text, &perceptorv1.Task{})
		if (err == nil) != (len(found.faults) == 0) {
			t.Errorf("%q: the library says %v; found %s", text, err, fmt.Sprint(found.faults))
		}
	})
}
