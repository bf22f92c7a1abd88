package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/schedule"
)

// maxInstants bounds what one command prints.
const maxInstants = 100_000

func (c *ctl) scheduleCommand() *cobra.Command {
	return group("schedule", "Show when cron expressions fire", c.scheduleNext())
}

// nextFlags are the flags of schedule next.
type nextFlags struct {
	dialect, zone, after, hashKey string
	count                         int
}

func (c *ctl) scheduleNext() *cobra.Command {
	var n nextFlags
	cmd := &cobra.Command{
		Use: "next [flags] -- EXPRESSION", Short: "Show the next instants of a cron expression", Args: oneExpression,
		Long: "Show the next instants of a cron expression, one in each line: in UTC, then in local time of the zone. The\n" +
			"command needs no server. Fewer lines than --count mean that there are no more instants. docs/schedule.md\n" +
			"describes the dialects and what happens when clocks are set forward or back. Time zones: IANA " + schedule.ZoneDataVersion() + ", part of this program.",
		Example: "  perceptorctl schedule next --tz Europe/London -- '30 1 * * MON-FRI'\n" +
			"  perceptorctl schedule next --dialect quartz --tz Asia/Shanghai --after 2026-01-31T12:00:00Z --count 3 -- '0 0 12 LW * ?'\n" +
			"  perceptorctl schedule next --hash-key invoices -- 'H H(0-5) * * *'\n" +
			"  perceptorctl schedule next --tz Europe/Berlin -- 'DTSTART:20260105T090000 RRULE:FREQ=MONTHLY;BYDAY=-1FR'\n" +
			"  perceptorctl schedule next @daily",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			return c.showNext(cmd, n, args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&n.dialect, "dialect", "", "standard (5 fields, or 6 with seconds in front), quartz, named (@daily, @every 90m and others) or rrule (RFC 5545) (default standard, named for @, or rrule for DTSTART)")
	f.StringVar(&n.zone, "tz", "UTC", "time zone by its IANA name")
	f.StringVar(&n.after, "after", "", "show instants after this one, such as 2026-01-31T12:00:00Z or +90s (default now)")
	f.IntVar(&n.count, "count", 10, "most instants to show")
	f.StringVar(&n.hashKey, "hash-key", "", "text from which H is computed")
	f.SortFlags = false
	return cmd
}

func oneExpression(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("%d arguments instead of one expression; quote it, because the shell expands each *", len(args))
	}
	return nil
}

// upcoming is the answer in JSON.
type upcoming struct {
	Dialect     string         `json:"dialect"`
	Expression  string         `json:"expression"`
	TimeZone    string         `json:"timeZone"`
	ZoneData    string         `json:"zoneData"`
	ElapsedTime bool           `json:"elapsedTime"`
	Instants    []zonedInstant `json:"instants"`
}

type zonedInstant struct {
	UTC   string `json:"utc"`
	Local string `json:"local"`
}

func (c *ctl) showNext(cmd *cobra.Command, n nextFlags, expr string) error {
	after, err := instant("after", n.after)
	if err != nil {
		return err
	}
	start := time.Now().Truncate(time.Second)
	if after != nil {
		start = after.AsTime()
	}
	if n.count < 1 || n.count > maxInstants {
		return cli.Usagef("--count: %d is not between 1 and %d", n.count, maxInstants)
	}
	answer, next, location, err := n.read(expr)
	if err != nil {
		return err
	}
	answer.ZoneData, answer.Instants = schedule.ZoneDataVersion(), []zonedInstant{}
	for range n.count {
		at, ok := next(start)
		if !ok {
			break
		}
		answer.Instants = append(answer.Instants, zonedInstant{at.UTC().Format(time.RFC3339Nano), at.In(location).Format(time.RFC3339Nano)})
		start = at
	}
	if c.structured() {
		return c.writeData(cmd, answer)
	}
	return printInstants(cmd.OutOrStdout(), cmd.ErrOrStderr(), answer.Instants, n.count)
}

func printInstants(out, notes io.Writer, list []zonedInstant, asked int) error {
	var text strings.Builder
	for _, at := range list {
		fmt.Fprintf(&text, "%s  %s\n", at.UTC, at.Local)
	}
	if len(list) < asked {
		fmt.Fprintln(notes, "there are no more instants")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// read parses an expression and returns the function that steps through its
// instants. Those of an interval are counted from the start.
func (n *nextFlags) read(expr string) (upcoming, func(time.Time) (time.Time, bool), *time.Location, error) {
	dialect, err := n.dialectOf(expr)
	if err != nil {
		return upcoming{}, nil, nil, scheduleError(err)
	}
	every := dialect == schedule.Named && schedule.IsEvery(expr)
	parsed := expr
	if every {
		parsed = "@daily" // for the zone
	}
	cron, err := schedule.Parse(dialect, parsed, n.zone, schedule.Options{HashKey: n.hashKey})
	if err != nil {
		return upcoming{}, nil, nil, scheduleError(err)
	}
	answer := upcoming{Dialect: dialect.String(), Expression: cron.String(), TimeZone: cron.Location().String(), ElapsedTime: cron.Elapsed()}
	if !every {
		return answer, cron.Next, cron.Location(), nil
	}
	interval, err := schedule.ParseEvery(expr)
	if err != nil {
		return upcoming{}, nil, nil, scheduleError(err)
	}
	answer.Expression, answer.ElapsedTime = expr, true
	step := func(t time.Time) (time.Time, bool) {
		next := t.Add(interval)
		return next, next.After(t) && next.UTC().Year() <= schedule.LastYear
	}
	return answer, step, cron.Location(), nil
}

// dialectOf is the one that was asked for, or the one that the API would take.
func (n *nextFlags) dialectOf(expr string) (schedule.Dialect, error) {
	switch {
	case n.dialect != "":
		return schedule.ParseDialect(n.dialect)
	case schedule.IsNamed(expr):
		return schedule.Named, nil
	case schedule.IsRule(expr):
		return schedule.RRule, nil
	}
	return schedule.Standard, nil
}

// scheduleError names the flag that an error of a schedule is about.
func scheduleError(err error) error {
	var broken *schedule.Error
	if !errors.As(err, &broken) {
		return err
	}
	switch broken.Field {
	case "dialect":
		return cli.Usagef("--dialect: %q %s", broken.Value, broken.Rule)
	case "time zone":
		return cli.Usagef("--tz: %q %s", broken.Value, broken.Rule)
	}
	return &cli.Error{Code: cli.Usage, Err: err, Hint: "perceptorctl schedule next --help has an expression of each dialect"}
}
