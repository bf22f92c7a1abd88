package console

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var editPages = []page{{path: "tasks/{id}/edit", name: "edit", title: "Edit task", section: "tasks", form: true, show: (*view).editTask}}

func newRequestID() string { return rand.Text() }

// field is a field of a form.
type field struct {
	Name, Label, Hint string
	// Value is the present value, Given what the user typed.
	Value, Given string
	Fault        string
	Kind         string // "", area, time, check or the options, separated by commas
	// path is the field of the API.
	path string
	// set stores a text in a task; ok is false if it is malformed.
	set func(v *view, t *perceptorv1.Task, text string) (ok bool)
}

// Options are those of a field with a choice.
func (f *field) Options() []string {
	if strings.Contains(f.Kind, ",") {
		return strings.Split(f.Kind, ",")
	}
	return nil
}

// Was is what a form remembers of the value with which it was opened: the value, or a digest of a long
// text, which would make the form twice as large.
func (f *field) Was() string { return f.memory(f.Value) }

func (f *field) memory(text string) string {
	if f.Kind != "area" {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// opened returns [field.Was] of the form that was sent. Others may have changed the value since.
func (v *view) opened(f *field) string {
	if shown, has := v.r.PostForm["was_"+f.Name]; has {
		return shown[0]
	}
	return f.Was()
}

// unchanged reports whether the user left the field as it was, or typed what it has now. A browser or
// [view.given] may have taken the spaces around the value away, which nobody has changed.
func (v *view) unchanged(f *field) bool {
	if f.Given == f.Value || f.memory(f.Given) == v.opened(f) {
		return true
	}
	for _, was := range []string{f.Value, v.opened(f)} {
		if f.Kind != "area" && f.Given == strings.TrimSpace(was) || f.Kind == "time" && v.sameInstant(f.Given, was) {
			return true
		}
	}
	return false
}

// changedByOthers is the fault of a field that somebody else has changed, too.
func (f *field) changedByOthers() string {
	to := ""
	if f.Kind != "area" {
		to = fmt.Sprintf(" to %q", f.Value)
	}
	return "Somebody else has changed this" + to + " since you opened the form. Save again to replace it."
}

// editData is the data of the page for edits.
type editData struct {
	Task    *perceptorv1.Task
	Fields  []*field
	Problem *problem
	// Hidden says that the params cannot be seen, so they cannot be edited.
	Hidden bool
}

// Faults are the fields with faults.
func (d *editData) Faults() (faults []*field) {
	for _, f := range d.Fields {
		if f.Fault != "" {
			faults = append(faults, f)
		}
	}
	return faults
}

// editTask shows the form, or stores what was changed in it.
func (v *view) editTask() (any, error) {
	ctx, id, err := v.asTenantOf()
	if err != nil {
		return nil, err
	}
	t, err := v.tasks.GetTask(ctx, &perceptorv1.GetTaskRequest{Id: id})
	if err != nil {
		return nil, err
	}
	d := &editData{Task: t, Fields: v.taskFields(t), Hidden: !v.May("READ")}
	if v.r.Method != "POST" {
		return d, nil
	}
	change, ok := v.readChange(d)
	if !ok {
		return d, nil
	}
	if len(change.UpdateMask.Paths) == 0 {
		v.setNotice(v.w, notice{Kind: "done", Text: "Nothing was changed, so nothing was sent."})
		return redirectTo(v.taskURL(id)), nil
	}
	updated, err := v.tasks.UpdateTask(ctx, change)
	if err != nil {
		return d, v.refusedEdit(d, err)
	}
	v.setNotice(v.w, notice{Kind: "done", Text: fmt.Sprintf("Task %d has version %d now. Changed: %s.", id, updated.Version, strings.Join(change.UpdateMask.Paths, ", "))})
	return redirectTo(v.taskURL(id)), nil
}

// refusedEdit adds the answer of the API to the form. Other errors are returned.
func (v *view) refusedEdit(d *editData, err error) error {
	if !leavesForm(err) && status.Code(err) != codes.PermissionDenied {
		return err
	}
	p := problemOf(err)
	d.Problem, v.status = &p, p.Status
	for _, f := range d.Fields {
		f.Fault = p.Fields["task."+f.path]
	}
	return nil
}

// readChange returns the request for those fields whose text the user has changed. What others have
// changed since the form was opened stays: the form has the value that each field had. The version is
// the one that was compared with.
func (v *view) readChange(d *editData) (*perceptorv1.UpdateTaskRequest, bool) {
	change := &perceptorv1.UpdateTaskRequest{
		Task: &perceptorv1.Task{Id: d.Task.Id}, UpdateMask: &fieldmaskpb.FieldMask{}, Version: d.Task.Version,
	}
	ok := true
	for _, f := range d.Fields {
		f.Given = v.given(f)
		if v.unchanged(f) || f.Name == "params" && d.Hidden {
			f.Given = f.Value // if the form is shown again, it must not take back what others have changed
			continue
		}
		switch {
		case v.opened(f) != f.Was():
			f.Fault, v.status, ok = f.changedByOthers(), http.StatusConflict, false
		case !f.set(v, change.Task, f.Given):
			f.Fault, v.status, ok = "This is malformed: "+f.Hint, http.StatusBadRequest, false
		default:
			change.UpdateMask.Paths = append(change.UpdateMask.Paths, f.path)
		}
	}
	if slices.ContainsFunc(change.UpdateMask.Paths, func(p string) bool { return strings.HasPrefix(p, "cron.") }) {
		change.Task.Schedule = v.wholeCron(d)
	}
	return change, ok
}

// given returns the text of a field in the form that was sent. Spaces in params mean something.
func (v *view) given(f *field) string {
	text := strings.ReplaceAll(v.r.PostFormValue(f.Name), "\r\n", "\n")
	if f.Kind == "area" {
		return strings.TrimRight(text, "\n")
	}
	return strings.TrimSpace(text)
}

// sameInstant reports whether two texts are the same instant. Browsers leave out seconds that are 0.
func (v *view) sameInstant(a, b string) bool {
	x, okX := v.instantOf(a)
	y, okY := v.instantOf(b)
	return okX && okY && x != nil && y != nil && x.AsTime().Equal(y.AsTime())
}

// wholeCron returns the cron schedule of the form, of which the fields in the mask are used.
func (v *view) wholeCron(d *editData) *perceptorv1.Task_Cron {
	c := &perceptorv1.Cron{Dialect: d.Task.GetCron().GetDialect()}
	for _, f := range d.Fields {
		switch f.path {
		case "cron.expression":
			c.Expression = f.Given
		case "cron.time_zone":
			c.TimeZone = f.Given
		}
	}
	return &perceptorv1.Task_Cron{Cron: c}
}

// taskFields are the fields of a task that the form has.
func (v *view) taskFields(t *perceptorv1.Task) []*field {
	fields := []*field{
		{Name: "kind", Label: "Kind", Value: t.Kind, path: "kind", Hint: "the name of the handler", set: func(_ *view, t *perceptorv1.Task, s string) bool { t.Kind = s; return true }},
	}
	fields = append(fields, v.scheduleFields(t)...)
	fields = append(fields, v.limitFields(t)...)
	fields = append(fields,
		&field{Name: "tags", Label: "Tags", Value: commaText(t.Tags), path: "tags", Hint: `labels, separated by commas; write a comma in a label as \,`, set: func(_ *view, t *perceptorv1.Task, s string) bool {
			t.Tags = commaList(s)
			return true
		}},
		&field{Name: "params", Label: "Params", Kind: "area", Value: paramLines(t.Params), path: "params", Hint: "one name=value on each line; write a line break as \\n, and = in a name as \\=", set: func(_ *view, t *perceptorv1.Task, s string) (ok bool) {
			t.Params, ok = readParams(s)
			return ok
		}})
	for _, f := range fields {
		f.Given = f.Value
	}
	return fields
}

func (v *view) scheduleFields(t *perceptorv1.Task) (fields []*field) {
	if c := t.GetCron(); c != nil {
		noop := func(*view, *perceptorv1.Task, string) bool { return true } // wholeCron sets it
		fields = append(fields,
			&field{Name: "cron", Label: "Cron expression", Value: c.Expression, path: "cron.expression", set: noop},
			&field{Name: "zone", Label: "Time zone", Value: c.TimeZone, path: "cron.time_zone", Hint: "an IANA name such as Europe/Berlin", set: noop})
	} else if t.GetInterval() != nil {
		fields = append(fields, durationField("interval", "Interval", plainDuration(t.GetInterval()), func(t *perceptorv1.Task, d *durationpb.Duration) {
			t.Schedule = &perceptorv1.Task_Interval{Interval: d}
		}))
	}
	instants := []struct {
		name, label, value string
		set                func(t *perceptorv1.Task, at *timestamppb.Timestamp)
	}{
		{"begin_time", "Begin", v.Input(t.BeginTime), func(t *perceptorv1.Task, at *timestamppb.Timestamp) { t.BeginTime = at }},
		{"end_time", "End", v.Input(t.EndTime), func(t *perceptorv1.Task, at *timestamppb.Timestamp) { t.EndTime = at }},
	}
	for _, i := range instants {
		fields = append(fields, &field{Name: i.name, Label: i.label, Value: i.value, Kind: "time", path: i.name, Hint: "in " + v.ZoneName(), set: func(v *view, t *perceptorv1.Task, s string) bool {
			at, ok := v.instantOf(s)
			i.set(t, at)
			return ok
		}})
	}
	return fields
}

func (v *view) limitFields(t *perceptorv1.Task) []*field {
	return []*field{
		numberField("max_count", "Max. runs", t.MaxCount, "0: no limit", func(t *perceptorv1.Task, n int64) { t.MaxCount = n }),
		durationField("ack_timeout", "Ack timeout", plainDuration(t.AckTimeout), func(t *perceptorv1.Task, d *durationpb.Duration) { t.AckTimeout = d }),
		durationField("give_up_after", "Give up after", plainDuration(t.GiveUpAfter), func(t *perceptorv1.Task, d *durationpb.Duration) { t.GiveUpAfter = d }),
		durationField("retention", "Retention", plainDuration(t.Retention), func(t *perceptorv1.Task, d *durationpb.Duration) { t.Retention = d }),
		durationField("spread", "Spread", plainDuration(t.Spread), func(t *perceptorv1.Task, d *durationpb.Duration) { t.Spread = d }),
		retryField("max_attempts", "Max. attempts", "a whole number", strconv.Itoa(int(t.RetryPolicy.GetMaxAttempts())), func(p *perceptorv1.RetryPolicy, s string) bool {
			n, err := strconv.ParseInt(s, 10, 32)
			p.MaxAttempts = int32(n)
			return err == nil
		}),
		retryField("initial_backoff", "First retry after", durationHint, plainDuration(t.RetryPolicy.GetInitialBackoff()), func(p *perceptorv1.RetryPolicy, s string) (ok bool) {
			p.InitialBackoff, ok = parseDuration(s)
			return ok
		}),
		{Name: "misfire_policy", Label: "Missed instants", Value: t.MisfirePolicy.String(), Kind: "FIRE_ONCE,FIRE_ALL,SKIP", path: "misfire_policy", set: func(_ *view, t *perceptorv1.Task, s string) bool {
			n, ok := perceptorv1.Task_MisfirePolicy_value[s]
			t.MisfirePolicy = perceptorv1.Task_MisfirePolicy(n)
			return ok
		}},
		{Name: "overlap", Label: "While a run is open", Value: t.Overlap.String(), Kind: "ALLOW,SKIP,BUFFER_ONE", path: "overlap", set: func(_ *view, t *perceptorv1.Task, s string) bool {
			n, ok := perceptorv1.Task_Overlap_Policy_value[s]
			t.Overlap = perceptorv1.Task_Overlap_Policy(n)
			return ok
		}},
		{Name: "stop_on_failure", Label: "Ends when a run is given up", Value: strconv.FormatBool(t.StopOnFailure), Kind: "false,true", path: "stop_on_failure", set: func(_ *view, t *perceptorv1.Task, s string) bool {
			t.StopOnFailure = s == "true"
			return true
		}},
	}
}

const durationHint = "such as 90s, 1h30m or 2d"

func durationField(name, label, value string, set func(*perceptorv1.Task, *durationpb.Duration)) *field {
	return &field{Name: name, Label: label, Value: value, path: name, Hint: durationHint, set: func(_ *view, t *perceptorv1.Task, s string) bool {
		d, ok := parseDuration(s)
		set(t, d)
		return ok
	}}
}

func numberField(name, label string, value int64, hint string, set func(*perceptorv1.Task, int64)) *field {
	return &field{Name: name, Label: label, Value: strconv.FormatInt(value, 10), path: name, Hint: hint, set: func(_ *view, t *perceptorv1.Task, s string) bool {
		n, err := strconv.ParseInt(s, 10, 64)
		set(t, n)
		return err == nil || s == ""
	}}
}

func retryField(name, label, hint, value string, set func(*perceptorv1.RetryPolicy, string) bool) *field {
	return &field{Name: name, Label: label, Value: value, path: "retry_policy." + name, Hint: hint, set: func(_ *view, t *perceptorv1.Task, s string) bool {
		if t.RetryPolicy == nil {
			t.RetryPolicy = &perceptorv1.RetryPolicy{}
		}
		return set(t.RetryPolicy, s)
	}}
}

// commaText writes names with commas between them, as [commaList] reads them. A backslash stands before
// each comma and backslash of a name, and before a space at its ends.
func commaText(names []string) string {
	written := make([]string, len(names))
	for i, name := range names {
		text := writtenInList.Replace(name)
		if first, _ := utf8.DecodeRuneInString(text); unicode.IsSpace(first) {
			text = `\` + text
		}
		if last, size := utf8.DecodeLastRuneInString(text); unicode.IsSpace(last) && utf8.RuneCountInString(name) > 1 {
			text = text[:len(text)-size] + `\` + text[len(text)-size:]
		}
		written[i] = text
	}
	return strings.Join(written, ", ")
}

var writtenInList = strings.NewReplacer(`\`, `\\`, ",", `\,`)

// commaList reads names with commas between them. A backslash takes a comma, a backslash or a space as it
// is, and stays where anything else follows. One at the end had a space that was trimmed.
func commaList(s string) (list []string) {
	var name strings.Builder
	end := 0 // of the name, without the spaces that follow it
	flush := func() {
		if end > 0 {
			list = append(list, name.String()[:end])
		}
		name.Reset()
		end = 0
	}
	runes := []rune(s)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		escaped := false
		if r == '\\' {
			next := ' '
			if i+1 < len(runes) {
				next = runes[i+1]
			}
			if escaped = next == ',' || next == '\\' || unicode.IsSpace(next); escaped {
				r, i = next, i+1
			}
		}
		switch {
		case r == ',' && !escaped:
			flush()
		case unicode.IsSpace(r) && !escaped:
			if end > 0 {
				name.WriteRune(r)
			}
		default:
			name.WriteRune(r)
			end = name.Len()
		}
	}
	flush()
	return list
}

// Params are written and read as lines of name=value. What would divide a line is escaped.
var (
	writtenName  = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "=", `\=`)
	writtenValue = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`)
	readName     = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r", `\=`, "=")
	readValue    = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r")
)

// paramLines writes params as lines of name=value.
func paramLines(params map[string]string) string {
	lines := make([]string, 0, len(params))
	for _, k := range slices.Sorted(maps.Keys(params)) {
		lines = append(lines, writtenName.Replace(k)+"="+writtenValue.Replace(params[k]))
	}
	return strings.Join(lines, "\n")
}

// readParams reads what [paramLines] writes.
func readParams(s string) (map[string]string, bool) {
	params := map[string]string{}
	for line := range strings.SplitSeq(s, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		end := endOfName(line)
		if end <= 0 {
			return nil, false
		}
		params[readName.Replace(line[:end])] = readValue.Replace(line[end+1:])
	}
	return params, true
}

// endOfName returns where the name of a line ends, at the first = that is not escaped; -1: nowhere.
func endOfName(line string) int {
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '\\':
			i++
		case '=':
			return i
		}
	}
	return -1
}
