package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/forecast"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

const (
	// forecastPacks is the most packs that one step decodes: some 100 ms.
	forecastPacks = 100
	// forecastRows is the most tasks with an expression or with day calendars in the near tier of one
	// database that are counted.
	forecastRows = 100_000
	// forecastBytes bounds the memory of the counts of one database. Packs that are counted beyond it
	// are remembered with their next instants only.
	forecastBytes = 32 << 20
	// A sum that takes longer than longSum is followed by a rest, so that the sums of a database take at most the
	// forecastPart-th part of a core's time: if a sum takes a second, there is one every three minutes or so.
	longSum      = 300 * time.Millisecond
	forecastPart = 200
	// maxPeriods bounds the calendars whose mean distance is remembered.
	maxPeriods = 10_000
)

// A forecaster counts what falls due when in one database. Packs never change, so it decodes each
// once and remembers its counts, in about two bytes for each task or less; a pack is decoded again when some
// of its copies have become void, or when its tasks come near and are to be counted by finer spans.
type forecaster struct {
	mu       sync.Mutex
	machines *transition.Machines
	packs    map[int64]packCounts
	bytes    int // of their counts
	// uncounted are the packs of the last list that are not counted yet.
	uncounted []int64
	rest      time.Time // nothing is counted before
	periods   map[task.Cron]time.Duration
}

type packCounts struct {
	void   int64
	counts forecast.Compact
}

// CountForecast decodes some of the packs of database d that are new since its last call. When it
// has all, it counts the near tier, and stores the calendars of all tenants. It returns the number
// of packs that it has decoded, and whether it is not done yet.
func (s *Store) CountForecast(ctx context.Context, d int) (n int, more bool, err error) {
	f := &s.forecasts[d]
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.packs == nil {
		f.machines, f.packs, f.periods = s.machines, map[int64]packCounts{}, map[task.Cron]time.Duration{}
	}
	if time.Now().Before(f.rest) {
		return 0, false, nil
	}
	var now task.Instant
	var sum *forecast.Sum
	err = s.db.InSnapshot(ctx, d, func(tx pgx.Tx) (err error) {
		if now, err = kernel.Clock(ctx, tx); err != nil {
			return err
		}
		if n, more, err = f.countPacks(ctx, tx, now); more || err != nil {
			return err
		}
		sum = forecast.NewSum(now, f.resolve)
		return f.countNear(ctx, tx, sum)
	})
	if err == nil && !more {
		err = s.storeForecast(ctx, d, f.calendars(sum), now)
	}
	if err != nil {
		return n, false, fmt.Errorf("count what falls due: %w", err)
	}
	return n, more, nil
}

// calendars adds all packs to the sum of the near tier, and returns its calendars.
func (f *forecaster) calendars(sum *forecast.Sum) map[int32]*forecast.Calendar {
	began := time.Now()
	for _, p := range f.packs {
		sum.Join(p.counts)
	}
	calendars := sum.Calendars()
	if took := time.Since(began); took > longSum {
		f.rest = time.Now().Add((forecastPart - 1) * took)
	}
	return calendars
}

// countPacks counts some of the packs that are new. Listing packs takes as long as decoding some, so a list serves
// many steps, and the one of the last step, in whose snapshot the near tier is counted, is new.
func (f *forecaster) countPacks(ctx context.Context, tx pgx.Tx, now task.Instant) (n int, more bool, err error) {
	listed := len(f.uncounted) == 0
	if listed {
		if err := f.list(ctx, tx, now); err != nil {
			return 0, false, err
		}
	}
	names := f.uncounted[:min(len(f.uncounted), forecastPacks)]
	if len(names) == 0 {
		return 0, false, nil
	}
	packs, err := far.ReadPacks(ctx, tx, names)
	if err != nil {
		return 0, false, err
	}
	for i := range packs {
		f.remember(int64(packs[i].Pack), int64(len(packs[i].Void)), f.countPack(&packs[i], now))
	}
	f.uncounted = f.uncounted[len(names):]
	return len(packs), !listed || len(f.uncounted) > 0, nil
}

// list forgets the packs that are gone and lists those that are to be counted, in the order in which they were made:
// so they are read from the disk one after another.
func (f *forecaster) list(ctx context.Context, tx pgx.Tx, now task.Instant) error {
	rows, err := sql.ForecastPacks.Query(ctx, tx)
	if err != nil {
		return err
	}
	voids := map[int64]int64{}
	var name, void int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &void}, func() error { voids[name] = void; return nil }); err != nil {
		return err
	}
	for name := range f.packs {
		if _, exists := voids[name]; !exists {
			f.forget(name)
		}
	}
	f.uncounted = nil
	for name, void := range voids {
		if p, known := f.packs[name]; !known || p.void != void || !p.counts.Fine(now) {
			f.uncounted = append(f.uncounted, name)
		}
	}
	slices.Sort(f.uncounted)
	return nil
}

func (f *forecaster) remember(name, void int64, counts *forecast.Counts) {
	f.forget(name)
	if counts.Merge(); f.bytes > forecastBytes {
		counts.DropPeriods()
	}
	p := packCounts{void, counts.Compact()}
	f.packs[name] = p
	f.bytes += p.counts.Bytes()
}

func (f *forecaster) forget(name int64) {
	f.bytes -= f.packs[name].counts.Bytes()
	delete(f.packs, name)
}

// countPack counts the tasks of a pack. One that cannot be read counts as empty: compaction finds
// and reports it.
func (f *forecaster) countPack(p *far.PackKeys, now task.Instant) *forecast.Counts {
	counts := forecast.New()
	_, rows, err := p.Living()
	if err != nil {
		return counts
	}
	for _, r := range rows {
		if t, due := f.task(r); due {
			counts.Add(t, 1, now)
		}
	}
	return counts
}

// task returns what is counted of a row, if it falls due at all.
func (f *forecaster) task(r *task.Row) (t forecast.Task, due bool) {
	if r.Paused || r.Damaged != "" {
		return t, false
	}
	t = forecast.Of(r, f.period(r))
	if r.UsesCalendars() {
		alone := false
		if r.Cron != nil {
			f.machines.SetCalendar(r)
			alone = transition.OfTask(r)
		}
		t.Rule = forecast.RuleOf(r, alone)
	}
	return t, true
}

// period returns [forecast.Period] of a row, which takes long for a calendar: for all tasks with an
// expression that of the first one, without its day calendars.
func (f *forecaster) period(r *task.Row) time.Duration {
	if r.Cron == nil {
		return forecast.Period(r)
	}
	p, known := f.periods[*r.Cron]
	if !known {
		if len(f.periods) >= maxPeriods {
			clear(f.periods)
		}
		endless := *r
		endless.End, endless.MaxCount, endless.Exclude, endless.Only = task.Never, 0, nil, nil
		f.machines.SetCalendar(&endless)
		p = forecast.Period(&endless)
		f.periods[*r.Cron] = p
	}
	return p
}

// resolve says what a rule means now.
func (f *forecaster) resolve(tenant int32, rule *forecast.Rule) (instants task.Calendar, open *task.Windows, known bool) {
	if rule.Cron != (task.Cron{}) {
		var err error
		if instants, err = f.machines.CalendarOf(rule.Cron, rule.ID, rule.Spread); err != nil {
			return nil, nil, false // such a task is deferred
		}
	}
	open, known = f.machines.WindowsOf(tenant, rule.Exclude(), rule.Only())
	return instants, open, known
}

func (f *forecaster) countNear(ctx context.Context, tx pgx.Tx, sum *forecast.Sum) error {
	if err := kernel.ReadAll(ctx, tx); err != nil {
		return err
	}
	rows, err := sql.ForecastNear.Query(ctx, tx)
	if err != nil {
		return err
	}
	var tenant int32
	var minute, step, n int64
	var last *int64
	if _, err := pgx.ForEachRow(rows, []any{&tenant, &minute, &step, &last, &n}, func() error {
		t := forecast.Task{Tenant: tenant, Next: task.Instant(minute * time.Minute.Milliseconds()), Period: kernel.Millis(step), Last: task.Never}
		if last != nil {
			t.Last = task.Instant(*last * (24 * time.Hour).Milliseconds())
		}
		sum.Add(t, n)
		return nil
	}); err != nil {
		return err
	}
	if rows, err = sql.ForecastRows.Query(ctx, tx, forecastRows); err != nil {
		return err
	}
	list, err := kernel.CollectRows(rows)
	for _, r := range list {
		if t, due := f.task(r); due {
			sum.Add(t, 1)
		}
	}
	return err
}

func (s *Store) storeForecast(ctx context.Context, d int, calendars map[int32]*forecast.Calendar, now task.Instant) error {
	var parts []int16
	var data [][]byte
	for part, of := range forecast.Divide(calendars) {
		parts, data = append(parts, int16(part)), append(data, forecast.Encode(of))
	}
	_, err := sql.ForecastStore.Exec(ctx, s.db.Pool(d), int64(now), parts, data)
	return err
}

// Forecast returns the calendar of a tenant, or of all with tenant 0, in database d, and when it
// was counted. It returns nil if nothing was counted yet; a tenant without tasks has an empty one.
func (s *Store) Forecast(ctx context.Context, d int, tenant int32) (c *forecast.Calendar, counted, now task.Instant, err error) {
	var data []byte
	err = sql.ForecastRead.QueryRow(ctx, s.db.Pool(d), int16(forecast.PartOf(tenant))).Scan(&counted, &data, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, 0, 0, nil
	}
	if err == nil && data != nil {
		c, err = forecast.Decode(data, tenant)
	}
	if err != nil {
		return nil, 0, 0, fmt.Errorf("read the forecast of database %d: %w", d, err)
	}
	if c == nil {
		c = forecast.Empty(counted)
	}
	return c, counted, now, nil
}
