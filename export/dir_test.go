package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// source is a service with some tasks, which come in an order. A stream that continues also
// repeats some tasks of the database in which it continues.
type source struct {
	ids []uint64
	r   *rand.Rand
}

func newSource(seed uint64, n int) *source {
	s := &source{r: rand.New(rand.NewPCG(seed, 1))}
	for database := range uint64(16) {
		for i := range uint64(n) {
			s.ids = append(s.ids, (i*7%uint64(n)+1)*shards+database*shardsOfDatabase+i%shardsOfDatabase)
		}
	}
	return s
}

// chunks returns the chunks of a stream that begins at a position.
func (s *source) chunks(position string) (list []Chunk) {
	at, _ := strconv.Atoi(position)
	var repeated []uint64
	for _, id := range s.ids[:at] {
		if at < len(s.ids) && id%shards/shardsOfDatabase == s.ids[at]%shards/shardsOfDatabase && s.r.IntN(3) == 0 {
			repeated = append(repeated, id)
		}
	}
	for at < len(s.ids) {
		n := min(1+s.r.IntN(20), len(s.ids)-at)
		var b bytes.Buffer
		for _, id := range s.ids[at : at+n] {
			fmt.Fprintf(&b, "{\"id\":\"%d\",\"kind\":\"k\"}\n", id)
			if len(repeated) > 0 && id%shards/shardsOfDatabase == repeated[0]%shards/shardsOfDatabase {
				fmt.Fprintf(&b, "{\"id\":\"%d\",\"kind\":\"k\"}\n", repeated[0])
				repeated = repeated[1:]
			}
		}
		at += n
		list = append(list, Chunk{b.Bytes(), strconv.Itoa(at)})
	}
	return append(list, Chunk{})
}

// lines returns the lines of all parts, which must be those of the state.
func lines(t *testing.T, d *Dir) (all []string) {
	t.Helper()
	count := int64(0)
	for _, p := range d.Parts {
		text, err := os.ReadFile(filepath.Join(d.path, p.Name))
		if err != nil {
			t.Fatal(err)
		}
		of := strings.SplitAfter(string(text), "\n")
		if all = append(all, of[:len(of)-1]...); int64(len(of)-1) != p.Lines || int64(len(text)) != p.Bytes {
			t.Errorf("%s has %d lines, %d bytes; the state says %d, %d", p.Name, len(of)-1, len(text), p.Lines, p.Bytes)
		}
		count += p.Lines
	}
	if count != d.Lines {
		t.Errorf("the parts have %d lines, the state says %d", count, d.Lines)
	}
	return all
}

func TestAnExportThatIsKilledAgainAndAgainHasEachTaskOnce(t *testing.T) {
	for seed := range uint64(30) {
		s := newSource(seed, 50)
		path := filepath.Join(t.TempDir(), "out")
		d, err := Create(path, Tasks, json.RawMessage(`{"kind":"k"}`), int64(1+s.r.IntN(100)))
		for kills := 0; err == nil && !d.Done; kills++ {
			upto := 1 + s.r.IntN(40)
			for _, c := range s.chunks(d.At()) {
				if err = d.Add(c, 0); err != nil {
					t.Fatal(err)
				}
				if upto--; upto == 0 {
					break
				}
			}
			switch {
			case d.Done:
			case s.r.IntN(4) == 0: // it ends in order
				if err := d.End(); err != nil {
					t.Fatal(err)
				}
				fallthrough
			default:
				d.Abandon()
				leaveBehind(t, d, s.r)
				d, err = Resume(path)
			}
			if kills > 1000 {
				t.Fatalf("seed %d: no progress", seed)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		got := lines(t, d)
		slices.Sort(got)
		if n := len(slices.Compact(slices.Clone(got))); n != len(s.ids) || n != len(got) {
			t.Errorf("seed %d: %d lines, %d different, of %d tasks", seed, len(got), n, len(s.ids))
		}
		if again, err := Resume(path); err != nil || !again.Done || string(compacted(again.Request)) != `{"kind":"k"}` {
			t.Errorf("seed %d: afterwards: %+v, %v", seed, again, err)
		}
	}
}

func compacted(text []byte) []byte {
	var b bytes.Buffer
	_ = json.Compact(&b, text)
	return b.Bytes()
}

// leaveBehind makes files that a program leaves that was killed before it stored the state.
func leaveBehind(t *testing.T, d *Dir, r *rand.Rand) {
	t.Helper()
	for _, name := range []string{fmt.Sprintf("tasks-%05d.jsonl", len(d.Parts)+1), fmt.Sprintf("tasks-%05d.jsonl.partial", len(d.Parts)+1), StateFile + ".new"} {
		if r.IntN(2) == 0 {
			if err := os.WriteFile(filepath.Join(d.path, name), []byte("{\"id\":\"512\""), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A part of the right size whose bytes were lost, as a disk may lose them, or were replaced.
func TestAnExportWithADamagedPartIsNotTakenForComplete(t *testing.T) {
	path := t.TempDir()
	d, err := Create(path, Tasks, json.RawMessage(`{}`), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Chunk{{[]byte("{\"id\":\"512\"}\n"), "1"}, {[]byte("{\"id\":\"1024\"}\n"), ""}} {
		if err := d.Add(c, 0); err != nil {
			t.Fatal(err)
		}
	}
	if d, err = Resume(path); err != nil || !d.Done {
		t.Fatalf("the parts are as they were written: %v", err)
	}
	if err := os.WriteFile(filepath.Join(path, "tasks-00002.jsonl"), make([]byte, d.Parts[1].Bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Resume(path); err == nil || !strings.Contains(err.Error(), "tasks-00002.jsonl is not as it was written") {
		t.Errorf("a part of zeros: %v", err)
	}
}

func TestWhatIsNoExportDoesNotContinue(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"no state":      func(path string) error { return os.Remove(filepath.Join(path, StateFile)) },
		"damaged state": func(path string) error { return os.WriteFile(filepath.Join(path, StateFile), []byte("{"), 0o600) },
		"another version": func(path string) error {
			return os.WriteFile(filepath.Join(path, StateFile), []byte(`{"version":9,"what":"tasks","part_size":1}`), 0o600)
		},
		"a path as content": func(path string) error {
			return os.WriteFile(filepath.Join(path, StateFile), []byte(`{"version":1,"what":"../tasks","part_size":1}`), 0o600)
		},
		"a part is missing": func(path string) error { return os.Remove(filepath.Join(path, "tasks-00001.jsonl")) },
		"a part is cut":     func(path string) error { return os.Truncate(filepath.Join(path, "tasks-00001.jsonl"), 3) },
		"a part has other bytes": func(path string) error {
			return os.WriteFile(filepath.Join(path, "tasks-00001.jsonl"), []byte("{\"id\":\"513\"}\n"), 0o600)
		},
	} {
		path := t.TempDir()
		d, err := Create(path, Tasks, json.RawMessage(`{}`), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Add(Chunk{[]byte("{\"id\":\"512\"}\n"), "1"}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := Create(path, Tasks, nil, 1); err == nil {
			t.Error("a second export began in the same directory")
		}
		d.Abandon()
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		if d, err := Resume(path); err == nil {
			t.Errorf("%s: it continues at %q", name, d.At())
		}
	}
}

// A directory may have files of its owner, and a part may be all that is left of an export whose state is lost.
func TestAnExportRemovesNothingButItsOwnUnfinishedParts(t *testing.T) {
	path := t.TempDir()
	add := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(path, name), []byte("{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	others := []string{"tasks-2026-01-31.jsonl", "tasks-old.jsonl", "tasks-1.jsonl", "tasks-old.jsonl.partial", "tasks-00001.jsonl.zst"}
	for _, name := range others {
		add(name)
	}
	for _, name := range []string{"tasks-00001.jsonl", "tasks-00002.jsonl", "tasks-00001.jsonl.partial"} {
		add(name)
		if _, err := Create(path, Tasks, json.RawMessage(`{}`), 1); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("an export in a directory with %s: %v", name, err)
		}
		if err := os.Remove(filepath.Join(path, name)); err != nil {
			t.Errorf("%s is lost: %v", name, err)
		}
	}
	d, err := Create(path, Tasks, json.RawMessage(`{}`), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Add(Chunk{[]byte("{\"id\":\"512\"}\n"), "1"}, 0); err != nil {
		t.Fatal(err)
	}
	d.Abandon()
	add("tasks-00002.jsonl")
	add("tasks-00003.jsonl.partial")
	if d, err = Resume(path); err != nil {
		t.Fatal(err)
	}
	d.Abandon()
	var got []string
	left, err := filepath.Glob(filepath.Join(path, "tasks-*"))
	for _, name := range left {
		got = append(got, filepath.Base(name))
	}
	want := append(slices.Clone(others), "tasks-00001.jsonl")
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("in the directory are %q, want %q; %v", got, want, err)
	}
}

// A program that was stopped goes on while another one continues its export.
func TestTwoProgramsDoNotWriteToOneDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	d, err := Create(path, Tasks, json.RawMessage(`{}`), 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Add(Chunk{[]byte("{\"id\":\"512\"}\n"), "1"}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Resume(path); !errors.Is(err, ErrHeld) {
		t.Errorf("a second one continues, %v", err)
	}
	if err := d.Add(Chunk{[]byte("{\"id\":\"1024\"}\n"), ""}, 0); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, d); len(got) != 2 {
		t.Errorf("the parts have %q", got)
	}
	if again, err := Resume(path); err != nil || !again.Done {
		t.Errorf("afterwards: %+v, %v", again, err)
	}
}

func TestFilesOfOthersInTheDirectoryRemain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out[1]")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tasks.csv", "tasks-notes.txt", "other-00001.jsonl"} {
		if err := os.WriteFile(filepath.Join(path, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Create(path, Tasks, json.RawMessage(`{}`), 1); err != nil {
		t.Fatal(err)
	}
	if found, _ := os.ReadDir(path); len(found) != 5 {
		t.Errorf("%d files are left, of 5", len(found))
	}
}

func TestALineWithoutAnIDIsAnError(t *testing.T) {
	for _, text := range []string{"{}\n", "{\"id\":\"\"}\n", "{\"id\":\"x\"}\n", "{\"id\":\"512\"}", "{\"id\":\"99999999999999999999999\"}\n", "\n"} {
		if err := NewWriter(&bytes.Buffer{}, true).Write(Chunk{Lines: []byte(text)}); err == nil {
			t.Errorf("%q is a line", text)
		}
	}
	var b bytes.Buffer
	if err := NewWriter(&b, false).Write(Chunk{Lines: []byte("{}\n{}\n")}); err != nil || b.Len() != 6 {
		t.Errorf("lines of other things: %q, %v", b.String(), err)
	}
}

func BenchmarkWrite(b *testing.B) {
	var chunk bytes.Buffer
	id := uint64(shards)
	w := NewWriter(discard{}, true)
	began := time.Now()
	n := 0
	for b.Loop() {
		chunk.Reset()
		for range 500 {
			id += shards
			fmt.Fprintf(&chunk, "{\"id\":\"%d\",\"kind\":\"%s\"}\n", id, strings.Repeat("k", 400))
		}
		if w.Write(Chunk{Lines: chunk.Bytes()}) != nil {
			b.Fatal("failed")
		}
		n += 500
	}
	b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(n), "ns/line")
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// A chunk whose part cannot be created is written when the export continues: its ids do not count as seen.
func TestAChunkThatCannotBeWrittenIsNotSeen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	d, err := Create(dir, Tasks, []byte("{}"), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Add(Chunk{Lines: []byte("{\"id\":\"512\"}\n"), Position: "p1"}, 0); err != nil {
		t.Fatal(err)
	}
	block := filepath.Join(dir, "tasks-00002.jsonl.partial") // stands for EMFILE, EDQUOT, EIO, ESTALE...
	if err := os.Mkdir(block, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Add(Chunk{Lines: []byte("{\"id\":\"1024\"}\n"), Position: "p2"}, 0); err == nil {
		t.Fatal("no error")
	}
	if err := d.End(); err == nil {
		t.Error("the state was stored after a chunk that was not written")
	}
	if err := os.Remove(block); err != nil {
		t.Fatal(err)
	}
	d.Abandon()
	d, err = Resume(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d.At() != "p1" {
		t.Fatalf("resumes at %q", d.At())
	}
	// the service sends what follows p1 again
	if err := d.Add(Chunk{Lines: []byte("{\"id\":\"1024\"}\n"), Position: ""}, 0); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, p := range d.Parts {
		text, _ := os.ReadFile(filepath.Join(dir, p.Name))
		all.Write(text)
	}
	if !strings.Contains(all.String(), "1024") {
		t.Errorf("task 1024 is in no part of an export that is Done=%t; %d lines, %d dropped as repeated", d.Done, d.Lines, d.Repeated())
	}
}
