package kernel

import (
	"fmt"
	"runtime/debug"
)

// A PanicError is a panic that [Recovered] has made an error.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Recovered calls f and returns its error. If f panics, Recovered returns a [PanicError].
// It is for code that reads stored data: a row that makes it panic must not end one process
// after the other.
func Recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{p, debug.Stack()}
		}
	}()
	return f()
}
