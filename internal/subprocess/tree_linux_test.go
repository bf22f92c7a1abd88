package subprocess

import (
	"os"
	"testing"
)

func TestMemoryOfATreeHasItsChildren(t *testing.T) {
	p := start(t, "sleep 60 & sleep 60 & wait")
	waitFor(t, "the children", func() bool {
		children, err := Children(p.PID())
		return err == nil && len(children) == 2
	})
	alone, err := proportional(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	if tree, err := TreeMemory(p.PID()); err != nil || tree <= alone {
		t.Errorf("TreeMemory = %d, %v, want more than the %d bytes of the parent alone", tree, err, alone)
	}
	if _, err := TreeMemory(1 << 30); err == nil {
		t.Error("TreeMemory of a process that does not exist returned no error")
	}
}

func TestThreadsHaveNamesAndUseTime(t *testing.T) {
	threads, err := Threads(os.Getpid())
	if err != nil || threads[os.Getpid()].Name == "" {
		t.Errorf("Threads of this process = %v, %v, want its main thread by name", threads, err)
	}
	if _, err := Threads(1 << 30); err == nil {
		t.Error("Threads of a process that does not exist returned no error")
	}
}
