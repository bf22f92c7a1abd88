package kernel

import (
	"fmt"
	"runtime/debug"
)

// Recovered calls f and returns its error. If f panics, Recovered returns an error with
// the stack. It is for code that reads stored data: a row that makes it panic must not end
// one process after the other.
func Recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}
