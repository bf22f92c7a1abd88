package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/perceptor/perceptor/forecast"
	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
	"github.com/perceptor/perceptor/transfer"
)

// planned prints what an import will take. It returns nil for an input that can be read only once.
func (o *importOptions) planned(cmd *cobra.Command) (*transfer.Plan, error) {
	say := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
	if o.Query != "" || o.From != "" || o.stdin() {
		say("plan: how many lines there are is not known before they are read")
		return nil, nil
	}
	t, err := o.files(cmd, nil)
	if err != nil {
		return nil, err
	}
	p, err := transfer.NewPlan(cmd.Context(), o.Files, t)
	if err != nil {
		return nil, cli.Usagef("%v", err)
	}
	about := "about "
	if p.Exact {
		about = ""
	}
	say("plan: %s, %s: %s%s", countText(p.Files, "file"), sizeText(p.Bytes), about, countText(p.Lines, "line"))
	if o.dryRun {
		say("      nothing is stored (--dry-run)")
		return p, nil
	}
	say("      on disk about %s on all servers together, and for a while as much again in the log", sizeText(p.DiskBytes()))
	return p, nil
}

// sizeText writes a number of bytes.
func sizeText(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return countText(n, "byte")
}

// importResult is the result of import in JSON.
type importResult struct {
	Import json.RawMessage `json:"import"`
	// UnreadableCount is the number of lines that could not be read. They are not in the import.
	UnreadableCount int64          `json:"unreadableCount,string"`
	RejectFile      string         `json:"rejectFile,omitempty"`
	Forecast        []forecastHour `json:"forecast,omitempty"`
}

// forecastHour is how many runs fall due in an hour, or a day.
type forecastHour struct {
	StartTime time.Time `json:"startTime"`
	Seconds   int64     `json:"seconds"`
	Count     int64     `json:"count,string"`
}

// finished shows what an import did.
func (i *importing) finished(ctx context.Context, done *perceptorv1.Import) error {
	if i.dryRun { // nothing is stored, so nothing is counted there
		done.LineCount, done.ChunkCount = i.lines.Load(), i.chunks.Load()
		done.AddedCount, done.SkippedCount, done.UpdatedCount, done.RejectedCount = i.added.Load(), i.skipped.Load(), i.updated.Load(), i.rejects.remote
	}
	if err := i.showResult(ctx, done); err != nil {
		return err
	}
	if i.dryRun && i.mayHaveKeys() {
		fmt.Fprintln(i.cmd.ErrOrStderr(), "keys were not looked up (--dry-run): lines whose idempotency_key exists, or is that of an earlier line, are counted as added")
	}
	if i.rejects.count() == 0 {
		return nil
	}
	if !i.dryRun {
		fmt.Fprintln(i.cmd.ErrOrStderr(), i.rejects.summary("rejected"))
		return nil
	}
	return &cli.Error{Code: cli.Failure, Err: errors.New(i.rejects.summary("would be rejected"))}
}

// mayHaveKeys reports whether lines have idempotency keys, as far as that is known.
func (i *importing) mayHaveKeys() bool { return i.plan == nil || i.plan.Keys }

// dayCalendars returns the ranges of the day calendars that the lines name and that exist.
func (i *importing) dayCalendars(ctx context.Context) (map[string][]task.Range, error) {
	all, api := map[string][]task.Range{}, perceptorv1.NewCalendarServiceClient(i.conn)
	for _, name := range i.load.DayCalendars() {
		c, err := api.GetCalendar(ctx, &perceptorv1.GetCalendarRequest{Name: name})
		switch status.Code(err) {
		case codes.OK:
			all[name] = make([]task.Range, len(c.Ranges))
			for k, r := range c.Ranges {
				all[name][k] = task.Range{From: task.At(r.StartTime.AsTime()), Until: task.At(r.EndTime.AsTime())}
			}
		case codes.NotFound, codes.InvalidArgument: // the lines that name it were rejected
		default:
			return nil, err
		}
	}
	return all, nil
}

func (i *importing) showResult(ctx context.Context, done *perceptorv1.Import) error {
	var load *forecast.Calendar
	var busiest []forecastHour
	if i.load != nil {
		days, err := i.dayCalendars(ctx)
		if err != nil {
			return err
		}
		load = i.load.Calendar(days)
		busiest = busiestHours(load)
	}
	if !i.c.structured() {
		t := importDetails(done)
		if n := i.rejects.local; n > 0 {
			t.add("unreadable", strconv.FormatInt(n, 10))
		}
		if err := t.write(i.cmd.OutOrStdout()); err != nil || i.load == nil {
			return err
		}
		return writeForecast(i.cmd, load, busiest)
	}
	text, err := protojson.Marshal(done)
	if err != nil {
		return err
	}
	r := importResult{Import: text, UnreadableCount: i.rejects.local, Forecast: busiest}
	if i.rejects.count() > 0 {
		r.RejectFile = i.rejects.name
	}
	return i.c.writeData(i.cmd, r)
}

// shownHours is how many of the busiest hours are shown.
const shownHours = 10

// busiestHours returns the busiest hours of the next week, and days of the next 90, the busiest first.
func busiestHours(c *forecast.Calendar) (list []forecastHour) {
	_, hours, days := c.Spans()
	for _, part := range []struct {
		spans []forecast.Span
		width time.Duration
	}{{hours, time.Hour}, {days, 24 * time.Hour}} {
		var some []forecastHour
		for _, s := range part.spans {
			if n := s.Next + int64(s.Projected); n > 0 {
				some = append(some, forecastHour{s.Begin.Time(), int64(part.width.Seconds()), n})
			}
		}
		slices.SortStableFunc(some, func(a, b forecastHour) int { return cmp.Compare(b.Count, a.Count) })
		list = append(list, some[:min(len(some), shownHours)]...)
	}
	return list
}

// writeForecast shows when the tasks of an import would fire.
func writeForecast(cmd *cobra.Command, c *forecast.Calendar, busiest []forecastHour) error {
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "\n%d would fire at once, %d later than in 90 days\n", c.Due, c.Later)
	for _, part := range []struct {
		head  string
		width int64
	}{{"HOUR", 3600}, {"DAY", 86400}} {
		t := &table{head: []string{"BUSIEST " + part.head, "RUNS", "PER SECOND"}}
		for _, h := range busiest {
			if h.Seconds == part.width {
				t.add(h.StartTime.Format(time.RFC3339), strconv.FormatInt(h.Count, 10), fmt.Sprintf("%.1f", float64(h.Count)/float64(h.Seconds)))
			}
		}
		if len(t.rows) > 0 {
			fmt.Fprintln(out)
			if err := t.write(out); err != nil {
				return err
			}
		}
	}
	return nil
}
