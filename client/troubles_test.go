package client

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestTroublesOfAKindAreLoggedOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newTroubles(slog.New(slog.NewTextHandler(&out, nil)))
		mail, report := &task.Publication{Kind: "mail", Seq: 1, Attempt: 2}, &task.Publication{Kind: "report"}
		for range 5 {
			l.failed(mail, errors.New("no route"))
			l.unhandled(mail)
			l.panicked(report, errors.New("panic: nil map\ngoroutine 1\nmain.go:7"))
		}
		if n := strings.Count(out.String(), "\n"); n != 3 {
			t.Errorf("%d lines, want one for each trouble:\n%s", n, out.String())
		}
		for _, want := range []string{`msg="handler failed" kind=mail`, "no handler for this kind", `err="panic: nil map" stack="goroutine 1\nmain.go:7"`} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s is missing:\n%s", want, out.String())
			}
		}
		out.Reset()
		time.Sleep(troubleEvery)
		l.failed(mail, errors.New("no route"))
		if !strings.Contains(out.String(), "suppressed=4") {
			t.Errorf("after a while: %s", out.String())
		}
		for i := range 2 * maxTroubles {
			l.failed(&task.Publication{Kind: strings.Repeat("k", i+1)}, errors.New("x"))
		}
		if len(l.logged) > maxTroubles {
			t.Errorf("%d troubles are remembered", len(l.logged))
		}
	})
}
