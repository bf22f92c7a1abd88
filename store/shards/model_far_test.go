package shards

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// The far tier in random histories: between any two steps rows may go into packs
// and come out again. The model knows nothing of it.

// pack moves some idle tasks into one pack.
func (h *sideBySide) pack() {
	p := rapid.SampledFrom(everyPlace[1:]).Draw(h.rt, "place")
	level := rapid.SampledFrom([]pack.Level{pack.Minute, pack.Hour, pack.Day, pack.Month}).Draw(h.rt, "level")
	near := h.rows()
	var ids []task.ID
	var bucket pack.Bucket
	for _, id := range h.ids {
		k := h.m.machines[id]
		if k == nil || near[kernel.KeyOf(h.tenant, id, 0)] == nil || !packable(k.Task, h.now) || !rapid.Bool().Draw(h.rt, "packed") {
			continue
		}
		if of := pack.BucketOf(k.Task.DueAt, level); len(ids) == 0 || of == bucket {
			ids, bucket = append(ids, id), of
		}
	}
	if len(ids) > 0 {
		h.put(p, level, ids...)
	}
}

// packable reports whether a task may be packed.
func packable(r *task.Row, now task.Instant) bool {
	return r.State == task.Scheduled && !r.Paused && r.OpenRuns == 0 && r.OpenRows == 0 && r.DueAt > now
}

// unpackOne moves the tasks of one pack into the near tier.
func (h *sideBySide) unpackOne() {
	packs := h.packs()
	if len(packs) == 0 {
		return
	}
	if err := h.unpack(rapid.SampledFrom(packs).Draw(h.rt, "pack")); err != nil {
		h.rt.Fatal(err)
	}
}

// promote moves tasks due before an instant into the near tier.
func (h *sideBySide) promote(until task.Instant) {
	for _, p := range h.packs() {
		packs, err := far.ReadPacks(h.t.Context(), h.db.Pool(h.d), []int64{int64(p)})
		if err != nil {
			h.rt.Fatal(err)
		}
		_, rows, err := packs[0].Living()
		if err != nil {
			h.rt.Fatal(err)
		}
		if slices.ContainsFunc(rows, func(r *task.Row) bool { return r.DueAt <= until }) {
			if err := h.unpack(p); err != nil {
				h.rt.Fatal(err)
			}
		}
	}
}

// listAll makes sure that a listing meets each living task once.
func (h *sideBySide) listAll() {
	seen := h.bundle.listAll(task.ListQuery{Tenant: h.tenant, Limit: 2}, func() {})
	for id := range h.m.machines {
		if seen[id] != 1 {
			h.rt.Fatalf("living task %s is met %d times", id, seen[id])
		}
	}
	if len(seen) != len(h.m.machines) {
		h.rt.Fatalf("listed %d tasks of %d", len(seen), len(h.m.machines))
	}
}
