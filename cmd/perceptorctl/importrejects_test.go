package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The import of last night has left its file, and that of this night was killed before it wrote one.
func TestTheRejectsOfAnEarlierImportStandForNoneOfThisOne(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.csv.rejects.jsonl")
	at := func(rule string) reject {
		return reject{File: "a.csv", Line: 7, Field: "max_count", Rule: rule, Chunk: 1}
	}
	write := func(r *rejects, rule string) {
		t.Helper()
		if err := r.add(at(rule)); err != nil {
			t.Fatal(err)
		}
		if err := r.close(); err != nil {
			t.Fatal(err)
		}
	}
	write(&rejects{name: name, of: 1}, "old")

	r := &rejects{name: name, of: 2}
	if lines, chunk, err := r.resume(); lines != 0 || chunk != 0 || err != nil {
		t.Errorf("an earlier import counts as %d lines up to chunk %d, %v", lines, chunk, err)
	}
	write(r, "new")

	r = &rejects{name: name, of: 2}
	if lines, chunk, err := r.resume(); lines != 1 || chunk != 1 || err != nil {
		t.Errorf("the file counts as %d lines up to chunk %d, %v; want one of chunk 1", lines, chunk, err)
	}
	write(r, "again")
	text, err := os.ReadFile(name)
	if got := string(text); err != nil || strings.Count(got, "\n") != 1 || !strings.Contains(got, `"import":"2"`) || !strings.Contains(got, "new") {
		t.Errorf("the file has %s, %v; want the reject of the second import once", got, err)
	}
}

// TestARejectFileThatIsNoFileKeepsItsRights: with --reject-file /dev/null, root would take it from all other users.
func TestARejectFileThatIsNoFileKeepsItsRights(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rejects")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Skip(err)
	}
	const rights = 0o666
	if err := os.Chmod(name, rights); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(name, os.O_RDWR, 0) // so that a writer need not wait for one
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close() //nolint:errcheck // it was only read
	r := &rejects{name: name}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	defer r.close() //nolint:errcheck // nothing was written
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != rights {
		t.Errorf("the rights are %v, %v", info.Mode(), err)
	}
}
