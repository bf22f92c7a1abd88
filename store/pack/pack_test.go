package pack

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// drawRow draws any row that may be packed, with the precision of the store.
func drawRow(t *rapid.T, i int) *task.Row {
	instant := func(name string) task.Instant {
		return task.Instant(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1.7e12, 1.8e12),
			rapid.Int64Range(0, int64(task.LastInstant))).Draw(t, name))
	}
	count := func(name string) int64 {
		return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1e12)).Draw(t, name)
	}
	span := func(name string) time.Duration {
		return time.Duration(rapid.Int64Range(0, 3.2e11).Draw(t, name)) * time.Millisecond
	}
	hundredths := func(name string) float64 { return float64(rapid.IntRange(0, 1000).Draw(t, name)) / 100 }
	r := &task.Row{
		Tenant: rapid.Int32().Draw(t, "tenant"),
		ID:     task.ID(rapid.Int64Range(task.Shards, 1<<62).Draw(t, "id")),
		Type:   rapid.SampledFrom(task.Types).Draw(t, "type"), State: task.Scheduled,
		DueAt: instant("due"), ScheduledAt: instant("scheduled"), Anchor: instant("anchor"),
		Terms: task.Terms{
			Begin: instant("begin"), End: instant("end"), Interval: span("interval"), MaxCount: count("max_count"),
			Retry: task.RetryPolicy{
				MaxAttempts: rapid.Int32Range(0, 1000).Draw(t, "attempts"), InitialBackoff: span("initial"),
				Multiplier: hundredths("multiplier"), MaxBackoff: span("max"), Jitter: hundredths("jitter"),
			},
			AckTimeout: span("ack"), GiveUpAfter: span("give_up"), StopOnFailure: rapid.Bool().Draw(t, "stop"),
			Retention: span("retention"), Kind: rapid.StringN(0, 20, task.MaxKindBytes).Draw(t, "kind"),
		},
		Seq: count("seq"), FirstClaimAt: instant("first_claim"),
		Missed: count("missed"), Version: rapid.Int32Min(0).Draw(t, "version"),
		Params: append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "params")...), CreatedAt: instant("created"),
	}
	if rapid.Bool().Draw(t, "never ends") {
		r.End = task.Never
	}
	if rapid.IntRange(0, 3).Draw(t, "paused") == 0 {
		r.Paused, r.DueAt = true, task.Never
	}
	if rapid.IntRange(0, 3).Draw(t, "sealed") == 0 {
		r.Spread, r.Key = span("spread"), rapid.StringN(0, 9, 40).Draw(t, "key")
		r.Tags = task.SortTags(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "red"}), 0, 3).Draw(t, "tags"))
	}
	return r
}

func drawRows(t *rapid.T) []*task.Row {
	rows := make([]*task.Row, rapid.IntRange(1, 40).Draw(t, "n"))
	for i := range rows {
		rows[i] = drawRow(t, i)
		if i > 0 && rapid.Bool().Draw(t, "like the one before") {
			like := *rows[i-1]
			like.ID, like.DueAt, like.Paused, like.Params = rows[i].ID, rows[i].DueAt, rows[i].Paused, rows[i].Params
			rows[i] = &like
		}
	}
	return rows
}

func withoutParams(rows []*task.Row) []*task.Row {
	out := make([]*task.Row, len(rows))
	for i, r := range rows {
		bare := *r
		bare.Params = nil
		out[i] = &bare
	}
	return out
}

func TestWhatIsPackedComesOutTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := drawRows(t)
		p, err := Encode(rows, rapid.Bool().Draw(t, "fast"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(p.Keys, p.Params)
		if err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(rows, got); d != "" {
			t.Fatalf("decoded rows differ (-packed +decoded):\n%s", d)
		}
		keys, err := DecodeKeys(p.Keys)
		if err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(withoutParams(rows), keys); d != "" {
			t.Fatalf("decoded keys differ (-packed +decoded):\n%s", d)
		}
		checkSpan(t, p, rows)
		checkOne(t, p, rows)
	})
}

// checkOne finds each task of a pack alone.
func checkOne(t *rapid.T, p Pack, rows []*task.Row) {
	type name struct {
		tenant int32
		id     task.ID
	}
	first := map[name]*task.Row{}
	for _, r := range rows {
		if n := (name{r.Tenant, r.ID}); first[n] == nil {
			first[n] = r
		}
	}
	for n, want := range first {
		one, err := FindOne(p.Keys, n.tenant, n.id)
		if err != nil || one == nil {
			t.Fatalf("task %s of tenant %d: %v, err %v", n.id, n.tenant, one, err)
		}
		if err := one.FillParams(p.Params); err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(want, one.Row); d != "" {
			t.Fatalf("the found task differs (-packed +found):\n%s", d)
		}
		other := name{n.tenant, n.id + task.Shards}
		if one, err := FindOne(p.Keys, other.tenant, other.id); err != nil || (one != nil) != (first[other] != nil) {
			t.Fatalf("task %s of tenant %d: %v, err %v", other.id, other.tenant, one, err)
		}
	}
}

func TestATaskAloneTakesParamsOnlyOfItsPack(t *testing.T) {
	rows := typical(10, 1)
	p, other := mustEncode(t, rows, false), mustEncode(t, typical(10, 2), false)
	one, err := FindOne(p.Keys, rows[3].Tenant, rows[3].ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := one.FillParams(other.Params); !errors.Is(err, ErrDamaged) {
		t.Errorf("params of another pack: err = %v, want ErrDamaged", err)
	}
	if one, err := FindOne(p.Keys, rows[3].Tenant+1, rows[3].ID); one != nil || err != nil {
		t.Errorf("the task of another tenant: %v, err %v; want nothing", one, err)
	}
	if _, err := FindOne(p.Keys[:len(p.Keys)-1], rows[3].Tenant, rows[3].ID); !errors.Is(err, ErrDamaged) {
		t.Errorf("keys that were cut: err = %v, want ErrDamaged", err)
	}
}

func checkSpan(t *rapid.T, p Pack, rows []*task.Row) {
	byTenant := func(a, b *task.Row) int { return cmp.Compare(a.Tenant, b.Tenant) }
	byID := func(a, b *task.Row) int { return cmp.Compare(a.ID, b.ID) }
	want := Pack{
		Keys: p.Keys, Params: p.Params, N: len(rows),
		MinTenant: slices.MinFunc(rows, byTenant).Tenant, MaxTenant: slices.MaxFunc(rows, byTenant).Tenant,
		MinID: slices.MinFunc(rows, byID).ID, MaxID: slices.MaxFunc(rows, byID).ID,
	}
	if d := gocmp.Diff(want, p); d != "" {
		t.Fatalf("the pack says otherwise than its rows (-rows +pack):\n%s", d)
	}
}

func TestChosenParamsAreFilledAndOthersStayNil(t *testing.T) {
	rows := typical(300, 1)
	p := mustEncode(t, rows, false)
	got, err := DecodeKeys(p.Keys)
	if err != nil {
		t.Fatal(err)
	}
	if err := FillParams(got, p.Params, func(i int) bool { return i == 7 || i == 299 }); err != nil {
		t.Fatal(err)
	}
	for i, r := range got {
		if i == 7 || i == 299 {
			if !bytes.Equal(r.Params, rows[i].Params) {
				t.Errorf("params of task %d: %q, want %q", i, r.Params, rows[i].Params)
			}
		} else if r.Params != nil {
			t.Errorf("task %d was not chosen and has params %q", i, r.Params)
		}
	}
}

func TestAFullPackHoldsTheWidestValues(t *testing.T) {
	rows := typical(MaxTasks, 2)
	for i, r := range rows {
		r.Kind = fmt.Sprintf("%0100d", i)
		r.Tenant = int32(rand.Uint32())
		r.Seq, r.MaxCount, r.Missed = rand.Int64(), rand.Int64(), rand.Int64()
		r.DueAt, r.Begin, r.Anchor = task.Instant(rand.Int64N(1<<62)), task.Instant(rand.Int64()), task.Instant(rand.Int64())
		r.GiveUpAfter = time.Duration(i) * time.Second
	}
	p := mustEncode(t, rows, true)
	got, err := Decode(p.Keys, p.Params)
	if err != nil {
		t.Fatal(err)
	}
	if d := gocmp.Diff(rows, got); d != "" {
		t.Fatal(d)
	}
}

func TestFitTakesNoMoreThanAPackHolds(t *testing.T) {
	big := &task.Row{Params: make([]byte, task.MaxParamsBytes)}
	small := &task.Row{}
	for _, tc := range []struct {
		name string
		rows []*task.Row
		most int
		want int
	}{
		{"nothing", nil, 10, 0},
		{"fewer than asked", []*task.Row{small, small}, 10, 2},
		{"as many as asked", []*task.Row{small, small}, 1, 1},
		{"never above the limit", slices.Repeat([]*task.Row{small}, 5000), 5000, MaxTasks},
		{"params up to the limit", slices.Repeat([]*task.Row{big}, 100), 100, MaxParams / task.MaxParamsBytes},
		{"one, whatever its size", []*task.Row{{Params: make([]byte, MaxParams+1)}, small}, 10, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Fit(tc.rows, tc.most); got != tc.want {
				t.Errorf("Fit = %d, want %d", got, tc.want)
			}
		})
	}
	rows := make([]*task.Row, MaxParams/task.MaxParamsBytes)
	for i := range rows {
		rows[i] = typical(1, 3)[0]
		rows[i].Params = bytes.Repeat([]byte{byte(i)}, task.MaxParamsBytes)
	}
	p := mustEncode(t, rows, true)
	if _, err := Decode(p.Keys, p.Params); err != nil {
		t.Errorf("a pack of the most params is not read: %v", err)
	}
}

func TestEncodeRefusesWhatIsNotWaiting(t *testing.T) {
	for name, change := range map[string]func(r *task.Row){
		"running":        func(r *task.Row) { r.State = task.Running },
		"finished":       func(r *task.Row) { r.State = task.Completed },
		"a run's row":    func(r *task.Row) { r.Run = 1 },
		"paused":         func(r *task.Row) { r.Paused = true },
		"never due":      func(r *task.Row) { r.DueAt = task.Never },
		"an open bit":    func(r *task.Row) { r.Type, r.OpenRuns = task.NonBlocking, 1 },
		"a run row":      func(r *task.Row) { r.Type, r.OpenRows = task.NonBlocking, 1 },
		"held":           func(r *task.Row) { r.Holder = 1 },
		"no type":        func(r *task.Row) { r.Type = 0 },
		"no id":          func(r *task.Row) { r.ID = 5 },
		"too long kind":  func(r *task.Row) { r.Kind = string(make([]byte, task.MaxKindBytes+1)) },
		"odd multiplier": func(r *task.Row) { r.Retry.Multiplier = 1e9 },
		"before 1970":    func(r *task.Row) { r.Begin = -1 },
		"huge params":    func(r *task.Row) { r.Params = make([]byte, MaxParams+1) },
	} {
		rows := typical(3, 4)
		change(rows[1])
		if _, err := Encode(rows, true); err == nil || errors.Is(err, ErrDamaged) {
			t.Errorf("%s: err = %v, want a plain error", name, err)
		}
	}
	for _, n := range []int{0, MaxTasks + 1} {
		if _, err := Encode(make([]*task.Row, n), true); err == nil {
			t.Errorf("a pack of %d tasks was made", n)
		}
	}
}

func TestEveryChangedByteIsFound(t *testing.T) {
	for _, n := range []int{1, 3, 40} { // the last is compressed
		p := mustEncode(t, typical(n, 5), false)
		for i := range p.Keys {
			for _, flip := range []byte{0x01, 0x80, 0xff} {
				bad := bytes.Clone(p.Keys)
				bad[i] ^= flip
				want := ErrDamaged
				if i == 1 && bad[i] > version {
					want = ErrNewer
				}
				if _, err := Decode(bad, p.Params); !errors.Is(err, want) {
					t.Fatalf("%d tasks, byte %d of the keys changed: err = %v", n, i, err)
				}
			}
		}
		for i := range p.Params {
			bad := bytes.Clone(p.Params)
			bad[i] ^= 0x10
			want := ErrDamaged
			if i == 1 {
				want = ErrNewer
			}
			if _, err := Decode(p.Keys, bad); !errors.Is(err, want) {
				t.Fatalf("%d tasks, byte %d of the params changed: err = %v", n, i, err)
			}
		}
		for cut := range len(p.Keys) {
			if _, err := DecodeKeys(p.Keys[:cut]); !errors.Is(err, ErrDamaged) {
				t.Fatalf("%d tasks, keys cut at %d: err = %v", n, cut, err)
			}
		}
	}
}

func TestParamsOfOtherTasksAreRefused(t *testing.T) {
	a, b := typical(10, 6), typical(10, 6)
	b[9].ID += task.Shards
	pa, pb := mustEncode(t, a, false), mustEncode(t, b, false)
	if _, err := Decode(pa.Keys, pb.Params); !errors.Is(err, ErrDamaged) {
		t.Errorf("err = %v, want ErrDamaged", err)
	}
}

// reseal gives content a header whose checksum is right.
func reseal(t testing.TB, magic byte, content []byte) []byte {
	blob, err := seal(magic, content, true)
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

func TestWhatThisVersionDoesNotKnowIsRefused(t *testing.T) {
	p := mustEncode(t, typical(2, 7), false)
	keys := func(change func(b []byte) []byte) []byte {
		b := change(bytes.Clone(p.Keys))
		s := checksum(b)
		b[3], b[4], b[5], b[6] = byte(s), byte(s>>8), byte(s>>16), byte(s>>24)
		return b
	}
	for name, blob := range map[string][]byte{
		"version 0":         keys(func(b []byte) []byte { b[1] = 0; return b }),
		"an unknown flag":   keys(func(b []byte) []byte { b[2] |= 0x40; return b }),
		"a further section": keys(func(b []byte) []byte { b[len(b)-1] = 1; return append(b, 1, 0) }),
		"bytes at the end":  keys(func(b []byte) []byte { return append(b, 0) }),
		"params for keys":   p.Params,
	} {
		if _, err := DecodeKeys(blob); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: err = %v, want ErrDamaged", name, err)
		}
	}
}

// TestANewerVersionIsNotDamage: this program knows nothing else about such a blob, and
// another one can read it.
func TestANewerVersionIsNotDamage(t *testing.T) {
	p := mustEncode(t, typical(20, 1), false)
	for name, change := range map[string]func(){
		"params":       func() { p.Params[1] = version + 1 },
		"keys":         func() { p.Keys[1] = 255 },
		"another body": func() { p.Keys = []byte{keysMagic, version + 1, 0xff, 0, 0, 0, 0} },
	} {
		change()
		if _, err := Decode(p.Keys, p.Params); !errors.Is(err, ErrNewer) || errors.Is(err, ErrDamaged) {
			t.Errorf("%s: err = %v, want ErrNewer", name, err)
		}
	}
}

func TestAPanicOfAReaderIsDamage(t *testing.T) {
	err := func() (err error) {
		defer recovered(&err)
		return []error{}[len(t.Name())]
	}()
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "out of range") {
		t.Errorf("err = %v, want ErrDamaged with the cause", err)
	}
}

func TestABombIsRefusedBeforeItIsUnpacked(t *testing.T) {
	huge := make([]byte, 64<<20)
	frame := normalEncoder().EncodeAll(huge, nil)
	for _, claim := range []uint64{64 << 20, 100, 1 << 63} {
		blob := append(make([]byte, headerBytes), appendUvarint(claim)...)
		blob = append(blob, frame...)
		blob[0], blob[1], blob[2] = keysMagic, version, compressed
		s := checksum(blob)
		blob[3], blob[4], blob[5], blob[6] = byte(s), byte(s>>8), byte(s>>16), byte(s>>24)
		var err error
		allocated := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, err = DecodeKeys(blob)
			}
		}).AllocedBytesPerOp()
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("claim of %d bytes: err = %v, want ErrDamaged", claim, err)
		}
		if allocated > 4<<20 {
			t.Errorf("claim of %d bytes: %d bytes were allocated for it", claim, allocated)
		}
	}
}

// TestVersionOneIsReadForEver holds packs that are stored in installations. When
// the format changes, the version does, and this file stays as it is.
func TestVersionOneIsReadForEver(t *testing.T) {
	rows := golden()
	p := mustEncode(t, rows, false)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		write(t, "testdata/v1.keys", p.Keys)
		write(t, "testdata/v1.params", p.Params)
	}
	keys, params := read(t, "testdata/v1.keys"), read(t, "testdata/v1.params")
	got, err := Decode(keys, params)
	if err != nil {
		t.Fatal(err)
	}
	if d := gocmp.Diff(rows, got); d != "" {
		t.Errorf("stored packs are read as something else (-packed +decoded):\n%s", d)
	}
	small := mustEncode(t, rows[:2], false)
	if want := read(t, "testdata/v1.small"); !bytes.Equal(small.Keys, want) {
		if os.Getenv("UPDATE_GOLDEN") != "" {
			write(t, "testdata/v1.small", small.Keys)
			return
		}
		t.Errorf("a small pack is written otherwise:\n%x\nwant\n%x", small.Keys, want)
	}
}

func write(t *testing.T, name string, b []byte) {
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) []byte {
	b, err := os.ReadFile(name)
	if err != nil && os.Getenv("UPDATE_GOLDEN") == "" {
		t.Fatal(err)
	}
	return b
}

// golden returns rows that use every field.
func golden() []*task.Row {
	var rows []*task.Row
	for i := range int64(60) {
		r := &task.Row{
			Tenant: int32(i % 7), ID: task.NewID(1000+i*i, task.Shard(i%32)), Type: task.Types[i%3], State: task.Scheduled,
			DueAt: task.Instant(1.8e12) + task.Instant(i*i*1000),
			Terms: task.Terms{
				Kind: fmt.Sprintf("kind-%d", i%4), End: task.Never,
				Retry: task.RetryPolicy{
					MaxAttempts: int32(5 + i%2), InitialBackoff: time.Second, Multiplier: 1.5, MaxBackoff: time.Hour, Jitter: 0.1,
				},
				AckTimeout: time.Minute, GiveUpAfter: 24 * time.Hour, StopOnFailure: i%5 == 0, Retention: time.Duration(i%3) * time.Hour,
			},
			Version: int32(1 + i%4), Params: fmt.Appendf(nil, "params of task %d", i), CreatedAt: task.Instant(1.79e12 + i),
		}
		r.ScheduledAt = r.DueAt - task.Instant(i%2*500)
		r.Begin, r.Anchor = r.ScheduledAt, r.ScheduledAt
		if r.Type == task.OneShot {
			r.MaxCount = 1
		} else {
			r.Interval, r.Seq, r.Missed = time.Duration(1+i%3)*time.Hour, i, i/10
			r.Begin -= task.Instant(i * 3_600_000)
			r.Anchor -= 3_600_000
			r.FirstClaimAt = r.Anchor + 5
			r.End = r.DueAt + 1e9
		}
		rows = append(rows, r)
	}
	return rows
}

// typical returns n rows like those of one hour's bucket in a large installation:
// sorted by tenant and id, a thousand tenants of very different sizes, eight
// kinds each, 85 % one-shot, 10 % with an interval, 5 % blocking.
func typical(n int, seed uint64) []*task.Row {
	rng := rand.New(rand.NewPCG(seed, 1))
	const hour, created = task.Instant(1.8e12), task.Instant(1.799e12)
	rows := make([]*task.Row, n)
	for i := range rows {
		tenant := int32(1000 * rng.Float64() * rng.Float64() * rng.Float64())
		number := rng.Int64N(2_000_000)
		r := &task.Row{
			Tenant: tenant, ID: task.NewID(5_000_000+number, task.Shard(number/62_500)), Type: task.OneShot, State: task.Scheduled,
			DueAt: hour + task.Instant(rng.Int64N(3_600_000)),
			Terms: task.Terms{
				End: task.Never, MaxCount: 1,
				Retry: task.RetryPolicy{
					MaxAttempts: 5, InitialBackoff: time.Second, Multiplier: 2, MaxBackoff: time.Hour, Jitter: 0.1,
				},
				AckTimeout: time.Minute, GiveUpAfter: 24 * time.Hour, Retention: time.Hour,
				Kind: fmt.Sprintf("t%d-kind-%d", tenant, rng.IntN(8)),
			},
			Version: 1, Params: typicalParams(rng), CreatedAt: created,
		}
		switch p := rng.IntN(100); {
		case p < 10:
			r.Type, r.Interval, r.MaxCount = task.NonBlocking, time.Duration(1+rng.IntN(24))*time.Hour, 0
		case p < 15:
			r.Type, r.Interval, r.MaxCount = task.Blocking, time.Duration(1+rng.IntN(24))*time.Hour, 0
		}
		r.ScheduledAt, r.Begin, r.Anchor = r.DueAt, r.DueAt, r.DueAt
		rows[i] = r
	}
	slices.SortFunc(rows, func(a, b *task.Row) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ID, b.ID))
	})
	return rows
}

// typicalParams returns about a hundred bytes with some fifty bits in them that
// nobody can guess.
func typicalParams(rng *rand.Rand) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: map[string]string{
		"order_id": fmt.Sprintf("ord-%09d", rng.IntN(1e9)), "user_id": fmt.Sprintf("u%07d", rng.IntN(1e6)),
		"action": "payment.reminder", "locale": "en-US", "try": fmt.Sprint(rng.IntN(3)),
	}})
	if err != nil {
		panic(err)
	}
	return b
}

func mustEncode(t testing.TB, rows []*task.Row, fast bool) Pack {
	t.Helper()
	p, err := Encode(rows, fast)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
