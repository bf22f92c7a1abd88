package server

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

const (
	// A source may send lookUpBurst tokens at once that this server has not seen to be valid,
	// and then lookUpRate per second. Each one is a query.
	lookUpRate  = 10
	lookUpBurst = 100
	// rememberValid is how long a token that was valid is looked up without a limit.
	rememberValid = 24 * time.Hour
)

// lookUps bounds the look-ups of tokens that are probably bad, by source. Callers of one
// source may include good ones, such as all that come through one proxy, so these are never
// held back: tokens that were valid here, and tokens with the id of a token that exists.
type lookUps struct {
	throttle *throttle[source]
	valid    remembered[struct{}]
	// exists reports whether a token with the id of a secret exists, as far as this process
	// knows. It may be nil.
	exists func(secret string) bool
	// local reports whether a secret is checked without a query. It may be nil.
	local func(secret string) bool
	// known bounds the look-ups of tokens with the id of an existing token, by that id.
	known *throttle[string]
}

func newLookUps(tokens Authenticator) *lookUps {
	l := &lookUps{throttle: newThrottle[source](lookUpRate, lookUpBurst), known: newThrottle[string](lookUpRate, lookUpBurst)}
	if s, ok := tokens.(interface{ Exists(secret string) bool }); ok {
		l.exists = s.Exists
	}
	if s, ok := tokens.(interface{ Local(secret string) bool }); ok {
		l.local = s.Local
	}
	return l
}

// allow returns an error if the token of a source may not be looked up now.
func (l *lookUps) allow(from source, key [32]byte, secret string) error {
	if _, ok := l.valid.get(key, time.Now()); ok {
		return nil
	}
	if l.local != nil && l.local(secret) {
		return nil
	}
	if l.exists != nil && l.exists(secret) {
		if _, ok := l.known.allow(tokenID(secret)); ok {
			return nil
		}
	}
	if wait, ok := l.throttle.allow(from); !ok {
		return later(task.ReasonTooManyBadTokens, "too many unknown tokens come from this address", wait)
	}
	return nil
}

// tokenID returns the part of a secret that is not secret.
func tokenID(secret string) string { return secret[:min(len(secret), tokenIDBytes)] }

// tokenIDBytes is the length of the id with which a secret begins.
const tokenIDBytes = 16
