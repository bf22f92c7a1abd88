package control

import (
	"testing"
	"time"
)

func TestProcessesOfTheAPICountEachOther(t *testing.T) {
	s, cluster := setup(t)
	alive := func(name string, want int) {
		t.Helper()
		if got, err := s.Alive(t.Context(), name, time.Minute); err != nil || got != want {
			t.Errorf("%s counts %d processes, %v, want %d", name, got, err, want)
		}
	}
	alive("a", 1)
	alive("a", 1)
	alive("b", 2)
	in(t, cluster, 0, "UPDATE taskd SET seen_at = seen_at - 61000 WHERE name = 'a'") // it still answers in database 8
	alive("b", 2)
	in(t, cluster, 8, "UPDATE taskd SET seen_at = seen_at - 61000 WHERE name = 'a'")
	alive("b", 1)
	in(t, cluster, 0, "UPDATE taskd SET seen_at = seen_at - 600000 WHERE name = 'a'")
	alive("c", 2)
	if got := count(t, cluster, "taskd"); got[0] != 2 || got[8] != 3 || got[1] != 0 {
		t.Errorf("rows by database: %v", got)
	}
	for _, d := range taskdDatabases { // "b" was killed, and then the clock was set back
		in(t, cluster, d, "UPDATE taskd SET seen_at = seen_at + 3600000 WHERE name = 'b'")
	}
	alive("c", 1)
	alive("b", 2)
	if err := s.Leave(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	alive("c", 1)
}
