package export

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// StateFile is the name of the state in the directory of an export.
const StateFile = "export.json"

// stateVersion is the version of the state.
const stateVersion = 1

const (
	partEnd     = ".jsonl"
	partialEnd  = ".partial" // of a part that is being written
	writeBuffer = 1 << 20
)

// State is what is on the disk: complete parts, and the position after them.
type State struct {
	Version int `json:"version"`
	// What is exported: the beginning of the names of the parts, such as tasks.
	What string `json:"what"`
	// Request is what the export was asked for, in a form of the program's own.
	Request json.RawMessage `json:"request"`
	// PartSize is the least number of lines of a part that others follow.
	PartSize int64  `json:"part_size"`
	Parts    []Part `json:"parts"`
	// Lines and Bytes are those of all parts.
	Lines int64 `json:"lines"`
	Bytes int64 `json:"bytes"`
	// Position is where the export continues. Done: it is complete.
	Position string `json:"position,omitempty"`
	Done     bool   `json:"done"`
	// Damaged counts what could not be read, for people.
	Damaged int64 `json:"damaged,omitempty"`
	// Database and Seen are the ids that the export has of its current database, as a bitmap.
	Database uint64 `json:"database"`
	Seen     []byte `json:"seen,omitempty"`
}

// Part is a complete file.
type Part struct {
	Name  string `json:"name"`
	Lines int64  `json:"lines"`
	Bytes int64  `json:"bytes"`
	// SHA256 is the digest of the file in hexadecimal digits, as sha256sum prints it.
	SHA256 string `json:"sha256"`
}

// Dir is an export to part files. It is not safe for concurrent use. It holds its directory, in which no other one
// can be opened, until the export is complete, [Dir.Abandon] is called, or the process ends.
type Dir struct {
	State
	path   string
	unlock func()
	writer *Writer
	file   *os.File // nil: no part has begun
	buffer *bufio.Writer
	// at is the position after the last chunk. partLines and partBytes are the size of the current part, and digest is
	// that of its bytes.
	at        string
	partLines int64
	partBytes int64
	digest    hash.Hash
	broken    error // of a chunk that was not written
}

// Create begins an export in a directory, which is created if it does not exist, and must not have
// an export, or parts of one whose state is lost: they may be all that is left of it.
func Create(path, what string, request json.RawMessage, partSize int64) (*Dir, error) {
	if partSize < 1 {
		return nil, fmt.Errorf("a part of %d lines; at least 1 is needed", partSize)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	return open(path, func() (*Dir, error) {
		if _, err := os.Stat(filepath.Join(path, StateFile)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s has an export already", path)
		}
		d := newDir(path, State{Version: stateVersion, What: what, Request: request, PartSize: partSize, Parts: []Part{}})
		parts, err := d.unknownParts()
		if err != nil {
			return nil, err
		}
		if len(parts) > 0 {
			return nil, fmt.Errorf("%s has %s, but no %s; move it away, or export to another directory", path, filepath.Base(parts[0]), StateFile)
		}
		return d, d.save()
	})
}

// open calls f with the directory locked, which the Dir that f returns holds.
func open(path string, f func() (*Dir, error)) (*Dir, error) {
	unlock, err := lock(path)
	if err != nil {
		return nil, err
	}
	d, err := f()
	if err != nil {
		unlock()
		return nil, err
	}
	if d.unlock = unlock; d.Done {
		d.Abandon() // there is nothing to write
	}
	return d, nil
}

// Resume opens an export that was interrupted. It removes what was not complete, and fails if a part is not as it was
// written; so it reads all of them.
func Resume(path string) (*Dir, error) {
	if _, err := os.Stat(filepath.Join(path, StateFile)); err != nil {
		return nil, err // and no lock is made
	}
	return open(path, func() (*Dir, error) { return resume(path) })
}

func resume(path string) (*Dir, error) {
	text, err := os.ReadFile(filepath.Join(path, StateFile))
	if err != nil {
		return nil, err
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", StateFile, err)
	}
	if s.Version != stateVersion || s.PartSize < 1 || s.What == "" || strings.ContainsAny(s.What, `/\`) {
		return nil, fmt.Errorf("%s: version %d of an export of %q, which this program does not know", StateFile, s.Version, s.What)
	}
	d := newDir(path, s)
	if err := d.restore(); err != nil {
		return nil, err
	}
	return d, d.clean()
}

func newDir(path string, s State) *Dir {
	d := &Dir{State: s, path: path, at: s.Position, digest: sha256.New()}
	d.writer = NewWriter(d, s.What == Tasks)
	return d
}

// Tasks is [State.What] of an export of tasks.
const Tasks = "tasks"

// restore checks that the parts are as they were written, and reads the bitmap.
func (d *Dir) restore() error {
	for _, p := range d.Parts { // a size that differs is found before anything is read
		at, err := os.Stat(filepath.Join(d.path, p.Name))
		if err != nil {
			return err
		}
		if at.Size() != p.Bytes {
			return fmt.Errorf("%s has %d bytes; %s says %d", p.Name, at.Size(), StateFile, p.Bytes)
		}
	}
	for _, p := range d.Parts {
		sum, err := digestOf(filepath.Join(d.path, p.Name))
		if err != nil {
			return err
		}
		if sum != p.SHA256 {
			return fmt.Errorf("%s is not as it was written: its SHA-256 is %s; %s says %s", p.Name, sum, StateFile, p.SHA256)
		}
	}
	d.writer.database = d.Database
	if len(d.Seen) > 0 {
		if err := d.writer.seen.UnmarshalBinary(d.Seen); err != nil {
			return fmt.Errorf("%s: the ids cannot be read: %w", StateFile, err)
		}
	}
	d.Seen = nil
	return nil
}

// digestOf returns the digest of a file as [Part] has it.
func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it was only read
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// clean removes parts that the state does not have: they were not complete, and what they have comes again.
func (d *Dir) clean() error {
	parts, err := d.unknownParts()
	if err != nil {
		return err
	}
	for _, path := range parts {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// unknownParts returns the files with names of parts that the state does not have. Others, such as tasks-old.jsonl,
// are not of an export to parts.
func (d *Dir) unknownParts() (list []string, err error) {
	found, err := filepath.Glob(filepath.Join(escape(d.path), d.What+"-*"+partEnd+"*"))
	if err != nil {
		return nil, err
	}
	for _, path := range found {
		name := strings.TrimSuffix(filepath.Base(path), partialEnd)
		digits := strings.TrimSuffix(strings.TrimPrefix(name, d.What+"-"), partEnd)
		if n, err := strconv.ParseUint(digits, 10, 32); err == nil && name == partName(d.What, int(n)) && n > uint64(len(d.Parts)) {
			list = append(list, path)
		}
	}
	return list, nil
}

// escape makes a path a pattern that matches itself alone.
func escape(path string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(path)
}

// At returns where a stream must continue: after the last chunk that was added.
func (d *Dir) At() string { return d.at }

// Add writes a chunk, and ends the part if it is large enough. damaged is how much the service
// could not read.
func (d *Dir) Add(c Chunk, damaged int64) error {
	before := d.writer.Count
	if err := d.writer.Write(c); err != nil {
		d.broken = err
		return err
	}
	d.partLines += d.writer.Count - before
	d.at, d.Damaged = c.Position, d.Damaged+damaged
	if d.Done = c.Position == ""; d.Done || d.partLines >= d.PartSize {
		return d.End()
	}
	return nil
}

// Repeated returns how many lines were dropped because they were written before.
func (d *Dir) Repeated() int64 { return d.writer.Repeated }

// Written returns how many lines were written, those of the part that is not complete included.
func (d *Dir) Written() int64 { return d.Lines + d.partLines }

// Write implements [io.Writer] for the lines of the current part.
func (d *Dir) Write(p []byte) (int, error) {
	if d.file == nil {
		f, err := os.OpenFile(d.partPath()+partialEnd, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return 0, err
		}
		d.file, d.buffer = f, bufio.NewWriterSize(f, writeBuffer)
	}
	n, err := d.buffer.Write(p)
	d.partBytes += int64(n)
	d.digest.Write(p[:n]) // which never fails
	return n, err
}

func partName(what string, n int) string { return fmt.Sprintf("%s-%05d%s", what, n, partEnd) }

func (d *Dir) partName() string { return partName(d.What, len(d.Parts)+1) }
func (d *Dir) partPath() string { return filepath.Join(d.path, d.partName()) }

// End completes the current part after the last chunk, and stores the state. The export can
// continue.
func (d *Dir) End() error {
	if d.broken != nil { // the ids of a chunk are seen whose lines are not written
		return d.broken
	}
	if d.file != nil {
		if err := d.complete(); err != nil {
			return fmt.Errorf("complete %s: %w", d.partName(), err)
		}
	}
	if d.Position = d.at; d.Done {
		d.Position = ""
	}
	err := d.save()
	if err == nil && d.Done {
		d.Abandon()
	}
	return err
}

// complete makes the current part durable under its name.
func (d *Dir) complete() error {
	path := d.partPath()
	err := errors.Join(d.buffer.Flush(), d.file.Sync(), d.file.Close())
	if err == nil {
		err = os.Rename(path+partialEnd, path)
	}
	if err == nil {
		err = syncDir(d.path)
	}
	if err != nil {
		return err
	}
	d.Parts = append(d.Parts, Part{d.partName(), d.partLines, d.partBytes, hex.EncodeToString(d.digest.Sum(nil))})
	d.digest.Reset()
	d.Lines, d.Bytes = d.Lines+d.partLines, d.Bytes+d.partBytes
	d.file, d.buffer, d.partLines, d.partBytes = nil, nil, 0, 0
	return nil
}

// save replaces the state.
func (d *Dir) save() error {
	s := d.State
	if s.Database = d.writer.database; !s.Done && !d.writer.seen.IsEmpty() {
		d.writer.seen.RunOptimize()
		seen, err := d.writer.seen.MarshalBinary()
		if err != nil {
			return err
		}
		s.Seen = seen
	}
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return replace(filepath.Join(d.path, StateFile), append(text, '\n'))
}

// replace replaces a file as a whole.
func replace(path string, text []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names of a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Abandon closes the current part without completing it, and leaves the directory to others.
func (d *Dir) Abandon() {
	if d.file != nil {
		_ = d.file.Close() // Resume removes it
		d.file = nil
	}
	if d.unlock != nil {
		d.unlock()
		d.unlock = nil
	}
}
