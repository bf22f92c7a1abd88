package roundtrip

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/loadtest/backlog"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// maker generates tasks of all kinds.
type maker struct {
	tenant     int32
	seed       uint64
	from, to   task.Instant
	keyed      float64
	paramBytes int
	rows       []task.Row
}

var _ backlog.Maker = (*maker)(nil)

// crons are schedules of all dialects but those whose instants depend on the id.
var crons = []task.Cron{
	{Dialect: task.Dialect(perceptorv1.Cron_STANDARD), Expression: "30 6 * * MON-FRI", Zone: "Europe/Berlin"},
	{Dialect: task.Dialect(perceptorv1.Cron_STANDARD), Expression: "0 */4 * * *", Zone: "UTC"},
	{Dialect: task.Dialect(perceptorv1.Cron_QUARTZ), Expression: "0 0 9 L * ?", Zone: "America/New_York"},
	{Dialect: task.Dialect(perceptorv1.Cron_NAMED), Expression: "@daily", Zone: "Asia/Tokyo"},
}

// Chunk implements [backlog.Maker].
func (m *maker) Chunk(number, n int, now task.Instant) []task.Row {
	r := rand.New(rand.NewPCG(m.seed, uint64(number)))
	if cap(m.rows) < n {
		m.rows = make([]task.Row, n)
	}
	m.rows = m.rows[:n]
	for i := range m.rows {
		m.make(&m.rows[i], r, now, fmt.Sprintf("order:%d/%d", number, i))
	}
	return m.rows
}

func (m *maker) make(row *task.Row, r *rand.Rand, now task.Instant, key string) {
	due := m.from + task.Instant(r.Int64N(int64(m.to-m.from)))
	*row = task.Row{
		Tenant: m.tenant, Type: task.OneShot, State: task.Scheduled, DueAt: due, ScheduledAt: due, Anchor: due, Version: 1,
		Terms: task.Terms{
			Kind: fmt.Sprintf("kind-%d", r.IntN(8)), Begin: due, End: task.Never, MaxCount: 1,
			Retry: task.RetryPolicy{
				MaxAttempts: int32(1 + r.IntN(5)), InitialBackoff: task.DefaultInitialBackoff, Multiplier: task.DefaultMultiplier,
				MaxBackoff: task.DefaultMaxBackoff, Jitter: float64(r.IntN(3)) / 10,
			},
			AckTimeout: time.Duration(1+r.IntN(3)) * time.Minute, GiveUpAfter: task.DefaultGiveUpAfter, Retention: time.Duration(r.IntN(3)) * time.Hour,
		},
		CreatedAt: now,
	}
	switch share := r.IntN(100); {
	case share < 70:
	case share < 85:
		m.recur(row, r, task.NonBlocking)
	default:
		m.recur(row, r, task.Blocking)
	}
	if r.IntN(10) == 0 {
		row.Misfire, row.Grace = task.Skip, time.Minute
	}
	if r.IntN(5) == 0 {
		row.Tags = task.SortTags([]string{"campaign-7", fmt.Sprintf("region-%d", r.IntN(20))})
	}
	if r.Float64() < m.keyed {
		row.Key = key
	}
	row.Params = m.params(r)
	if r.IntN(10) == 0 {
		m.advance(row, r)
	}
}

// recur makes a task a recurring one.
func (m *maker) recur(row *task.Row, r *rand.Rand, typ task.Type) {
	row.Type, row.MaxCount = typ, int64(r.IntN(2)*1000)
	if r.IntN(3) == 0 {
		c := crons[r.IntN(len(crons))]
		row.Cron = &c
	} else {
		row.Interval = time.Duration(1+r.IntN(24)) * time.Hour
	}
	if r.IntN(4) == 0 {
		row.End = row.ScheduledAt.Add(365 * 24 * time.Hour)
	}
}

// advance makes a task one without sealed terms, which the loader stores as it is: it has had runs
// if it is a recurring one, and is paused in one of four cases. A result has moved the grid of every
// tenth, so that its next instant is not one interval after the last.
func (m *maker) advance(row *task.Row, r *rand.Rand) {
	row.Retry = task.RetryPolicy{
		MaxAttempts: task.DefaultMaxAttempts, InitialBackoff: task.DefaultInitialBackoff, Multiplier: task.DefaultMultiplier,
		MaxBackoff: task.DefaultMaxBackoff, Jitter: task.DefaultJitter,
	}
	row.Misfire, row.Grace, row.Tags, row.Key = 0, 0, nil, ""
	if r.IntN(4) == 0 {
		row.Paused, row.DueAt = true, task.Never
	}
	if row.Type == task.OneShot {
		return
	}
	if row.Cron != nil {
		row.Cron, row.Interval = nil, time.Hour
	}
	row.Seq, row.Missed = 1+r.Int64N(500), r.Int64N(20)
	row.Begin = row.Begin.Add(-time.Duration(row.Seq+row.Missed) * row.Interval)
	if row.Type != task.NonBlocking {
		return
	}
	if row.Anchor = row.ScheduledAt.Add(-row.Interval); r.IntN(10) == 0 {
		row.Anchor = row.ScheduledAt.Add(-row.Interval / 2)
	}
}

func (m *maker) params(r *rand.Rand) []byte {
	entries := map[string]string{"order_id": fmt.Sprintf("ord-%012d", r.Int64N(1e12)), "user": fmt.Sprintf("u%07d", r.IntN(1e7)), "note": "zahlen Sie bitte \"bald\"\n"}
	if missing := m.paramBytes - 80; missing > 0 {
		entries["text"] = strings.Repeat("please pay soon, or call us; ", missing/29+1)[:missing]
	}
	if r.IntN(10) == 0 {
		entries = nil
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: entries})
	if err != nil {
		panic(err) // the entries are valid
	}
	return wire
}

// sum is a number of tasks with the sum of their hashes.
type sum struct {
	count int64
	hash  uint64
}

func (s *sum) add(parts ...any) {
	h := fnv.New64a()
	fmt.Fprintln(h, parts...)
	s.count++
	s.hash += h.Sum64()
}

// addRow adds a task that was stored.
func (s *sum) addRow(r *task.Row) error {
	var params perceptorv1.Params
	if err := proto.Unmarshal(r.Params, &params); err != nil {
		return err
	}
	zone := ""
	if r.Cron != nil {
		zone = r.Cron.Expression + " " + r.Cron.Zone
	}
	s.add(int64(r.ID), r.Kind, int32(r.Type), r.ScheduledAt.Time().Unix(), r.Seq, r.Missed, r.Paused, r.Key, r.Tags, r.Interval.Seconds(), zone, sorted(params.Entries))
	return nil
}

// lineOfTask has some fields of a line.
type lineOfTask struct {
	ID             int64 `json:",string"`
	Kind, Type     string
	ScheduledTime  time.Time
	RunCount       int64 `json:",string"`
	MissedCount    int64 `json:",string"`
	Paused         bool
	IdempotencyKey string
	Tags           []string
	Interval       string
	Cron           struct{ Expression, TimeZone string }
	Params         map[string]string
}

// addLine adds a task of an export.
func (s *sum) addLine(line []byte) (err error) {
	var l lineOfTask
	if err := json.Unmarshal(line, &l); err != nil {
		return err
	}
	var every time.Duration
	if l.Interval != "" {
		if every, err = time.ParseDuration(l.Interval); err != nil {
			return err
		}
	}
	zone := strings.TrimSpace(l.Cron.Expression + " " + l.Cron.TimeZone)
	typ := perceptorv1.Task_Type_value[l.Type]
	s.add(l.ID, l.Kind, typ, l.ScheduledTime.Unix(), l.RunCount, l.MissedCount, l.Paused, l.IdempotencyKey, l.Tags, every.Seconds(), zone, sorted(l.Params))
	return nil
}

func sorted(m map[string]string) (list []string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, k, m[k])
	}
	return list
}
