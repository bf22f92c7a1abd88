package client

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// stages says when a record passed its stages here, counted from the start of the engine by
// the monotonic clock. 0: it did not.
type stages struct{ received, begun, ended time.Duration }

// since returns the time since the start of the engine, which is never 0.
func (g *engine) since() time.Duration { return max(time.Since(g.started), 1) }

// timesAt returns what a result that is sent at now says about the stages of its attempt.
func (a *arrival) timesAt(now time.Duration) *perceptorv1.AttemptTimes {
	return &perceptorv1.AttemptTimes{
		Dispatcher: a.pub.Dispatcher, ScheduledMs: int64(a.pub.ScheduledAt), ClaimedMs: int64(a.pub.ClaimedAt), PublishedMs: int64(a.pub.PublishedAt),
		ReceivedAgoUs: ago(now, a.times.received), BegunAgoUs: ago(now, a.times.begun), EndedAgoUs: ago(now, a.times.ended),
	}
}

// ago returns how many microseconds ago a stage was passed, at least 1; 0: it was not.
func ago(now, at time.Duration) int64 {
	if at == 0 {
		return 0
	}
	return max((now - at).Microseconds(), 1)
}

func (g *engine) timesOf(acts []action) []*perceptorv1.AttemptTimes {
	now, list := g.since(), make([]*perceptorv1.AttemptTimes, len(acts))
	for i, a := range acts {
		list[i] = a.rec.timesAt(now)
	}
	return list
}

// identity returns how the listener describes itself in the history of runs.
func (l *Listener) identity() *perceptorv1.Listener {
	p := &perceptorv1.Listener{Name: l.cfg.Name, Version: l.cfg.Version}
	p.Host, _ = os.Hostname()
	if p.Name == "" {
		if path, err := os.Executable(); err == nil {
			p.Name = filepath.Base(path)
		}
	}
	if p.Version == "" {
		p.Version = buildVersion()
	}
	p.Name, p.Host, p.Version = task.CleanName(p.Name), task.CleanName(p.Host), task.CleanName(p.Version)
	return p
}

// buildVersion returns the version with which the program was built, or the revision of its
// source; "" if neither is known.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(len(s.Value), 12)]
		}
	}
	return ""
}
