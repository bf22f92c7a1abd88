package kernel

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAPanicIsAnErrorWithItsStack(t *testing.T) {
	err := Recovered(func() error { return []error{}[len(t.Name())] })
	if err == nil || !strings.Contains(err.Error(), "out of range") || !strings.Contains(err.Error(), "recovered_test.go") {
		t.Errorf("err = %v, want the panic and the stack", err)
	}
	if err := Recovered(func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("err = %v, want that of the function", err)
	}
}
