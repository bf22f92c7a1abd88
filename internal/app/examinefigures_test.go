package app

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/perceptor/perceptor/figures"
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
