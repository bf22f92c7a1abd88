package server

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

const (
	// takesPerSecond is the number of parts into which the tokens of one second are divided; one part
	// is taken at a time.
	takesPerSecond = 4
	// takeTimeout bounds a take. A call does not wait longer than takeWait for one.
	takeTimeout = 2 * time.Second
	takeWait    = 100 * time.Millisecond
	// takeGap is the least time between a take that got less than it wanted and the next one;
	// awayGap is the time after a take that failed.
	takeGap = 50 * time.Millisecond
	awayGap = time.Second
)

// A stock holds the tokens of one rate of one tenant at this process.
//
// All processes share a bucket, from which a stock takes some tokens at a time, before it is
// empty if it can. So most calls wait for nothing, and a tenant that is over its rate costs a
// statement every takeGap. What is known only after a call, such as the size of its answer, is
// taken from the stock then. The stock may fall below zero; calls are refused until the rate
// has made up for it. What an import uses, in chunks that are larger than what a rate allows at
// once, is a debt beside the stock. It is paid by what the calls of all processes leave of the rate:
// by what the bucket has beyond half of what it can hold, and never by the stock. So an import
// refuses no call of its tenant, however much one of them needs at once.
//
// While the bucket does not answer, the stock fills itself with the rate divided by the number
// of processes. What it cannot hold pays the debt.
type stock struct {
	mu     sync.Mutex
	rate   quotaRate // of the last call
	tokens float64
	debt   float64
	// making is set while a timer will make up for a debt.
	making bool
	// taking is closed when the take in progress has ended; nil: there is none.
	taking chan struct{}
	again  time.Time // no take before this instant
	// away is set while the bucket does not answer. filled is when the stock has filled itself.
	away   bool
	filled time.Time
	spent  meter
}

// A quotaRate describes a stock for one call.
type quotaRate struct {
	perSecond int64
	// processes is how many share the rate.
	processes int
	// take takes tokens from the bucket. If they are to pay a debt it leaves half of the bucket.
	take func(ctx context.Context, want int, debt bool) (task.Tokens, error)
}

func (r *quotaRate) slice() float64 { return max(float64(r.perSecond/takesPerSecond), 1) }

// share returns the tokens of one second of this process while the bucket does not answer.
func (r *quotaRate) share() float64 { return max(float64(r.perSecond)/float64(max(r.processes, 1)), 1) }

// admit takes n tokens, or returns when there may be as many. Its error is that of ctx.
func (s *stock) admit(ctx context.Context, r quotaRate, n int) (wait time.Duration, ok bool, err error) {
	for tries := 1; ; tries++ {
		taking, ok := s.use(r, float64(n))
		if ok || taking == nil || tries > takesPerSecond {
			return s.missing(r, n), ok, nil
		}
		timer := time.NewTimer(takeWait)
		select {
		case <-taking:
		case <-timer.C:
			s.isAway(r)
		case <-ctx.Done():
			timer.Stop()
			return 0, false, ctx.Err()
		}
		timer.Stop()
	}
}

// begin begins a call, whose rate also holds for what goes on after it: it may have been changed. The caller holds the lock.
func (s *stock) begin(r quotaRate) (now time.Time) {
	now = time.Now()
	s.rate = r
	s.fill(r, now)
	return now
}

// use takes n tokens of the stock. If it has too few, use returns the take to wait for, or nil
// if waiting does not help.
func (s *stock) use(r quotaRate, n float64) (taking chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.begin(r)
	if s.tokens >= n || s.away && s.tokens >= min(n, r.share()) {
		s.tokens -= n
		s.spent.add(now, int64(n))
		if s.tokens < r.slice()/2 {
			s.take(r, r.slice(), false, now)
		}
		return nil, true
	}
	s.take(r, max(n-s.tokens, r.slice()), false, now)
	if s.away {
		return nil, false
	}
	return s.taking, false
}

// charge takes n tokens that a call has used already.
func (s *stock) charge(r quotaRate, n int) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.begin(r)
	s.tokens -= float64(n)
	s.spent.add(now, int64(n))
	s.makeUp(now)
}

// borrow adds n tokens that an import uses to its debt.
func (s *stock) borrow(r quotaRate, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.begin(r)
	s.debt += float64(n)
	s.spent.add(now, int64(n))
	s.makeUp(now)
}

// giveBack takes n tokens back that were borrowed and not used.
func (s *stock) giveBack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens += s.pay(float64(n))
	s.spent.add(time.Now(), int64(-n))
}

// pay pays the debt with n tokens and returns the rest. The caller holds the lock.
func (s *stock) pay(n float64) (rest float64) {
	paid := min(s.debt, n)
	s.debt -= paid
	return n - paid
}

// owed returns how long it takes until the rate has paid the debt, or 0. It makes sure that it does.
func (s *stock) owed(r quotaRate) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.debt <= 0 {
		return 0
	}
	now := s.begin(r)
	if s.away {
		s.take(r, r.slice(), false, now) // it may answer again
	}
	s.makeUp(now)
	return time.Duration(math.Ceil(max(s.debt, 1)/s.perSecond(r)*1000)) * time.Millisecond
}

// refund gives back n tokens that were taken beforehand and not used.
func (s *stock) refund(n int) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens += float64(n)
	s.spent.add(time.Now(), int64(-n))
}

// makeUp takes the tokens of a stock that is below zero, or has a debt, and goes on until it is not. They may be more than the
// bucket can hold, so the takes follow each other. The caller holds the lock.
func (s *stock) makeUp(now time.Time) {
	if s.tokens >= 0 && s.debt <= 0 || s.away || s.taking != nil || s.making {
		return
	}
	switch wait := s.again.Sub(now); {
	case wait > 0:
		s.makeUpIn(wait)
	case s.tokens < 0: // calls first
		s.take(s.rate, s.rate.slice()-s.tokens, false, now)
	default:
		s.take(s.rate, s.debt, true, now)
	}
}

// makeUpIn calls makeUp after d, unless that is to happen anyway. The caller holds the lock.
func (s *stock) makeUpIn(d time.Duration) {
	if s.making {
		return
	}
	s.making = true
	time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.making = false
		s.makeUp(time.Now())
	})
}

// take begins a take unless there is one, or it is too early. debt says that it is to pay the debt. The caller holds the lock.
func (s *stock) take(r quotaRate, want float64, debt bool, now time.Time) {
	if s.taking != nil || now.Before(s.again) {
		return
	}
	taking := make(chan struct{})
	s.taking = taking
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), takeTimeout) // the call may end before
		defer cancel()
		asked := int(math.Ceil(min(want, math.MaxInt32)))
		got, err := r.take(ctx, asked, debt)
		s.mu.Lock()
		defer s.mu.Unlock()
		defer close(taking)
		s.taken(r, got, err, asked, debt)
		if s.tokens < 0 || s.debt > 0 {
			s.makeUpIn(time.Second / takesPerSecond)
		}
	}()
}

// taken records the outcome of a take. The caller holds the lock.
func (s *stock) taken(r quotaRate, got task.Tokens, err error, asked int, debt bool) {
	s.taking = nil
	now := time.Now()
	if err != nil {
		s.startFilling(r, now)
		s.again = now.Add(awayGap)
		return
	}
	s.fill(r, now)
	s.away = false
	if debt {
		s.tokens += s.pay(float64(got.Granted))
		return
	}
	s.tokens += float64(got.Granted)
	if got.Granted < asked {
		s.again = now.Add(max(time.Duration(got.Wait)*time.Millisecond, takeGap))
	}
}

// isAway records that the take in progress is slow.
func (s *stock) isAway(r quotaRate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taking != nil {
		s.startFilling(r, time.Now())
	}
}

// startFilling makes the stock fill itself, beginning with the tokens of a second: those since
// it filled itself before, if that was less than a second ago. What a tenant owes remains, so
// that slow takes, which a tenant may bring about, are not a way out of its debts.
func (s *stock) startFilling(r quotaRate, now time.Time) {
	if s.away {
		return
	}
	s.away = true
	if second := now.Add(-time.Second); s.filled.Before(second) {
		s.filled = second
	}
	s.fill(r, now)
}

// fill adds the tokens since the stock was filled. The caller holds the lock.
func (s *stock) fill(r quotaRate, now time.Time) {
	if !s.away {
		return
	}
	grown, most := s.tokens+now.Sub(s.filled).Seconds()*r.share(), max(s.tokens, r.share())
	s.tokens, s.filled = min(grown, most), now
	s.pay(max(grown-most, 0))
}

// missing returns how long it takes until the stock may have n tokens.
func (s *stock) missing(r quotaRate, n int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(math.Ceil(max(float64(n)-s.tokens, 1)/s.perSecond(r)*1000)) * time.Millisecond
}

// perSecond returns the tokens that the stock may get in a second. The caller holds the lock.
func (s *stock) perSecond(r quotaRate) float64 {
	if s.away {
		return r.share()
	}
	return float64(r.perSecond)
}

// lastSecond returns the tokens used within the last whole second.
func (s *stock) lastSecond(now time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spent.last(now)
}

// A meter counts by second. The zero value is empty.
type meter struct{ second, now, before int64 }

func (m *meter) add(at time.Time, n int64) {
	m.turn(at)
	m.now += n
}

// last returns the count of the last whole second.
func (m *meter) last(at time.Time) int64 {
	m.turn(at)
	return m.before
}

func (m *meter) turn(at time.Time) {
	switch second := at.Unix(); {
	case second == m.second+1:
		m.second, m.before, m.now = second, m.now, 0
	case second > m.second:
		m.second, m.before, m.now = second, 0, 0
	}
}
