package harness

import (
	"context"
	"errors"
)

// Servers are the PostgreSQL servers of a stack. Their figures are sums over all servers. It is not
// safe for concurrent use.
type Servers []*Database

// DialAll connects to all servers, as [Dial] does.
func DialAll(ctx context.Context, dsns []string) (all Servers, err error) {
	for _, dsn := range dsns {
		d, err := Dial(ctx, dsn)
		if err != nil {
			all.Close()
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// Close ends the connections.
func (s Servers) Close() {
	for _, d := range s {
		d.Close()
	}
}

// sum adds up a figure of all servers.
func (s Servers) sum(ctx context.Context, of func(*Database, context.Context) (int64, error)) (sum int64, err error) {
	for _, d := range s {
		n, failed := of(d, ctx)
		sum, err = sum+n, errors.Join(err, failed)
	}
	return sum, err
}

// WAL is the sum of [Database.WAL].
func (s Servers) WAL(ctx context.Context) (bytes int64, err error) {
	return s.sum(ctx, (*Database).WAL)
}

// Commits is the sum of [Database.Commits].
func (s Servers) Commits(ctx context.Context) (n int64, err error) {
	return s.sum(ctx, (*Database).Commits)
}

// Sessions is the sum of [Database.Sessions].
func (s Servers) Sessions(ctx context.Context) (n int64, err error) {
	return s.sum(ctx, (*Database).Sessions)
}

// OldestSnapshot is the largest [Database.OldestSnapshot].
func (s Servers) OldestSnapshot(ctx context.Context) (age int64, err error) {
	for _, d := range s {
		a, failed := d.OldestSnapshot(ctx)
		age, err = max(age, a), errors.Join(err, failed)
	}
	return age, err
}

// Sizes adds up [Database.Sizes] by kind.
func (s Servers) Sizes(ctx context.Context) (map[string]Size, error) {
	sum := map[string]Size{}
	for _, d := range s {
		sizes, err := d.Sizes(ctx)
		if err != nil {
			return nil, err
		}
		for kind, size := range sizes {
			t := sum[kind]
			sum[kind] = Size{t.Heap + size.Heap, t.Indexes + size.Indexes, t.Toast + size.Toast}
		}
	}
	return sum, nil
}

// Statements adds up [Database.Statements].
func (s Servers) Statements(ctx context.Context) (StatementCounts, error) {
	sum := StatementCounts{}
	for _, d := range s {
		counts, err := d.Statements(ctx)
		if err != nil {
			return nil, err
		}
		for text, e := range counts {
			sum[text] = sum[text].plus(e)
		}
	}
	return sum, nil
}
