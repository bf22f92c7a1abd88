package app

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/task"
)

func TestTenantsWithoutListenersAndHandlersAreNamed(t *testing.T) {
	asked := func(members int64, unhandled ...string) *figures.Of {
		of := &figures.Of{Points: []figures.Point{{At: 1000}}}
		of.Now.Set(figures.Asked, 5000)
		of.Now.Set(figures.Members, members)
		for _, kind := range unhandled {
			if of.Points[0].Unhandled == nil {
				of.Points[0].Unhandled = map[string]int64{}
			}
			of.Points[0].Unhandled[kind] = 1
		}
		return of
	}
	name := func(id int32) (string, error) {
		if id == 9 {
			return "", errors.New("it was deleted")
		}
		return fmt.Sprint("t", id), nil
	}
	for _, c := range []struct {
		name string
		of   map[int32]*figures.Of
		want []string
	}{
		{"all have", map[int32]*figures.Of{1: asked(2), figures.Total: asked(0)}, []string{"every tenant with runs has listeners"}},
		{"not asked", map[int32]*figures.Of{1: {}}, []string{"every tenant with runs has listeners"}},
		{"two do not", map[int32]*figures.Of{1: asked(0), 2: asked(0)}, []string{"2 tenants have runs and no listener: t1, t2"}},
		{"some do not", map[int32]*figures.Of{1: asked(2, "mail", "fax"), 2: asked(0), 9: asked(0)}, []string{
			"1 tenant has runs and no listener: t2", "kinds without a handler were returned by listeners: t1: fax, mail",
		}},
	} {
		e := &examination{}
		e.judgeListeners(c.of, name)
		var got []string
		for _, f := range e.findings {
			got = append(got, f.What)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestProgramsOfSeveralReleasesAreNamed(t *testing.T) {
	program := func(kind, name, release string, age time.Duration) figures.Stored {
		self := figures.Self{Kind: kind, Name: name, Version: release}
		at := task.At(time.Now()).Add(-age)
		return figures.Stored{Tenant: figures.Process, At: at, Process: int64(at) + int64(len(name)), Data: self.Encode()}
	}
	taskd := program(figures.Taskd, "a", "v1.4.0", time.Second)
	former := program(figures.Dispatcher, "bb", "v1.3.0", 2*time.Second)
	for _, c := range []struct {
		name string
		rows []figures.Stored
		want []Finding
	}{
		{"nothing runs", nil, nil},
		{"one release", []figures.Stored{taskd, program(figures.Dispatcher, "cc", "v1.4.0", 3*time.Second)}, []Finding{
			{State: OK, Part: "releases", What: "taskds and dispatchers that run: 2, all of release v1.4.0"},
		}},
		{"an upgrade that is not finished", []figures.Stored{taskd, former}, []Finding{{
			State: Warning, Part: "releases", What: "programs of 2 releases have run in the last 40 s: v1.3.0 (dispatcher bb), v1.4.0 (taskd a)",
			Cure: "finish the upgrade, or exchange the newer programs for the former release: docs/upgrade.md",
		}}},
		{"the former program has ended", []figures.Stored{taskd, program(figures.Dispatcher, "bb", "v1.3.0", figures.SilentAfter+time.Second)}, []Finding{
			{State: OK, Part: "releases", What: "taskds and dispatchers that run: 1, all of release v1.4.0"},
		}},
	} {
		e := &examination{}
		e.judgeReleases(digest(c.rows, nil, task.At(time.Now())).running())
		if !slices.Equal(e.findings, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, e.findings, c.want)
		}
	}
}
