package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer"
)

// reject is a line of the reject file.
type reject struct {
	// Import is the id of the import: the file of one has the same name as that of the next.
	Import int64  `json:"import,string"`
	File   string `json:"file"`
	Line   int64  `json:"line"`
	Column string `json:"column,omitempty"`
	Field  string `json:"field,omitempty"`
	Value  string `json:"value,omitempty"`
	Rule   string `json:"rule"`
	// Chunk is the chunk of a line that the service has rejected.
	Chunk int64 `json:"chunk,omitempty"`
}

// place identifies a fault.
type place struct {
	file  string
	line  int64
	field string
}

// maxPlaces bounds the faults of an earlier call that are recognised.
const maxPlaces = 1 << 20

// rejects collects rejected lines in a file, which is made for the first one. It is safe for concurrent use.
type rejects struct {
	name   string
	redact bool
	max    int64
	of     int64 // id of the import

	mu    sync.Mutex
	file  *os.File
	out   *bufio.Writer
	keep  bool // the file has those of an earlier call
	cut   bool // and its last line is cut off
	known map[place]bool
	local int64 // lines that could not be read
	// remote counts the lines that the service has rejected. The file has the listed ones: the service names the faults of a
	// chunk up to a limit, and does not name those again that it has found in its data.
	remote, listed int64
}

// errTooMany ends an import that has too many rejected lines.
var errTooMany = errors.New("too many lines are rejected")

// rejectName returns the name of the reject file.
func rejectName(o *importOptions) string {
	switch {
	case o.run.rejectFile != "":
		return o.run.rejectFile
	case len(o.Files) == 0 || o.Files[0].Name == transfer.Stdin:
		return "import.rejects.jsonl"
	}
	return filepath.Base(o.Files[0].Name) + ".rejects.jsonl"
}

// add writes a reject, unless an earlier call has.
func (r *rejects) add(x reject) error {
	at := place{x.File, x.Line, x.Field}
	if r.known[at] {
		return nil
	}
	x.Import = r.of
	if r.redact {
		x.Rule, x.Value = redacted(x.Rule, x.Value), ""
	}
	if err := r.open(); err != nil {
		return err
	}
	e := json.NewEncoder(r.out)
	e.SetEscapeHTML(false)
	return e.Encode(x)
}

func (r *rejects) open() (err error) {
	if r.file != nil {
		return nil
	}
	how := os.O_TRUNC
	if r.keep {
		how = os.O_APPEND
	}
	if r.file, err = os.OpenFile(r.name, os.O_CREATE|os.O_WRONLY|how, 0o600); err != nil {
		return fmt.Errorf("open the reject file: %w", err)
	}
	r.out = bufio.NewWriter(r.file)
	if r.cut {
		r.out.WriteByte('\n') //nolint:errcheck // the next write returns it, too
	}
	return r.protect()
}

// protect makes the file one that only its owner may read, also if it was there. A device, such as /dev/null, or a pipe
// belongs to others, too: root would take it from them.
func (r *rejects) protect() error {
	info, err := r.file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	return r.file.Chmod(0o600)
}

var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// redacted returns a rule without the value.
func redacted(rule, value string) string {
	rule = quotedText.ReplaceAllString(rule, `"..."`)
	if value != "" {
		rule = strings.ReplaceAll(rule, value, "...")
	}
	return rule
}

// fault adds a line that cannot be read.
func (r *rejects) fault(f *transfer.Fault) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.local++
	if err := r.add(reject{File: f.File, Line: f.Line, Column: f.Column, Field: f.Field, Value: f.Value, Rule: f.Rule}); err != nil {
		return err
	}
	return r.check()
}

// answer adds the lines of a chunk that the service has rejected. counted says that remote has them.
func (r *rejects) answer(c *transfer.Chunk, a *perceptorv1.WriteImportResponse, counted bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !counted {
		r.remote += a.RejectedCount
	}
	if len(a.Rejected) == 0 {
		return r.check()
	}
	x, err := c.Open()
	if err != nil {
		return err
	}
	last := int32(-1)
	for _, f := range a.Rejected { // by line
		at := c.Position(int(f.Line))
		if f.Line != last && !r.known[place{at.File, at.Line, f.Field}] {
			r.listed++
		}
		last = f.Line
		reject := reject{
			File: at.File, Line: at.Line, Column: c.Column(f.Field), Field: f.Field, Value: x.Value(int(f.Line), f.Field), Rule: f.Message, Chunk: c.Number,
		}
		if err := r.add(reject); err != nil {
			return err
		}
	}
	if r.out != nil { // a chunk that is answered is not sent again
		if err := r.out.Flush(); err != nil {
			return fmt.Errorf("write the reject file: %w", err)
		}
	}
	return r.check()
}

func (r *rejects) check() error {
	if r.max > 0 && r.local+r.remote > r.max {
		return errTooMany
	}
	return nil
}

// summary says how many lines are rejected, and where they are.
func (r *rejects) summary(verb string) string {
	n := r.count()
	r.mu.Lock()
	defer r.mu.Unlock()
	text := countText(n, "line") + " " + verb
	missing := r.remote - r.listed
	if missing <= 0 {
		return text + ", written to " + r.name
	}
	if missing < n {
		text += ", " + countText(n-missing, "line") + " of them written to " + r.name
	}
	return text + "; " + countText(missing, "line") + " cannot be named, because the service names the first faults of a chunk (a smaller --chunk-lines names more), " +
		"and conflicting keys only once (an answer was lost)"
}

// count returns the number of rejected lines.
func (r *rejects) count() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.local + r.remote
}

func (r *rejects) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	return errors.Join(r.out.Flush(), r.file.Close())
}

// resume reads what an earlier call has written for the same import. It returns the number of lines that the service
// had rejected, and the last chunk with one. A file that has nothing of the import is written anew.
func (r *rejects) resume() (lines, chunk int64, err error) {
	text, err := os.Open(r.name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("open the reject file: %w", err)
	}
	defer text.Close() //nolint:errcheck // it was only read
	r.known = map[place]bool{}
	seen := map[place]bool{}
	in := bufio.NewScanner(text)
	in.Buffer(nil, 1<<20)
	for in.Scan() && len(r.known) < maxPlaces {
		var x reject
		if r.cut = json.Unmarshal(bytes.TrimSpace(in.Bytes()), &x) != nil; r.cut {
			continue // a call was killed while it wrote the line
		}
		if x.Import != r.of {
			continue
		}
		r.keep = true
		r.known[place{x.File, x.Line, x.Field}] = true
		if line := (place{x.File, x.Line, ""}); x.Chunk > 0 && !seen[line] {
			seen[line] = true
			lines, chunk = lines+1, max(chunk, x.Chunk)
		}
	}
	r.cut = r.cut && r.keep
	return lines, chunk, in.Err()
}
