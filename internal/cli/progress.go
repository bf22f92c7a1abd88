package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Progress tells people how far a long command is. What takes less than quietFor shows nothing.
// Then a terminal has a bar, which is drawn again and again in its last line; elsewhere there is a
// line every lineEvery. It must not be used concurrently.
type Progress struct {
	w        io.Writer
	what     string
	terminal bool
	now      func() time.Time

	began, drawn time.Time
	open         bool // the last line of the terminal has the bar
}

const (
	quietFor  = 2 * time.Second
	drawEvery = 200 * time.Millisecond
	lineEvery = 5 * time.Second
	barWidth  = 30
)

// NewProgress returns the progress of a command that begins now. what says in a word or two what
// is being done. w is usually standard error.
func NewProgress(w io.Writer, what string) *Progress {
	return &Progress{w: w, what: what, terminal: IsTerminal(w), now: time.Now, began: time.Now()}
}

// Show tells that done parts of total are done. total is 0 if it is not known. more is a
// remark, such as a sum, or empty.
func (p *Progress) Show(done, total int64, more string) {
	now := p.now()
	every := lineEvery
	if p.terminal {
		every = drawEvery
	}
	if now.Sub(p.began) < quietFor || now.Sub(p.drawn) < every {
		return
	}
	p.drawn = now
	line := p.line(done, total, more, now.Sub(p.began))
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	fmt.Fprint(p.w, "\r\x1b[K"+line)
	p.open = true
}

// End clears the bar, so that the result begins in its place.
func (p *Progress) End() {
	if p.open {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.open = false
	}
}

func (p *Progress) line(done, total int64, more string, took time.Duration) string {
	words := []string{p.what}
	switch {
	case total > 0:
		done = min(max(done, 0), total)
		full := int(done * barWidth / total)
		words = append(words, fmt.Sprintf("[%-*s] %3d %%", barWidth, strings.Repeat("#", full), done*100/total))
	default:
		words = append(words, fmt.Sprint(done))
	}
	if more != "" {
		words = append(words, more)
	}
	words = append(words, clock(took))
	if total > 0 && done > 0 && done < total {
		words = append(words, "about "+clock(time.Duration(float64(took)*float64(total-done)/float64(done)))+" left")
	}
	return strings.Join(words, "  ")
}

// clock writes a duration as 0:07, 12:30 or 1:02:03.
func clock(d time.Duration) string {
	s := int64(d.Round(time.Second).Seconds())
	if s < 3600 {
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// IsTerminal reports whether a person sees what is written to w.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a descriptor is a small number
}
