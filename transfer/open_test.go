package transfer

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// tasksOfList returns the function of [FromTasks] for some tasks.
func tasksOfList(list []Found) func(context.Context) (Found, error) {
	return func(context.Context) (Found, error) {
		if len(list) == 0 {
			return Found{}, io.EOF
		}
		first := list[0]
		list = list[1:]
		return first, nil
	}
}

func write(tb testing.TB, name string, text []byte) string {
	tb.Helper()
	if err := os.WriteFile(name, text, 0o600); err != nil {
		tb.Fatal(err)
	}
	return name
}

func gzipped(tb testing.TB, text []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil {
		tb.Fatal(err)
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func zstandard(tb testing.TB, text []byte) []byte {
	tb.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return z.EncodeAll(text, nil)
}

// kinds returns the kinds of all tasks of a source.
func kinds(tb testing.TB, s Source) string {
	tb.Helper()
	var list []string
	tasks, faults := tasksOf(tb, s)
	for _, t := range tasks {
		list = append(list, t.Kind)
	}
	return strings.Join(append(list, faults...), " ")
}

func TestFilesOfAllFormsAreReadInTheOrderOfTheirNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	line := func(kind string) []byte { return fmt.Appendf(nil, "kind,type\n%s,ONE_SHOT\n", kind) }
	write(t, filepath.Join(dir, "part-2.csv.gz"), gzipped(t, line("b")))
	write(t, filepath.Join(dir, "part-1.csv"), line("a"))
	write(t, filepath.Join(dir, "part-3.tsv.zst"), zstandard(t, []byte("kind\ttype\nc\tONE_SHOT\n")))
	write(t, filepath.Join(dir, "part-4.jsonl"), []byte(`{"kind":"d","type":"ONE_SHOT"}`))
	write(t, filepath.Join(dir, "part-5.csv"), []byte("kind,type\n"))
	// The bytes say whether a file is compressed, and not its name.
	write(t, filepath.Join(dir, "other.csv"), gzipped(t, line("e")))
	files, err := Find([]string{filepath.Join(dir, "other.csv"), filepath.Join(dir, "part-*")})
	if err != nil {
		t.Fatal(err)
	}
	if got := kinds(t, Open(files, Options{})); got != "e a b c d" {
		t.Errorf("the kinds are %q, want e a b c d", got)
	}
	p, err := NewPlan(t.Context(), files, Options{})
	if err != nil || p.Files != 6 || p.First == nil || p.First.Kind != "e" {
		t.Errorf("the plan is %+v, %v", p, err)
	}
	in := Options{Format: JSONL, Stdin: strings.NewReader(`{"kind":"f","type":"ONE_SHOT"}`)}
	if got := kinds(t, Open([]File{{Name: Stdin}}, in)); got != "f" {
		t.Errorf("standard input has the kinds %q, want f", got)
	}
}

func TestFilesThatAreNotThereOrNotFilesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := write(t, filepath.Join(dir, "a.csv"), nil)
	for _, c := range []struct {
		patterns []string
		want     string
	}{
		{[]string{dir}, "is a folder"},
		{[]string{filepath.Join(dir, "b.csv")}, "no such file"},
		{[]string{filepath.Join(dir, "b*")}, "no file matches"},
		{[]string{name, filepath.Join(dir, "*.csv")}, "is named twice"},
	} {
		if _, err := Find(c.patterns); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.patterns, err, c.want)
		}
	}
	if _, err := FormatOf("x.xls"); err == nil {
		t.Error("the format of x.xls is known")
	}
}

func TestDamagedFilesEndTheImportWithTheirName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := bytes.Repeat([]byte("x,ONE_SHOT\n"), 100_000)
	text = append([]byte("kind,type\n"), text...)
	packed, std := gzipped(t, text), zstandard(t, text)
	for name, content := range map[string][]byte{
		"cut.csv.gz":      packed[:len(packed)/2],
		"cut.csv.zst":     std[:len(std)/2],
		"wrong.csv.gz":    append(bytes.Clone(packed[:len(packed)-6]), 1, 2, 3, 4, 5, 6),
		"binary.csv":      {0x7f, 'E', 'L', 'F', 0, 1, 2},
		"wide.csv":        []byte("k\x00i\x00"),
		"empty.csv":       nil,
		"empty.csv.gz":    gzipped(t, nil),
		"not.parquet":     []byte("kind,type\nx,ONE_SHOT\n"),
		"short.parquet":   []byte("PAR1"),
		"secret.parquet":  []byte("PAREaaaaaaaa\x04\x00\x00\x00PARE"),
		"cut.parquet":     []byte("PAR1aaaaaaaaaaaaaaaaaaaaaaaaaaa"),
		"long.parquet":    []byte("PAR1aaaaaaaaaaaaaaaa\xff\xff\xff\x7fPAR1"),
		"damaged.parquet": []byte("PAR1aaaaaaaaaaaaaaaa\x08\x00\x00\x00PAR1"),
	} {
		files, err := Find([]string{write(t, filepath.Join(dir, name), content)})
		if err != nil {
			t.Fatal(err)
		}
		s := Open(files, Options{})
		var l Line
		for err == nil {
			err = s.Next(t.Context(), &l)
		}
		var f *Fault
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &f) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFileThatChangesWhileItIsReadIsAnError(t *testing.T) {
	t.Parallel()
	name := write(t, filepath.Join(t.TempDir(), "a.csv"), []byte("kind,type\nx,ONE_SHOT\n"))
	files, err := Find([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	s := Open(files, Options{})
	var l Line
	if err := s.Next(t.Context(), &l); err != nil {
		t.Fatal(err)
	}
	write(t, name, []byte("kind,type\nx,ONE_SHOT\ny,ONE_SHOT\n"))
	for err = nil; err == nil; {
		err = s.Next(t.Context(), &l)
	}
	if !strings.Contains(err.Error(), "has changed") {
		t.Errorf("the error is %v", err)
	}
}

func TestABombIsReadInLittleMemory(t *testing.T) {
	t.Parallel()
	bomb := gzipped(t, bytes.Repeat([]byte("a"), 64<<20))
	r, err := decompressed(bytes.NewReader(bomb), io.NopCloser(nil))
	if err != nil {
		t.Fatal(err)
	}
	b := newLineBuffer(r)
	var f *Fault
	if _, err := b.next(); !errors.As(err, &f) || f.Rule != errLong.Rule {
		t.Errorf("the first line is %v, want the fault of a long one", err)
	}
	if len(b.buf) > 2*MaxLine {
		t.Errorf("the buffer has %d bytes", len(b.buf))
	}
	if _, err := b.next(); !errors.Is(err, io.EOF) {
		t.Errorf("after it comes %v", err)
	}
}

func TestAnEstimateIsNearTheNumberOfLines(t *testing.T) {
	t.Parallel()
	const lines = 120_000
	text := csvOf(samples(lines), true)
	dir := t.TempDir()
	for name, content := range map[string][]byte{"a.csv": text, "a.csv.gz": gzipped(t, text)} {
		files, err := Find([]string{write(t, filepath.Join(dir, name), content)})
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPlan(t.Context(), files, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Exact || p.Lines < lines*8/10 || p.Lines > lines*12/10 || !p.Keys {
			t.Errorf("%s: the plan is %+v", name, p)
		}
	}
	var first *perceptorv1.Task
	p, err := NewPlan(t.Context(), []File{{Name: Stdin}}, Options{Format: CSV, Stdin: bytes.NewReader(text[:bytes.IndexByte(text, '\n')+1])})
	if err != nil || p.Lines != 0 || p.First != first {
		t.Errorf("the plan of a header is %+v, %v", p, err)
	}
}
