package clock

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestClocks shares one set of databases: to make them takes longer than all else.
func TestClocks(t *testing.T) {
	c := storetest.Open(t)
	var real string
	if err := c.Pool(0).QueryRow(t.Context(), `SELECT pg_get_functiondef('now_ms'::regproc)`).Scan(&real); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		test func(*testing.T, *store.Cluster)
	}{
		{"databases with tasks by the real clock are refused", refused},
		{"a frozen clock stands still and only goes forward", frozen},
		{"a running clock goes as the server's does", running},
		{"an install that was cut short is completed", completed},
		{"a look sees what there is to wait for", look},
	} {
		for d := range task.Databases { // as new
			exec(t, c, d, `DROP TABLE IF EXISTS virtual_clock`)
			exec(t, c, d, strings.Replace(real, store.SchemaName(0), store.SchemaName(d), 1))
			exec(t, c, d, `SELECT setval('task_number', 1024, false)`)
		}
		if !t.Run(test.name, func(t *testing.T) { test.test(t, c) }) {
			return
		}
	}
}

const year2030 task.Instant = 1_893_456_000_000

// nows is what now_ms() says in every database.
func nows(t *testing.T, c *store.Cluster) (all []task.Instant) {
	t.Helper()
	for d := range task.Databases {
		var now task.Instant
		if err := c.Pool(d).QueryRow(t.Context(), `SELECT now_ms()`).Scan(&now); err != nil {
			t.Fatal(err)
		}
		all = append(all, now)
	}
	return all
}

func exec(t *testing.T, c *store.Cluster, d int, sql string) {
	t.Helper()
	if _, err := c.Pool(d).Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func frozen(t *testing.T, c *store.Cluster) {
	ctx := t.Context()
	nows(t, c) // plans with the real clock in them are thrown away
	if virtual, err := Installed(ctx, c); virtual || err != nil {
		t.Fatalf("new databases have a virtual clock: %v", err)
	}
	if _, err := Read(ctx, c); !errors.Is(err, ErrReal) {
		t.Errorf("read of the real clock: %v", err)
	}
	if s, err := Install(ctx, c, State{Frozen: true, Now: year2030}); err != nil || s != (State{true, year2030}) {
		t.Fatalf("installed %+v, %v", s, err)
	}
	all := func(want task.Instant) {
		t.Helper()
		if got := nows(t, c); slices.Min(got) != want || slices.Max(got) != want {
			t.Errorf("the databases show %v, want %s", got, want)
		}
	}
	all(year2030)
	for _, m := range []struct{ to, want task.Instant }{{year2030 + 5, year2030 + 5}, {year2030 + 1, year2030 + 5}, {year2030 + 9, year2030 + 9}} {
		if s, err := Move(ctx, c, m.to); err != nil || s.Now != m.want {
			t.Errorf("moved to %s: shows %+v, %v", m.to, s, err)
		}
		all(m.want)
	}
	exec(t, c, 3, `SELECT nextval('task_number')`) // there are tasks by now
	if s, err := Install(ctx, c, State{Now: 1}); err != nil || s != (State{true, year2030 + 9}) {
		t.Errorf("installed again: %+v, %v", s, err)
	}
	all(year2030 + 9)
}

func running(t *testing.T, c *store.Cluster) {
	ctx := t.Context()
	began := time.Now()
	if _, err := Install(ctx, c, State{Now: year2030}); err != nil {
		t.Fatal(err)
	}
	near := func(what string, base task.Instant) {
		t.Helper()
		got := nows(t, c)
		if slices.Min(got) < base || slices.Max(got) > base.Add(time.Since(began)+time.Second) {
			t.Errorf("%s: the databases show %v, want %s and a little", what, got, base)
		}
	}
	near("new", year2030)
	if _, err := Move(ctx, c, year2030.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	near("moved", year2030.Add(time.Hour))
	s, err := Switch(ctx, c, true)
	if got := nows(t, c); err != nil || !s.Frozen || slices.Min(got) != s.Now || slices.Max(got) != s.Now {
		t.Errorf("frozen at %+v, shows %v, %v", s, got, err)
	}
	if s, err = Switch(ctx, c, false); err != nil || s.Frozen {
		t.Errorf("%+v, %v", s, err)
	}
	near("going again", s.Now)
}

func refused(t *testing.T, c *store.Cluster) {
	exec(t, c, 9, `SELECT nextval('task_number')`)
	if _, err := Install(t.Context(), c, State{Frozen: true, Now: year2030}); !errors.Is(err, ErrUsed) {
		t.Errorf("got %v", err)
	}
	if virtual, err := Installed(t.Context(), c); virtual || err != nil {
		t.Errorf("some databases have got a virtual clock: %v", err)
	}
}

func completed(t *testing.T, c *store.Cluster) {
	ctx := t.Context()
	for d := range 5 {
		if err := install(ctx, c, d, true, int64(year2030)+int64(d)); err != nil {
			t.Fatal(err)
		}
	}
	if virtual, err := Installed(ctx, c); !virtual || err == nil || errors.Is(err, ErrReal) {
		t.Errorf("got %v, %v", virtual, err)
	}
	s, err := Install(ctx, c, State{Frozen: true, Now: 1})
	if got := nows(t, c); err != nil || slices.Min(got) != s.Now || slices.Max(got) != s.Now || s.Now != year2030+4 {
		t.Errorf("installed %+v, shows %v, %v", s, got, err)
	}
}

func look(t *testing.T, c *store.Cluster) {
	ctx := t.Context()
	if _, err := Install(ctx, c, State{Frozen: true, Now: year2030}); err != nil {
		t.Fatal(err)
	}
	want := View{Database: 1, Now: year2030, Due: task.Never, Bucket: task.Never}
	if v, err := Look(ctx, c, 1); err != nil || v.Now != want.Now || v.Due != want.Due || v.Bucket != want.Bucket || v.Level0 || v.Outbox != 0 || len(v.Open) != 0 {
		t.Errorf("an empty database: %+v, %v", v, err)
	}
	exec(t, c, 1, `INSERT INTO far_pack (bucket_at, level, n, min_tenant, max_tenant, min_id, max_id, quarantine_reason, keys, params) VALUES
		(77, 3, 1, 1, 1, 1, 1, NULL, '', ''), (66, 4, 1, 1, 1, 1, 1, 'broken', '', ''), (88, 1, 1, 1, 1, 1, 1, NULL, '', '')`)
	exec(t, c, 1, `INSERT INTO far_level0 (first, last, n, created_at, min_tenant, max_tenant, keys, params) VALUES (1, 2, 1, 1, 1, 1, '', '')`)
	exec(t, c, 1, `INSERT INTO outbox (shards, created_at, entries) VALUES ('{32}', 1, '')`)
	v, err := Look(ctx, c, 1)
	if err != nil || v.Bucket != 77 || !v.Level0 || v.Outbox != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestOpenRunsAreNamedOneByOne(t *testing.T) {
	name := func(list []OpenRun) (names []string) {
		for _, o := range list {
			names = append(names, o.RunID.String())
		}
		return names
	}
	o := OpenRun{Tenant: "acme", RunID: task.RunID{Task: 512}, Attempt: 2, Kind: "k"}
	for _, c := range []struct {
		run, seq, open int64
		want           []string
	}{
		{0, 7, 0, []string{"512-7"}},
		{0, 7, 0b1011, []string{"512-7", "512-6", "512-4"}},
		{5, 7, 0, []string{"512-5"}},
	} {
		one := o
		one.Seq = c.run
		if got := name(appendOpen(nil, one, c.seq, c.open)); !slices.Equal(got, c.want) {
			t.Errorf("run %d, seq %d, bits %b: %v, want %v", c.run, c.seq, c.open, got, c.want)
		}
	}
	o.Seq = 3
	if got := o.String(); got != "512-3 of kind k of tenant acme, attempt 2" {
		t.Errorf("got %q", got)
	}
}
