package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// bucketQuotas has a bucket for each quota.
type bucketQuotas struct {
	Quotas
	mu      sync.Mutex
	buckets map[task.Quota]*fakeBucket
	living  int64
	err     error // of counts
}

func (b *bucketQuotas) TakeQuota(ctx context.Context, _ int32, q task.Quota, perSecond int64, want, keep, _ int) (task.Tokens, error) {
	b.mu.Lock()
	if b.buckets == nil {
		b.buckets = map[task.Quota]*fakeBucket{}
	}
	f := b.buckets[q]
	if f == nil {
		f = &fakeBucket{at: time.Now(), free: float64(perSecond)}
		b.buckets[q] = f
	}
	b.mu.Unlock()
	return f.take(perSecond)(ctx, want, keep > 0)
}

func (b *bucketQuotas) Counts(context.Context, int32) ([]task.TypeCounts, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return []task.TypeCounts{{Counts: task.Counts{Scheduled: b.living}}}, b.err
}

// While a tenant exports or imports as fast as its quotas allow, they refuse none of its calls.
func TestStreamsLeaveCallsToTheirTenant(t *testing.T) {
	const lines, bytes = 700, 256 << 10
	export := func(ctx context.Context, s *spending) error { // as stream.SendMsg does
		if err := s.pace(ctx, nil, &perceptorv1.ExportChunk{LineCount: lines, Lines: make([]byte, bytes)}); err != nil {
			return err
		}
		s.streamed(bytes)
		return nil
	}
	imports := func(ctx context.Context, s *spending) error { // as stream.RecvMsg does
		if err := s.payDebt(ctx); err != nil {
			return err
		}
		s.streamed(1 << 20)
		return nil
	}
	for name, c := range map[string]struct {
		method  string
		streams int
		step    func(context.Context, *spending) error
		least   int // steps in a minute, by the quotas
	}{
		"an export":   {perceptorv1.ExportService_ExportTasks_FullMethodName, 1, export, 60 * 10_000 / lines * 9 / 10},
		"two exports": {perceptorv1.ExportService_ExportTasks_FullMethodName, 2, export, 60 * 10_000 / lines * 9 / 10},
		"an import":   {perceptorv1.ImportService_WriteImport_FullMethodName, 1, imports, 60 * 8 * 9 / 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := quotasOf(&bucketQuotas{}, slog.New(slog.DiscardHandler), &Events{})
				q.defaults = task.Quotas{task.QuotaReads: 10_000, task.QuotaBytes: 8 << 20}
				if c.method == perceptorv1.ExportService_ExportTasks_FullMethodName {
					q.defaults[task.QuotaBytes] = 128 << 20
				}
				who := &Identity{Tenant: Tenant{ID: 7, Name: "acme"}}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				steps := make([]int, c.streams)
				var streaming sync.WaitGroup
				for i := range steps {
					streaming.Go(func() {
						s, err := q.begin(ctx, c.method, who)
						if err != nil {
							t.Error(err)
							return
						}
						defer s.end(ctx, nil, nil)
						for ctx.Err() == nil && c.step(ctx, s) == nil {
							steps[i]++
							time.Sleep(3 * time.Millisecond) // what a page costs
						}
					})
				}
				refused, calls := 0, 0
				for ; ctx.Err() == nil; calls++ {
					time.Sleep(100*time.Millisecond + time.Duration(calls%7)*time.Millisecond)
					s, err := q.begin(ctx, perceptorv1.TaskService_GetTask_FullMethodName, who)
					if err != nil {
						refused++
						continue
					}
					s.end(ctx, &perceptorv1.Task{}, nil)
				}
				streaming.Wait()
				if refused > 1 { // the last one is cut off by the end
					t.Errorf("%d of %d calls were refused", refused, calls)
				}
				sum := 0
				for _, n := range steps {
					sum += n
				}
				if sum < c.least {
					t.Errorf("%d messages in a minute, want at least %d: what the quotas allow", sum, c.least)
				}
				time.Sleep(time.Minute) // the rates pay the rest
			})
		})
	}
}

// chunkSink is a stream that records whether the last message of an export was sent.
type chunkSink struct {
	grpc.ServerStream
	ctx   context.Context
	ended bool
}

func (f *chunkSink) Context() context.Context { return f.ctx }

func (f *chunkSink) Send(c *perceptorv1.ExportChunk) error {
	f.ended = f.ended || c.GetPosition() == ""
	return nil
}

// An export whose pages end with an error must not end as one that has all of them.
func TestAFailedExportNeverSaysThatItIsComplete(t *testing.T) {
	s := newExportService(newFakeExports(1, 1), nil)
	ctx := context.WithValue(t.Context(), identityKey{}, &Identity{Tenant: acme})
	first := newFakeExports(1, 1).pages[0]
	for range 3000 {
		f := &chunkSink{ctx: ctx}
		err := s.serve(f, &reader{}, []byte("h"), func(ctx context.Context, pages chan<- page) error {
			if err := pass(ctx, pages, &taskPage{first, false}); err != nil {
				return err
			}
			return errors.New("the database is away")
		})
		if err == nil || f.ended {
			t.Fatalf("a failed export ended with %v, and said that it was complete: %t", err, f.ended)
		}
	}
}

// The pause that the rate of an import asks for outlives its stream, which the server ends when it is idle.
func TestTheRateOfAnImportOutlivesItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, i := &importRates{}, &task.Import{ID: 5}
		i.Terms.MaxRate = 1000
		lines, began := 0, time.Now()
		for time.Since(began) < 10*time.Minute {
			r := m.enter(i)
			if r.wait(t.Context(), 65_536) == nil {
				lines += 65_536
			}
			time.Sleep(time.Second)
			m.leave(r)
		}
		if perSecond := float64(lines) / time.Since(began).Seconds(); perSecond < 900 || perSecond > 1200 {
			t.Errorf("%.0f lines per second were admitted, want 1,000", perSecond)
		}
		time.Sleep(2 * time.Minute)
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.of) != 0 {
			t.Errorf("the rates of %d imports are kept that nobody writes", len(m.of))
		}
	})
}

// While one of sixteen databases cannot be counted, tasks that end do not fill the backlog.
func TestABacklogThatCannotBeCountedStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &bucketQuotas{living: 10}
		q := quotasOf(f, slog.New(slog.DiscardHandler), &Events{})
		q.defaults = task.Quotas{task.QuotaBacklog: 10_000}
		tenant := &Tenant{ID: 7, Name: "acme"}
		for i := range 100 * 600 { // 100 adds a second, each of which ends soon
			r, err := q.admit(t.Context(), tenant, 1)
			if err != nil {
				t.Fatalf("add %d was refused: %v", i, err)
			}
			r.end(1)
			if i == 100 {
				f.mu.Lock()
				f.err = errors.New("database 11 does not answer")
				f.mu.Unlock()
			}
			time.Sleep(10 * time.Millisecond)
		}
		_, err := q.admit(t.Context(), tenant, 10_000)
		wantQuota(t, err, task.QuotaBacklog)
	})
}
