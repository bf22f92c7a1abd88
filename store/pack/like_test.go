package pack

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

// drawLike draws like tasks, and the rows that they stand for.
func drawLike(t *rapid.T) (*Like, []*task.Row) {
	bases := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *task.Row { return drawRow(t, 0) }), 1, 4).Draw(t, "templates")
	x := &Like{Tenant: rapid.Int32().Draw(t, "tenant"), CreatedAt: task.Instant(rapid.Int64Range(0, 1.8e12).Draw(t, "created"))}
	for _, b := range bases {
		b.Paused, b.Seq, b.Missed, b.Version, b.FirstClaimAt = false, 0, 0, 1, 0
		x.Templates = append(x.Templates, NewTemplate(b))
	}
	var rows []*task.Row
	for i := range rapid.IntRange(1, 300).Draw(t, "tasks") {
		of := rapid.IntRange(0, len(bases)-1).Draw(t, "template")
		r := *bases[of]
		r.Tenant, r.CreatedAt, r.ID = x.Tenant, x.CreatedAt, task.ID(rapid.Int64Range(task.Shards, 1<<40).Draw(t, "id"))
		r.Begin = task.Instant(rapid.Int64Range(0, 1.8e12).Draw(t, "begin"))
		r.ScheduledAt = r.Begin + task.Instant(rapid.Int64Range(0, 1000).Draw(t, "spread"))
		r.Anchor, r.DueAt = r.ScheduledAt, r.ScheduledAt
		r.Params = bytes.Repeat([]byte{byte(i)}, rapid.IntRange(0, 30).Draw(t, "params"))
		rows = append(rows, &r)
		x.Template, x.IDs, x.Params = append(x.Template, int32(of)), append(x.IDs, r.ID), append(x.Params, r.Params)
		x.Begin, x.First = append(x.Begin, r.Begin), append(x.First, r.ScheduledAt)
	}
	return x, rows
}

func TestLikeTasksMakeThePacksOfTheirRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, rows := drawLike(t)
		const mask = 1<<20 - 1
		var at []uint64
		var chosen []*task.Row
		for i := range rows {
			if i == 0 || rapid.IntRange(0, 4).Draw(t, "chosen") > 0 {
				at, chosen = append(at, 7<<20|uint64(i)), append(chosen, rows[i])
			}
		}
		want, err := Encode(chosen, false)
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.Encode(at, mask, false)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Keys, want.Keys) || !bytes.Equal(got.Params, want.Params) {
			t.Fatalf("the blobs differ: keys %d and %d bytes, params %d and %d", len(got.Keys), len(want.Keys), len(got.Params), len(want.Params))
		}
		got.Keys, got.Params, want.Keys, want.Params = nil, nil, nil, nil
		if got.N != want.N || got.MinID != want.MinID || got.MaxID != want.MaxID || got.MinTenant != want.MinTenant || got.MaxTenant != want.MaxTenant {
			t.Fatalf("%+v, want %+v", got, want)
		}
		if got, want := x.Fit(at, mask, 100, 200), Fit(chosen, 100); got > want || got < 1 {
			t.Fatalf("%d fit, of rows %d", got, want)
		}
	})
}

func TestLikeTasksThatCannotBePackedAreRefused(t *testing.T) {
	row := typical(1, 1)[0]
	for name, change := range map[string]func(*Like){
		"never due":   func(x *Like) { x.First[0] = task.Never },
		"before 1970": func(x *Like) { x.Begin[0] = -1 },
		"no id":       func(x *Like) { x.IDs[0] = 3 },
		"created":     func(x *Like) { x.CreatedAt = -1 },
	} {
		x := &Like{
			Templates: []Template{NewTemplate(row)}, Template: []int32{0}, IDs: []task.ID{row.ID}, Begin: []task.Instant{5}, First: []task.Instant{5}, Params: [][]byte{nil},
		}
		if _, err := x.Encode([]uint64{0}, 1, true); err != nil {
			t.Fatal(err)
		}
		change(x)
		if _, err := x.Encode([]uint64{0}, 1, true); err == nil {
			t.Errorf("%s: it is packed", name)
		}
	}
}
