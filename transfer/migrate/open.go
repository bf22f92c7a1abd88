package migrate

import (
	"context"
	_ "embed" // the queries
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Schedulers are the names of the schedulers that [Open] knows.
var Schedulers = []string{"quartz", "db-scheduler", "river"}

// Options say where the tables are.
type Options struct {
	// Scheduler is one of [Schedulers].
	Scheduler string
	// DSN is the connection string of the PostgreSQL server. It may contain a password and is never printed.
	DSN string
	// Prefix is what the names of the tables begin with, with a schema if it is not in the search path. Defaults to
	// qrtz_ for Quartz, and to nothing.
	Prefix string
	// Of is the name of one scheduler of Quartz, or one queue of River. Default: all.
	Of string
	// KeyPrefix is what the idempotency keys begin with, before a colon. Schedules of two sources with the same names
	// have the same keys, unless the prefixes differ. Defaults to the name of the scheduler.
	KeyPrefix string
}

// source is how to read one scheduler.
type source struct {
	query, prefix string
	read          func(pgx.Rows) (*Item, error)
}

//go:embed sql/quartz.sql
var quartzQuery string

//go:embed sql/dbscheduler.sql
var dbSchedulerQuery string

//go:embed sql/river.sql
var riverQuery string

var sources = map[string]source{
	"quartz": {quartzQuery, "qrtz_", func(rows pgx.Rows) (*Item, error) {
		var t trigger
		err := rows.Scan(&t.Group, &t.Name, &t.JobGroup, &t.JobName, &t.State, &t.Type, &t.Calendar, &t.Next, &t.Previous, &t.Start, &t.End,
			&t.Priority, &t.Misfire, &t.Exclusive, &t.Data, &t.JobData, &t.RepeatCount, &t.RepeatInterval, &t.Triggered, &t.Expression, &t.Zone,
			&t.Unit, &t.IntervalZone, &t.Interval, &t.SameHour, &t.SkipDay, &t.Twin)
		return t.item(), err
	}},
	"db-scheduler": {dbSchedulerQuery, "", func(rows pgx.Rows) (*Item, error) {
		var e execution
		err := rows.Scan(&e.Name, &e.Instance, &e.Data, &e.At, &e.Picked, &e.Failures)
		return e.item(), err
	}},
	"river": {riverQuery, "", func(rows pgx.Rows) (*Item, error) {
		var j job
		err := rows.Scan(&j.ID, &j.Kind, &j.State, &j.Queue, &j.At, &j.Attempt, &j.MaxAttempts, &j.Args, &j.Tags, &j.Priority)
		return j.item(), err
	}},
}

// connectWithin bounds the time to connect, and rowWithin the wait for rows.
const connectWithin, rowWithin = 10 * time.Second, 5 * time.Minute

// Reader reads the schedules of another scheduler. It is not safe for concurrent use.
type Reader struct {
	source source
	keys   string
	conn   *pgx.Conn
	rows   pgx.Rows
	cancel context.CancelFunc
}

// prefixForm matches prefixes that are names, with or without a schema.
var prefixForm = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_]?[A-Za-z0-9_]{0,62}$`)

// keyForm matches prefixes of keys. A colon ends a prefix.
var keyForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,40}$`)

// Open connects and begins to read. The caller must close the reader. The connection only reads.
func Open(ctx context.Context, o Options) (*Reader, error) {
	s, ok := sources[o.Scheduler]
	if !ok {
		return nil, fmt.Errorf("%q is not one of %s", o.Scheduler, strings.Join(Schedulers, ", "))
	}
	if o.Prefix != "" {
		s.prefix = o.Prefix
	}
	if !prefixForm.MatchString(s.prefix) {
		return nil, fmt.Errorf("the prefix %q is not the beginning of a table's name", s.prefix)
	}
	if o.KeyPrefix == "" {
		o.KeyPrefix = o.Scheduler
	}
	if !keyForm.MatchString(o.KeyPrefix) {
		return nil, fmt.Errorf("the prefix %q of keys is not 1 to 40 letters, digits, periods, hyphens or underscores", o.KeyPrefix)
	}
	config, err := pgx.ParseConfig(o.DSN)
	if err != nil {
		return nil, errors.New("the connection string is not valid") // the driver's error may quote it
	}
	config.RuntimeParams["application_name"] = "perceptorctl"
	config.RuntimeParams["default_transaction_read_only"] = "on"
	config.ConnectTimeout = connectWithin
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	reading, cancel := context.WithCancel(ctx)
	r := &Reader{source: s, keys: o.KeyPrefix, conn: conn, cancel: cancel}
	if r.rows, err = conn.Query(reading, strings.ReplaceAll(s.query, "PREFIX", s.prefix), o.Of); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Next returns the next schedule, or io.EOF after the last one.
func (r *Reader) Next() (*Item, error) {
	late := time.AfterFunc(rowWithin, r.cancel)
	defer late.Stop()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
	i, err := r.source.read(r.rows)
	if err != nil {
		return nil, err
	}
	if i.Task != nil {
		i.Task.IdempotencyKey = keyOf(r.keys, i.Name)
	}
	return i, nil
}

// Close ends the connection.
func (r *Reader) Close() {
	r.cancel()
	if r.rows != nil {
		r.rows.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = r.conn.Close(ctx) // it has read only
}

// All returns all schedules, sorted into those that a task stands for, and the others.
func All(ctx context.Context, o Options) (tasks, others []*Item, err error) {
	r, err := Open(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	for {
		i, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return slices.Clip(tasks), slices.Clip(others), nil
		case err != nil:
			return nil, nil, err
		case i.Task == nil:
			others = append(others, i)
		default:
			tasks = append(tasks, i)
		}
	}
}
