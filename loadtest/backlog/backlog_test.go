package backlog

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

const from, to = task.Instant(1_800_000_000_000), task.Instant(1_802_592_000_000)

func generated(t testing.TB, seed uint64, number, n int) []task.Row {
	t.Helper()
	g, err := NewMaker(Mix{Tenant: 3, From: from, To: to, ParamsBytes: 100, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	rows := g.Chunk(number, n, 1)
	for i := range rows {
		rows[i].ID = task.NewID(int64(number*n+i+1), 5)
	}
	return rows
}

func sumOf(rows []task.Row) (s Sum) {
	for i := range rows {
		s.Add(&rows[i])
	}
	return s
}

func TestASumIsTheSameInAnyOrderAndSeesEveryChange(t *testing.T) {
	rows := generated(t, 1, 0, 1000)
	want := sumOf(rows)
	rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	if got := sumOf(rows); got != want {
		t.Errorf("sum in another order = %v, want %v", got, want)
	}
	for name, change := range map[string]func(r *task.Row){
		"id":      func(r *task.Row) { r.ID += task.Shards },
		"instant": func(r *task.Row) { r.ScheduledAt++ },
		"kind":    func(r *task.Row) { r.Kind += "x" },
		"params":  func(r *task.Row) { r.Params = append([]byte{1}, r.Params[1:]...) },
		"a zero":  func(r *task.Row) { r.Params = append(append([]byte{}, r.Params...), 0) },
	} {
		before := rows[7]
		change(&rows[7])
		if got := sumOf(rows); got == want {
			t.Errorf("the sum is the same after a change of %s", name)
		}
		rows[7] = before
	}
	if part := sumOf(rows[:10]); want.Minus(part) != sumOf(rows[10:]) || want.Minus(part).Plus(part) != want {
		t.Error("Minus and Plus do not agree with the sums of the parts")
	}
}

func TestGeneratedTasksAreThoseOfTheMix(t *testing.T) {
	const n = 20000
	rows := generated(t, 2, 0, n)
	types, tenants := map[task.Type]int{}, map[int32]int{}
	for i := range rows {
		r := &rows[i]
		types[r.Type]++
		tenants[r.Tenant]++
		if r.DueAt < from || r.DueAt >= to || (r.Type == task.OneShot) != (r.Interval == 0) {
			t.Fatalf("task %d = %+v, want it due in the range, and an interval unless it is a ONE_SHOT", i, r)
		}
		var p perceptorv1.Params
		if err := proto.Unmarshal(r.Params, &p); err != nil || len(p.Entries) < 3 || len(r.Params) < 90 || len(r.Params) > 110 {
			t.Fatalf("task %d has %d bytes of params %v (err = %v), want 90 to 110 bytes and at least 3 entries", i, len(r.Params), &p, err)
		}
	}
	for typ, want := range map[task.Type]float64{task.OneShot: 0.85, task.NonBlocking: 0.10, task.Blocking: 0.05} {
		if got := float64(types[typ]) / n; got < want*0.9 || got > want*1.1 {
			t.Errorf("share of %[2]s tasks = %[1].3f, want %[3].2f", got, typ, want)
		}
	}
	if got := float64(tenants[3]) / n; got < 0.05 || got > 0.15 || len(tenants) < 900 {
		t.Errorf("share of the largest tenant = %.3f with %d tenants, want 0.05 to 0.15 with at least 900", got, len(tenants))
	}
}

func TestAChunkIsTheSameForTheSameSeedAndNumber(t *testing.T) {
	first := sumOf(generated(t, 4, 9, 500))
	if again := sumOf(generated(t, 4, 9, 500)); again != first {
		t.Error("two chunks with the same seed and number differ")
	}
	a, b := generated(t, 4, 9, 500), generated(t, 5, 9, 500)
	if a[0].DueAt == b[0].DueAt && a[1].DueAt == b[1].DueAt {
		t.Error("chunks of two seeds are the same")
	}
}

func TestGeneratedTasksTakeSomeTwentyBytesInAPack(t *testing.T) {
	rows := generated(t, 6, 0, 2048)
	list := make([]*task.Row, len(rows))
	for i := range rows {
		list[i] = &rows[i]
	}
	p, err := pack.Encode(list, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := float64(len(p.Keys)+len(p.Params)) / float64(len(rows)); got < 8 || got > 28 {
		t.Errorf("%.1f bytes per task, want 8 to 28: the params compress too well, or the packs are too large", got)
	}
}

func TestPiecesAreAllTasksOnceOverAllDatabases(t *testing.T) {
	l := Load{Tasks: 1_000_003, Databases: 5, Chunk: 60_000}
	got := map[int]int64{}
	for i, p := range l.pieces() {
		if p.number != i || p.n < 1 || p.n > l.Chunk {
			t.Fatalf("piece %d = %+v, want number %d and 1 to %d tasks", i, p, i, l.Chunk)
		}
		got[p.database] += int64(p.n)
	}
	var total int64
	for d := range l.Databases {
		if total += got[d]; got[d] < 200_000 || got[d] > 200_001 {
			t.Errorf("database %d gets %d tasks, want 200000 or 200001", d, got[d])
		}
	}
	if total != l.Tasks {
		t.Errorf("all pieces have %d tasks, want %d", total, l.Tasks)
	}
}

func TestADiskThatIsTooSmallIsRefusedWithBothNumbers(t *testing.T) {
	err := CheckDisk(t.TempDir(), 1e15, 100)
	if err == nil || !strings.Contains(err.Error(), "GB free") || !strings.Contains(err.Error(), "need") {
		t.Errorf("err = %v, want one with the space that is needed and the space that is free", err)
	}
	if need := needed(1e9, 100); need < 40e9 || need > 60e9 {
		t.Errorf("a billion tasks need %s, want 40 to 60 GB", gigabytes(need))
	}
}

func TestOptionsThatCannotWorkAreRefusedByFlag(t *testing.T) {
	for flag, change := range map[string]func(o *Options){
		"--tasks":      func(o *Options) { o.Tasks = 0 },
		"--databases":  func(o *Options) { o.Databases = 17 },
		"--chunk":      func(o *Options) { o.Chunk = 1 << 30 },
		"--rate":       func(o *Options) { o.Rate = 0 },
		"--horizon":    func(o *Options) { o.Horizon = time.Second },
		"--operations": func(o *Options) { o.Operations = int(o.Tasks) },
		"--quiet":      func(o *Options) { o.Quiet = 40 * 24 * time.Hour },
		"--days":       func(o *Options) { o.Days = 0 },
	} {
		o := DefaultOptions()
		o.Tasks = 1_000_000
		change(&o)
		if err := harness.Validate(&o); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("invalid %s: err = %v, want one that names the flag", flag, err)
		}
	}
	o := DefaultOptions()
	if err := harness.Validate(&o); err != nil {
		t.Error(err)
	}
}

// BenchmarkGenerate measures the generation of tasks, which only the experiment needs.
func BenchmarkGenerate(b *testing.B) {
	g, err := NewMaker(Mix{Tenant: 3, From: from, To: to, ParamsBytes: 100, Seed: 1})
	if err != nil {
		b.Fatal(err)
	}
	const n = 1 << 16
	for b.Loop() {
		g.Chunk(1, n, 1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/task")
}
