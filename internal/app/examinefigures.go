package app

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	figurestore "github.com/perceptor/perceptor/store/figures"
	"github.com/perceptor/perceptor/task"
)

// maxNamed bounds the tenants that one finding names.
const maxNamed = 20

// figures finds what the newest figures show.
func (e *examination) figures(ctx context.Context, cluster *store.Cluster) {
	now := task.At(time.Now())
	rows, missing, err := figurestore.New(cluster).Since(ctx, now.Add(-recently))
	if err != nil {
		e.add(Warning, "figures", "not checked: %s", oneLine(err))
		return
	}
	tenants := control.New(cluster, nil)
	e.judgeFigures(digest(rows, missing, now), func(id int32) (string, error) {
		t, err := tenants.TenantByID(ctx, id)
		return t.Name, err
	})
}

func (e *examination) judgeFigures(r *recent, name func(tenant int32) (string, error)) {
	e.judgeReleases(r.running())
	e.judgeListeners(r.of, name)
}

// judgeReleases finds an upgrade that is not finished.
func (e *examination) judgeReleases(running []selfAt) {
	of := map[string][]string{} // names of programs by release
	for _, s := range running {
		of[s.Version] = append(of[s.Version], s.Kind+" "+s.Name)
	}
	if len(of) < 2 {
		for release, programs := range of {
			e.add(OK, "releases", "taskds and dispatchers that run: %d, all of release %s", len(programs), release)
		}
		return
	}
	var list []string
	for _, release := range slices.Sorted(maps.Keys(of)) {
		programs := of[release]
		slices.Sort(programs)
		list = append(list, release+" ("+strings.Join(programs[:min(len(programs), maxNamed)], ", ")+")")
	}
	e.add(Warning, "releases", "programs of %d releases have run in the last %.0f s: %s", len(of), figures.SilentAfter.Seconds(), strings.Join(list, ", "))
	e.cure("finish the upgrade, or exchange the newer programs for the former release: docs/upgrade.md")
}

// judgeListeners finds tenants whose runs nobody handles in the figures of all tenants.
func (e *examination) judgeListeners(of map[int32]*figures.Of, name func(tenant int32) (string, error)) {
	var without, unhandled []string
	for _, id := range slices.Sorted(maps.Keys(of)) {
		kinds := map[string]bool{}
		for i := range of[id].Points {
			for kind := range of[id].Points[i].Unhandled {
				kinds[kind] = true
			}
		}
		alone := of[id].Now.Of(figures.Asked) > 0 && of[id].Now.Of(figures.Members) == 0
		if id <= 0 || !alone && len(kinds) == 0 {
			continue
		}
		tenant, err := name(id)
		if err != nil {
			continue // it was deleted
		}
		if alone {
			without = append(without, tenant)
		}
		if len(kinds) > 0 {
			unhandled = append(unhandled, tenant+": "+strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
		}
	}
	if n := len(without); n > 0 {
		have := "tenants have"
		if n == 1 {
			have = "tenant has"
		}
		e.add(Warning, "listeners", "%d %s runs and no listener: %s", n, have, strings.Join(without[:min(len(without), maxNamed)], ", "))
	}
	if len(unhandled) > 0 {
		e.add(Warning, "handlers", "kinds without a handler were returned by listeners: %s", strings.Join(unhandled[:min(len(unhandled), maxNamed)], "; "))
	}
	if len(without)+len(unhandled) == 0 {
		e.add(OK, "listeners", "every tenant with runs has listeners")
	}
}
