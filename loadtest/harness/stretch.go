package harness

import (
	"context"
	"errors"
	"time"
)

// Stretch is a stretch of work whose use of processors and of the write-ahead log is
// measured.
type Stretch struct {
	meter  *Meter
	db     *Database
	from   time.Time
	before map[string]time.Duration
	wal    int64
}

// Usage is what a stretch of work used.
type Usage struct {
	// CPU is the processor time by part.
	CPU map[string]time.Duration
	// WAL is in bytes.
	WAL  int64
	Took time.Duration
}

// BeginStretch begins to measure on the server of a connection string. [Stretch.End]
// must be called.
func BeginStretch(ctx context.Context, m *Meter, dsn string) (*Stretch, error) {
	db, err := Dial(ctx, dsn)
	if err != nil {
		return nil, err
	}
	s := &Stretch{meter: m, db: db}
	if s.wal, err = db.WAL(ctx); err != nil {
		db.Close()
		return nil, err
	}
	s.before, s.from = m.Sample(), time.Now()
	return s, nil
}

// End returns what was used since the begin.
func (s *Stretch) End(ctx context.Context) (Usage, error) {
	defer s.db.Close()
	u := Usage{Took: time.Since(s.from), CPU: Used(s.before, s.meter.Sample())}
	wal, err := s.db.WAL(ctx)
	u.WAL = wal - s.wal
	return u, err
}

// MeasureStretch does some work and returns what it used.
func MeasureStretch(ctx context.Context, m *Meter, dsn string, work func() error) (Usage, error) {
	s, err := BeginStretch(ctx, m, dsn)
	if err != nil {
		return Usage{}, err
	}
	err = work()
	u, ended := s.End(ctx)
	return u, errors.Join(err, ended)
}
