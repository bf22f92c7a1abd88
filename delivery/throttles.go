package delivery

import (
	"sync"
	"time"
)

// throttles knows for how long each broker reads nothing from us, because we are above a quota. A broker answers the request
// that is too much, tells that time, and reads no further request from the connection until it has passed. A request that is
// given up before is stored all the same, and once more when it is sent again, which counts towards the quota, too. So
// none is sent that would be given up. The zero value is ready for use. Its methods may be called concurrently.
type throttles struct {
	mu    sync.Mutex
	until map[int32]time.Time // by broker
}

// longestThrottle is the longest time for which nothing is sent. A broker that restarts has forgotten the rest.
const longestThrottle = time.Minute

// answered records the time that the answer of a broker has told.
func (t *throttles) answered(broker int32, now time.Time, throttle time.Duration) {
	until := now.Add(min(throttle, longestThrottle))
	t.mu.Lock()
	defer t.mu.Unlock()
	if throttle <= 0 || !until.After(t.until[broker]) {
		return
	}
	if t.until == nil {
		t.until = map[int32]time.Time{}
	}
	t.until[broker] = until
}

// wait returns how much longer a broker reads nothing.
func (t *throttles) wait(broker int32, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.until[broker].Sub(now), 0)
}
