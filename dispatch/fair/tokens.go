package fair

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// A TokenCache holds tokens of one tenant with a dispatch rate. The bucket itself is a row
// in the tenant's home database, which grants tokens to all dispatchers by the generic cell
// rate algorithm (ITU-T I.371). The cache requests a quarter of a second's tokens at a time,
// so that the row is not read for each claim. The zero value is an empty cache.
//
// Tokens expire: a dispatcher offers tokens that it has not used after a second back with
// its next request. So over any time t a tenant takes at most rate × (t + 1 s) + burst
// tokens, while requests take less than three quarters of a second.
type TokenCache struct {
	tokens int
	// tokens are valid until expires. If the home database granted none, the next request is
	// sent at askAt.
	expires, askAt time.Time
	// The last grant without the home database was at partAt, and left a fraction of a token.
	partAt   time.Time
	fraction float64
}

const (
	// TokenLifetime is how long granted tokens may be used.
	TokenLifetime = time.Second
	// leastLifetime is how long the tokens of an answer that took long may be used. Without it, they
	// might all have expired when they come.
	leastLifetime = TokenLifetime / 4
	// requestsPerSecond is the number of requests that a second's tokens are divided into.
	requestsPerSecond = 4
	// LeastTokenWait is the least time between two requests if the first granted no token.
	LeastTokenWait = 10 * time.Millisecond
	// MostTokenWait is the most time between two such requests.
	MostTokenWait = time.Second
)

// TakeTokens takes up to want tokens. If ask is true the cache is empty: the caller requests
// [TokenRequest] tokens from the home database, passes the answer to [TokenCache.Grant], and
// calls TakeTokens again. If ask is false and tokens is 0, there are no tokens before again.
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

// TokenRequest returns the number of tokens to request for a claim of want rows and a tenant
// with that dispatch rate.
func TokenRequest(rate int32, want int) int {
	return min(want, max(int(rate)/requestsPerSecond, 1))
}

// Low reports whether the cache has less than half of what a request brings at that rate, but
// more than nothing.
func (c *TokenCache) Low(rate int32) bool {
	return c.tokens > 0 && c.tokens < TokenRequest(rate, int(rate))/2
}

// Unused returns the tokens to offer back with a request.
func (c *TokenCache) Unused() int { return c.tokens }

// Grant replaces the tokens by those that the home database has granted. The request was sent at asked and
// answered now.
func (c *TokenCache) Grant(asked, now time.Time, t task.Tokens) {
	c.tokens, c.expires = t.Granted, asked.Add(max(TokenLifetime, now.Sub(asked)+leastLifetime))
	if t.Granted == 0 {
		c.askAt = asked.Add(min(max(time.Duration(t.Wait)*time.Millisecond, LeastTokenWait), MostTokenWait))
	}
}

// GrantPart replaces the tokens by those of perSecond since the last call, for at most
// TokenLifetime. It is for the time in which the home database does not answer.
func (c *TokenCache) GrantPart(now time.Time, perSecond float64) {
	since := min(now.Sub(c.partAt), TokenLifetime)
	if c.partAt.IsZero() {
		since = time.Second / requestsPerSecond
	}
	exact := perSecond*since.Seconds() + c.fraction
	granted := int(exact)
	c.partAt, c.fraction = now, exact-float64(granted)
	wait := MostTokenWait
	if perSecond > 0 {
		wait = time.Duration((1 - c.fraction) / perSecond * float64(time.Second))
	}
	c.Grant(now, now, task.Tokens{Granted: granted, Wait: wait.Milliseconds() + 1})
}

// ReturnTokens returns tokens that were taken but not used.
func (c *TokenCache) ReturnTokens(tokens int) { c.tokens += tokens }

// ClockMoved records that the home database's clock was set, so it may have tokens already.
func (c *TokenCache) ClockMoved() { c.askAt = time.Time{} }
