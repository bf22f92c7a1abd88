package kernel

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestALookCountsUntilSomethingMayHaveChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l looks
		quiet := func(want bool) {
			t.Helper()
			if l.Quiet(3) != want || l.Quiet(4) {
				t.Errorf("database 3 is quiet: %v, database 4: %v; want %v and false", l.Quiet(3), l.Quiet(4), want)
			}
		}
		quiet(false)
		l.Looked(3, time.Now(), true)
		quiet(true)
		time.Sleep(quietFor - 1)
		quiet(true)
		time.Sleep(time.Nanosecond)
		quiet(false)

		l.Looked(3, time.Now(), true)
		l.Looked(3, time.Now(), false) // something waits
		quiet(false)

		began := time.Now()
		time.Sleep(time.Nanosecond)
		l.Changed(3)
		l.Looked(3, began, true) // it may have read the database before it was changed
		quiet(false)
		time.Sleep(time.Nanosecond)
		l.Looked(3, time.Now(), true)
		quiet(true)
		l.Changed(3)
		quiet(false)
	})
}
