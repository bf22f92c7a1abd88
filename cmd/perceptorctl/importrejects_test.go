package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer"
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

// chunkOf returns a chunk with some lines of one file.
func chunkOf(t *testing.T, lines int) *transfer.Chunk {
	t.Helper()
	name := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(name, []byte("kind,type\n"+strings.Repeat("k,ONE_SHOT\n", lines)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := transfer.Open([]transfer.File{{Name: name}}, transfer.Options{})
	defer s.Close() //nolint:errcheck // it was only read
	b, err := transfer.NewBuilder(lines)
	if err != nil {
		t.Fatal(err)
	}
	for range lines {
		var l transfer.Line
		if err := s.Next(t.Context(), &l); err != nil {
			t.Fatal(err)
		}
		if err := b.Add(s, &l); err != nil {
			t.Fatal(err)
		}
	}
	c, err := b.Take()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The first answer to a chunk was lost. The second one says what was stored, and names no conflicting keys.
func TestRejectsOfAChunkWhoseFirstAnswerWasLostAreCounted(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rejects.jsonl")
	again := &perceptorv1.WriteImportResponse{Number: 1, Replayed: true, AddedCount: 1, RejectedCount: 3, Rejected: []*perceptorv1.RejectedLine{
		{Line: 2, Field: "kind", Message: "is missing"}, {Line: 2, Field: "type", Message: "is missing"},
	}}
	c := chunkOf(t, 4)
	i := &importing{on: &perceptorv1.Import{Id: 1}, rejects: rejects{name: name, of: 1, max: 2}}
	if err := i.take(c, again); !errors.Is(err, errTooMany) || i.added.Load() != 1 {
		t.Errorf("with --max-rejects 2: %v, %d added", err, i.added.Load())
	}
	want := "3 lines rejected, 1 line of them written to " + name + "; 2 lines cannot be named"
	if got := i.rejects.summary("rejected"); !strings.HasPrefix(got, want) {
		t.Errorf("it says %q, want %q", got, want)
	}
	if err := i.rejects.close(); err != nil {
		t.Fatal(err)
	}

	// A later command finds the chunk stored and counted, and sends it for the names.
	on := &perceptorv1.Import{Id: 1, RejectedCount: 3, StoredChunks: []*perceptorv1.ChunkRange{{First: 1, Last: 1}}}
	i = &importing{on: on, rejects: rejects{name: name, of: 1, remote: 3}}
	lines, _, err := i.rejects.resume()
	if err != nil {
		t.Fatal(err)
	}
	i.rejects.listed = lines
	again.Rejected = append(again.Rejected, &perceptorv1.RejectedLine{Line: 3, Field: "kind", Message: "is missing"})
	if err := i.take(c, again); err != nil || i.rejects.remote != 3 || i.rejects.listed != 2 {
		t.Errorf("%v; %d rejected, %d named; want 3 and 2", err, i.rejects.remote, i.rejects.listed)
	}
	if err := i.rejects.close(); err != nil {
		t.Fatal(err)
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
