package backlog

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// filled returns a store with 20,000 tasks in the near and far tier of two databases.
func filled(t *testing.T) (*Store, loaded) {
	t.Helper()
	ctx := t.Context()
	target, err := Open(ctx, testenv.PackageDatabase(t, storetest.Template()), 10*time.Minute, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	now := task.At(time.Now())
	l := Load{Tasks: 20_000, Databases: 2, Loaders: 2, Chunk: 4000, Picks: 50}
	out, err := target.load(ctx, l, Mix{Tenant: 3, From: now, To: now + 5*24*3600_000, ParamsBytes: 100, Seed: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return target, out
}

func (s *Store) exec(tb testing.TB, sql string) {
	tb.Helper()
	if _, err := s.cluster.Pool(1).Exec(context.Background(), sql); err != nil {
		tb.Fatal(err)
	}
}

func TestVerifyFindsEveryLoss(t *testing.T) {
	target, out := filled(t)
	found := func() *Verify {
		t.Helper()
		v, err := target.verify(t.Context(), 2, 2, out.sum, nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := found(); v.Broken() || out.sum.Count != 20_000 {
		t.Fatalf("verify = %+v before any loss, loaded %v, want 20000 tasks and none missing", v, out.sum)
	}
	if len(out.picks) != 50 || out.near == 0 || out.packs == 0 {
		t.Fatalf("%d tasks picked, %d near tasks, %d packs; want 50 picked and some of the others", len(out.picks), out.near, out.packs)
	}
	for name, change := range map[string][2]string{
		"a row": {
			`CREATE TABLE aside AS SELECT * FROM task LIMIT 1; DELETE FROM task WHERE id = (SELECT id FROM aside)`,
			`INSERT INTO task SELECT * FROM aside; DROP TABLE aside`,
		},
		"a pack": {
			`CREATE TABLE aside AS SELECT * FROM far_pack LIMIT 1; DELETE FROM far_pack WHERE id = (SELECT id FROM aside)`,
			`INSERT INTO far_pack OVERRIDING SYSTEM VALUE SELECT * FROM aside; DROP TABLE aside`,
		},
		"a task's instant": {
			`UPDATE task SET scheduled_at = scheduled_at + 1 WHERE id = (SELECT min(id) FROM task)`,
			`UPDATE task SET scheduled_at = scheduled_at - 1 WHERE id = (SELECT min(id) FROM task)`,
		},
	} {
		for _, step := range []struct {
			sql    string
			broken bool
		}{{change[0], true}, {change[1], false}} {
			target.exec(t, "DO $$ BEGIN "+step.sql+"; END $$")
			if v := found(); v.Broken() != step.broken {
				t.Errorf("change of %s: want broken = %t, verify = %+v", name, step.broken, v)
			}
		}
	}
}
