package backlog

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/perceptor/perceptor/loadtest/harness"
)

const (
	barWidth  = 30
	sayEvery  = 10 * time.Second // where there is no terminal
	drawEvery = 500 * time.Millisecond
)

// bar tells how far something is: a bar on a terminal, else a line now and then.
type bar struct {
	to    io.Writer
	what  string
	total int64
	n     atomic.Int64
	begin time.Time
	live  bool
	stop  chan struct{}
	ended chan struct{}
}

// newBar returns a bar that draws itself until done.
func newBar(to io.Writer, what string, total int64) *bar {
	b := &bar{to: to, what: what, total: total, begin: time.Now(), stop: make(chan struct{}), ended: make(chan struct{})}
	if f, ok := to.(*os.File); ok {
		b.live = term.IsTerminal(int(f.Fd()))
	}
	go b.draw()
	return b
}

func (b *bar) add(n int64) { b.n.Add(n) }

func (b *bar) done() {
	close(b.stop)
	<-b.ended
}

func (b *bar) draw() {
	defer close(b.ended)
	every := sayEvery
	if b.live {
		every = drawEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.line()
		case <-b.stop:
			b.line()
			if b.live {
				fmt.Fprintln(b.to)
			}
			return
		}
	}
}

func (b *bar) line() {
	n, took := b.n.Load(), time.Since(b.begin)
	share := min(1, float64(n)/float64(max(1, b.total)))
	text := fmt.Sprintf("%s %d of %d (%.1f %%), %.0f tasks/s", b.what, n, b.total, 100*share, float64(n)/max(took.Seconds(), 1e-3))
	if n > 0 && n < b.total {
		left := time.Duration(float64(took) * (1 - share) / share)
		text += ", " + left.Round(time.Second).String() + " left"
	}
	switch {
	case b.to == nil:
	case b.live:
		full := int(share * barWidth)
		fmt.Fprintf(b.to, "\r[%s%s] %s   ", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), text)
	default:
		harness.Say(b.to, "%s", text)
	}
}
