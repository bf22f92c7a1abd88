package transfer

import (
	"bufio"
	"bytes"

	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// The formats of files.
const (
	CSV     = "csv"
	JSONL   = "jsonl"
	Parquet = "parquet"
)

// Formats are the values of [Options.Format].
var Formats = []string{CSV, JSONL, Parquet}

// Stdin is the name of the standard input.
const Stdin = "-"

// Options say how files are read.
type Options struct {
	Mapping
	// Format is that of all files. Empty: the extension of each says it.
	Format  string
	Dialect Dialect
	// Stdin is read as the file [Stdin]. nil: there is none.
	Stdin io.Reader
	// Progress is told the number of bytes read of files, as they are on disk. May be nil.
	Progress func(bytes int64)
}

// File is a file to import, as it was found.
type File struct {
	// Name is its path; Size and Changed are 0 for [Stdin].
	Name    string    `json:"name"`
	Size    int64     `json:"size"`
	Changed time.Time `json:"changed"`
	// Path is where it is now, if not at its name.
	Path string `json:"-"`
}

// path returns where the file is.
func (f File) path() string {
	if f.Path != "" {
		return f.Path
	}
	return f.Name
}

// Find returns the files that patterns name: those of a pattern sorted by name. It refuses a pattern without a file, and
// a file that is named twice.
func Find(patterns []string) ([]File, error) {
	var files []File
	for _, pattern := range patterns {
		names := []string{pattern}
		if _, err := os.Stat(pattern); err != nil && pattern != Stdin && strings.ContainsAny(pattern, "*?[") {
			if names, err = filepath.Glob(pattern); err != nil {
				return nil, fmt.Errorf("%q is not a pattern of file names", pattern)
			}
			if len(names) == 0 {
				return nil, fmt.Errorf("no file matches %q", pattern)
			}
			slices.Sort(names)
		}
		for _, name := range names {
			f, err := Stat(name)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(files, func(other File) bool { return other.Name == name }) {
				return nil, fmt.Errorf("the file %s is named twice", name)
			}
			files = append(files, f)
		}
	}
	return files, nil
}

// Stat returns a file as it is now.
func Stat(name string) (File, error) {
	if name == Stdin {
		return File{Name: name}, nil
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return File{}, err
	case info.IsDir():
		return File{}, fmt.Errorf("%s is a folder: name its files, as in %s", name, filepath.Join(name, "*"))
	}
	return File{Name: name, Size: info.Size(), Changed: info.ModTime().UTC()}, nil
}

// Same returns an error if the file is not the same any more.
func (f File) Same() error {
	now, err := Stat(f.path())
	if err == nil && (now.Size != f.Size || !now.Changed.Equal(f.Changed)) {
		err = fmt.Errorf("the file %s has changed: it had %d bytes of %s, and has %d of %s", f.Name, f.Size, stamp(f.Changed), now.Size, stamp(now.Changed))
	}
	return err
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.999Z") }

// FormatOf returns the format of a file by its extension, before that of a compression.
func FormatOf(name string) (string, error) {
	base := strings.ToLower(name)
	for _, packed := range []string{".gz", ".gzip", ".zst", ".zstd"} {
		base = strings.TrimSuffix(base, packed)
	}
	switch filepath.Ext(base) {
	case ".csv", ".tsv":
		return CSV, nil
	case ".jsonl", ".ndjson", ".json":
		return JSONL, nil
	case ".parquet", ".pq":
		return Parquet, nil
	}
	return "", fmt.Errorf("the name of %s does not tell its format: choose one of %s", name, strings.Join(Formats, ", "))
}

// Open returns the lines of files, one file after the other. A file that changes while it is read is an
// error.
func Open(files []File, o Options) Source { return &fileSource{files: files, o: o} }

// fileSource reads files one after the other.
type fileSource struct {
	files []File
	o     Options
	now   Source
}

// Next implements [Source].
func (s *fileSource) Next(ctx context.Context, l *Line) error {
	for {
		if s.now == nil {
			if len(s.files) == 0 {
				return io.EOF
			}
			var err error
			if s.now, err = openFile(s.files[0], &s.o); err != nil {
				return err
			}
		}
		err := s.now.Next(ctx, l)
		if !errors.Is(err, io.EOF) {
			return err
		}
		if err := errors.Join(s.Close(), s.files[0].Same()); err != nil {
			return err
		}
		s.files = s.files[1:]
	}
}

// Template implements [Source].
func (s *fileSource) Template(l *Line) (*perceptorv1.Task, error) { return s.now.Template(l) }

// Close implements [Source].
func (s *fileSource) Close() error {
	if s.now == nil {
		return nil
	}
	err := s.now.Close()
	s.now = nil
	return err
}

// openFile returns the lines of a file.
func openFile(f File, o *Options) (Source, error) {
	format := o.Format
	if format == "" {
		if f.Name == Stdin {
			return nil, fmt.Errorf("standard input has no extension: choose a format of %s", strings.Join(Formats, ", "))
		}
		var err error
		if format, err = FormatOf(f.Name); err != nil {
			return nil, err
		}
	}
	if format == Parquet {
		return OpenParquet(f, o)
	}
	r, err := o.open(f)
	if err != nil {
		return nil, err
	}
	var s Source
	if format == JSONL {
		s, err = OpenJSON(shownName(f.Name), r, o.Mapping)
	} else {
		d := o.Dialect
		if d.Delimiter == 0 && strings.Contains(strings.ToLower(filepath.Base(f.Name)), ".tsv") {
			d.Delimiter = '\t'
		}
		s, err = OpenCSV(shownName(f.Name), r, d, o.Mapping)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return s, nil
}

// shownName is the name of a file in positions.
func shownName(name string) string {
	if name == Stdin {
		return "standard input"
	}
	return name
}

// open returns the decompressed content of a file.
func (o *Options) open(f File) (io.ReadCloser, error) {
	if f.Name == Stdin {
		if o.Stdin == nil {
			return nil, errors.New("there is no standard input")
		}
		return decompressed(o.counted(o.Stdin), io.NopCloser(nil))
	}
	file, err := os.Open(f.path())
	if err != nil {
		return nil, err
	}
	r, err := decompressed(o.counted(file), file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", f.Name, err), file.Close())
	}
	return r, nil
}

func (o *Options) counted(r io.Reader) io.Reader {
	if o.Progress == nil {
		return r
	}
	return &countingReader{r: r, tell: o.Progress}
}

// countingReader tells how many bytes were read.
type countingReader struct {
	r    io.Reader
	tell func(int64)
}

// Read implements [io.Reader].
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.tell(int64(n))
	return n, err
}

// maxWindow bounds the memory that a file compressed with zstd may ask for.
const maxWindow = 128 << 20

// decompressed returns the content of r: its first bytes say whether it is compressed, and how. done
// is closed with it.
func decompressed(r io.Reader, done io.Closer) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		return closers{z, []func() error{done.Close}}, err
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return closers{z, []func() error{func() error { z.Close(); return nil }, done.Close}}, nil
	}
	return closers{b, []func() error{done.Close}}, nil
}

// closers is a reader with what must be closed after it.
type closers struct {
	io.Reader
	close []func() error
}

// Close implements [io.Closer].
func (c closers) Close() error {
	var errs []error
	for _, f := range c.close {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
