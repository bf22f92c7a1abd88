package telemetry_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/internal/telemetry"
)

// collector is what reads a log. It takes nothing while it is held.
type collector struct {
	hold chan struct{} // has a value while somebody holds it
	text strings.Builder
}

func (c *collector) Write(p []byte) (int, error) {
	c.hold <- struct{}{}
	defer func() { <-c.hold }()
	return c.text.Write(p)
}

func TestALogThatIsNotReadStopsNobody(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		synctest.Test(t, func(t *testing.T) {
			c := &collector{hold: make(chan struct{}, 1)}
			log, err := telemetry.NewLog(c, "info", format)
			if err != nil {
				t.Fatal(err)
			}
			log.Info("before")
			if !strings.Contains(c.text.String(), "before") {
				t.Error("a message is not written when the call returns")
			}
			c.hold <- struct{}{}
			began, over := time.Now(), make(chan struct{})
			go func() {
				defer close(over)
				for range 100 {
					log.Info("meanwhile")
				}
			}()
			select {
			case <-over:
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("100 messages took %v", took)
				}
			case <-time.After(time.Minute):
				t.Error("whoever logs waits for the log")
			}
			<-c.hold
			synctest.Wait()
			<-over
			log.Info("afterwards")
			text := c.text.String()
			if n := strings.Count(text, "meanwhile"); n != 1 {
				t.Errorf("%s: %d messages were written, want that which had begun", format, n)
			}
			if !strings.Contains(text, "99") || !strings.Contains(text, "were dropped") || !strings.Contains(text, "afterwards") {
				t.Errorf("%s: 99 dropped messages are not told:\n%s", format, text)
			}
		})
	}
}
