package control

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestASlowAnswerDoesNotSetTheClockBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		first := task.At(time.Now()).Add(time.Hour)
		c.set(first, time.Now())
		asked, showed := time.Now(), c.now()
		time.Sleep(5 * time.Second) // the answer was on its way
		c.set(showed, asked)
		if got, want := c.now(), first.Add(5*time.Second); got != want {
			t.Errorf("the clock shows %s, want %s", got, want)
		}
	})
}
