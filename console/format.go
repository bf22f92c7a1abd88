package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	durations "github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/internal/payload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// functions are what templates can call besides the methods of [view].
func functions(f *files) template.FuncMap {
	return template.FuncMap{
		"file": f.url, "number": number, "duration": durationOf, "words": words, "join": strings.Join, "listed": func(name string) string { return commaText([]string{name}) }, "args": func(v ...any) []any { return v },
		"add": func(a, b int) int { return a + b }, "tone": tone, "bytes": byteSize, "rate": rate, "cadence": Cadence, "plain": plainDuration,
		"payloadTitle": payload.Title, "payloadText": payload.Text,
		"spanchart": SpanChart, "peak": Peak, "add64": func(a, b int64) int64 { return a + b },
		"living": func(f *perceptorv1.TenantFigures) int64 {
			return sumCounts(f, func(c *perceptorv1.TaskCounts) int64 { return c.Scheduled + c.Running })
		},
		"fired": Fired, "added": Added, "json": toJSON, "percent": percent, "ranges": ranges,
		"deadruns": func(f *perceptorv1.TenantFigures) int64 {
			return sumCounts(f, func(c *perceptorv1.TaskCounts) int64 { return c.DeadRuns })
		},
	}
}

// toJSON is for attributes that scripts read.
func toJSON(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

// percent is the part that n has of all, at most 100.
func percent(n, all int64) int64 { return min(100, 100*n/max(all, 1)) }

// ranges writes numbers in order as ranges: 0-3, 7.
func ranges(numbers []int32) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		part := strconv.Itoa(int(numbers[i]))
		if j > i {
			part += "-" + strconv.Itoa(int(numbers[j]))
		}
		parts, i = append(parts, part), j+1
	}
	return strings.Join(parts, ", ")
}

// text returns a value as the address of a page has it.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case nil:
		return ""
	}
	return fmt.Sprint(v)
}

// number writes a whole number with commas.
func number(v any) string {
	s := fmt.Sprint(v)
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// rate writes a number per second with three digits.
func rate(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return number(int64(math.Round(v)))
}

// byteSize writes a number of bytes.
func byteSize(v int64) string {
	const kib = 1024
	if v < kib {
		return fmt.Sprintf("%d B", v)
	}
	f, units := float64(v)/kib, []string{"KiB", "MiB", "GiB", "TiB"}
	for f >= kib && len(units) > 1 {
		f, units = f/kib, units[1:]
	}
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0") + " " + units[0]
}

// duration writes a duration with at most two units.
func duration(d time.Duration) string {
	if d < 0 {
		return "-" + duration(-d)
	}
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second && d%time.Second != 0:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return units(d, time.Second, "s", 0, "")
	case d < time.Hour:
		return units(d, time.Minute, "min", time.Second, "s")
	case d < 2*day:
		return units(d, time.Hour, "h", time.Minute, "min")
	}
	return units(d, day, "d", time.Hour, "h")
}

func units(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	s := fmt.Sprintf("%d %s", d/big, bigName)
	if small > 0 && d%big >= small {
		s += fmt.Sprintf(" %d %s", d%big/small, smallName)
	}
	return s
}

// durationOf writes a duration of the API; "" if it is not set.
func durationOf(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return duration(d.AsDuration())
}

// words writes the name of an enum as words: NON_BLOCKING is "Non-blocking".
func words(v any) string {
	s := strings.ToLower(strings.ReplaceAll(fmt.Sprint(v), "_", " "))
	switch s {
	case "one shot":
		return "One-shot"
	case "non blocking":
		return "Non-blocking"
	case "":
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// tones are the colours of words. Words that are missing have none.
var tones = map[string]string{
	"SCHEDULED": "info", "RUNNING": "busy", "COMPLETED": "good", "CANCELLED": "mute", "FAILED": "bad", "PAUSED": "warn",
	"DONE": "good", "ABORTED": "mute", "OK": "good",
	"OUT_OF_ATTEMPTS": "bad", "SILENT": "warn", "UNPUBLISHABLE": "bad", "PERMANENT": "bad",
	"SUCCEEDED": "good", "DEAD": "bad", "SKIPPED": "warn", "HANDED_BACK": "warn", "SNOOZED": "info", "REDELIVERY": "warn", "CLAIMED": "info",
}

func tone(v any) string { return tones[fmt.Sprint(v)] }

const utcFormat = "2006-01-02 15:04:05.000 UTC"

// Time shows an instant in the zone of the browser, with UTC on hover.
func (v *view) Time(t *timestamppb.Timestamp) template.HTML {
	if t == nil {
		return `<span class="none">–</span>`
	}
	at := t.AsTime()
	return v.instant(at, v.local(at))
}

// Ago shows how long ago an instant was, or how far ahead it is.
func (v *view) Ago(t *timestamppb.Timestamp) template.HTML {
	if t == nil {
		return `<span class="none">–</span>`
	}
	return v.instant(t.AsTime(), v.relative(t.AsTime()))
}

// Clock shows the time of day of an instant, to the millisecond.
func (v *view) Clock(t *timestamppb.Timestamp) template.HTML {
	if t == nil {
		return ""
	}
	return v.instant(t.AsTime(), t.AsTime().In(v.Zone).Format("15:04:05.000"))
}

// instant has only texts of this file, so nothing in it needs escaping.
func (v *view) instant(at time.Time, shown string) template.HTML {
	utc := at.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s · %s">%s</time>`, //nolint:gosec // made of numbers
		utc.Format("2006-01-02T15:04:05.000Z"), utc.Format(utcFormat), v.relative(at), shown))
}

// local writes an instant in the zone of the browser. The year is left out if it is the
// present one.
func (v *view) local(at time.Time) string {
	at = at.In(v.Zone)
	format := "2 Jan 2006 15:04:05"
	if at.Year() == v.Now.In(v.Zone).Year() {
		format = "2 Jan 15:04:05"
	}
	return at.Format(format)
}

func (v *view) relative(at time.Time) string {
	d := at.Sub(v.Now)
	switch {
	case d.Abs() < time.Second:
		return "now"
	case d > 0:
		return "in " + duration(d.Truncate(time.Second))
	}
	return duration((-d).Truncate(time.Second)) + " ago"
}

// ZoneName is the name of the zone of the browser.
func (v *view) ZoneName() string { return v.Zone.String() }

// Input writes an instant for an input of the type datetime-local.
func (v *view) Input(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().In(v.Zone).Format("2006-01-02T15:04:05")
}

// When writes a parameter that is an instant for such an input. What cannot be read stays as it is.
func (v *view) When(name string) string {
	if at, ok := v.instantOf(v.Query(name)); ok {
		return v.Input(at)
	}
	return v.Query(name)
}

// zoned returns the address of this page with all instants in UTC; "" if they are already. Inputs send
// them without a zone, and a link must not mean something else to somebody in another zone.
func (v *view) zoned() string {
	if v.r.Method == http.MethodPost {
		return ""
	}
	q, found := v.r.URL.Query(), false
	for _, name := range v.page.times {
		at, ok := v.instantOf(v.Query(name))
		if _, err := time.Parse(time.RFC3339, v.Query(name)); err == nil || !ok || at == nil {
			continue
		}
		q.Set(name, at.AsTime().Format(time.RFC3339Nano))
		found = true
	}
	if !found {
		return ""
	}
	return v.r.URL.EscapedPath() + "?" + q.Encode()
}

// instantOf reads the value of such an input, or an instant with a zone. "" is nil.
func (v *view) instantOf(s string) (*timestamppb.Timestamp, bool) {
	if s == "" {
		return nil, true
	}
	for _, format := range []string{"2006-01-02T15:04:05.999", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02"} {
		if at, err := time.ParseInLocation(format, s, v.Zone); err == nil {
			return timestamppb.New(at), true
		}
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return nil, false
	}
	return timestamppb.New(at), true
}

// parseDuration reads 90s, 1h30m or 2d, with or without spaces. A sign belongs to the sum. "" is nil.
func parseDuration(s string) (*durationpb.Duration, bool) {
	s = strings.ReplaceAll(strings.ReplaceAll(s, " ", ""), "min", "m")
	if s == "" {
		return nil, true
	}
	d, err := durations.Parse(s)
	if err != nil {
		return nil, false
	}
	return durationpb.New(d), true
}

// plainDuration writes a duration as [parseDuration] reads it.
func plainDuration(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	v, s := d.AsDuration(), ""
	if days := v / (24 * time.Hour); days > 0 {
		s, v = fmt.Sprintf("%dd", days), v%(24*time.Hour)
	}
	if v == 0 && s != "" {
		return s
	}
	out := v.String()
	out = strings.TrimSuffix(out, "0s")
	if strings.HasSuffix(out, "h0m") {
		out = strings.TrimSuffix(out, "0m")
	}
	if out == "" || strings.HasSuffix(v.String(), "0s") && !strings.HasSuffix(v.String(), "m0s") {
		out = v.String()
	}
	return s + out
}

// period reads the inputs from and until of a page. It returns what is wrong with them, or nil.
func (v *view) period() (from, until *timestamppb.Timestamp, refused *problem) {
	from, fromOK := v.instantOf(v.Query("from"))
	until, untilOK := v.instantOf(v.Query("until"))
	if !fromOK || !untilOK {
		return nil, nil, &problem{Text: "from and until are instants such as 2026-01-31T12:00"}
	}
	return from, until, nil
}
