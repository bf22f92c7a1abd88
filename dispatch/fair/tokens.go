package fair

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// A TokenCache has tokens of one tenant with a dispatch rate. The bucket itself is
// a row in the tenant's home database, which grants tokens to all dispatchers by the
// generic cell rate algorithm (ITU-T I.371). The cache asks for a quarter of a
// second's tokens at a time, so that the row is not read for each claim. The zero
// value is empty.
//
// Tokens expire: what a dispatcher has not used after a second is offered back with
// its next request. So over any time t a tenant gets at most rate × (t + 1 s) + burst.
type TokenCache struct {
	tokens int
	// tokens are good until expires. When the home database granted none, the next
	// request is sent at askAt.
	expires, askAt time.Time
}

const (
	// TokenLifetime is how long granted tokens may be used.
	TokenLifetime = time.Second
	// requestsPerSecond is into how many requests a second's tokens are divided.
	requestsPerSecond = 4
	// LeastTokenWait and MostTokenWait bound the time between two requests when no
	// token was granted.
	LeastTokenWait, MostTokenWait = 10 * time.Millisecond, time.Second
)

// TakeTokens takes up to want tokens. If ask is true there are none, and the caller asks
// the home database for [TokenRequest], passes the answer to [TokenCache.Grant] and
// takes again. If tokens is 0 otherwise, there are none before again.
func (c *TokenCache) TakeTokens(now time.Time, want int) (tokens int, again time.Time, ask bool) {
	if c.tokens == 0 || !now.Before(c.expires) {
		if now.Before(c.askAt) {
			return 0, c.askAt, false
		}
		return 0, time.Time{}, true
	}
	tokens = min(c.tokens, want)
	c.tokens -= tokens
	return tokens, time.Time{}, false
}

// TokenRequest returns how many tokens to request for a claim of want rows, for a
// tenant of that dispatch rate.
func TokenRequest(rate int32, want int) int {
	return min(want, max(int(rate)/requestsPerSecond, 1))
}

// Unused returns the tokens to offer back with a request.
func (c *TokenCache) Unused() int { return c.tokens }

// Grant replaces the tokens by those that the home database has granted.
func (c *TokenCache) Grant(now time.Time, t task.Tokens) {
	c.tokens, c.expires = t.Granted, now.Add(TokenLifetime)
	if t.Granted == 0 {
		c.askAt = now.Add(min(max(time.Duration(t.Wait)*time.Millisecond, LeastTokenWait), MostTokenWait))
	}
}

// ReturnTokens gives back tokens that were taken and not used.
func (c *TokenCache) ReturnTokens(tokens int) { c.tokens += tokens }

// ClockMoved: the home database's clock was set, so it may have tokens by now.
func (c *TokenCache) ClockMoved() { c.askAt = time.Time{} }
