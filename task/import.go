package task

import (
	"fmt"
	"time"
)

// Limits of imports.
const (
	// MaxOpenImports is how many imports of a tenant may be open at a time.
	MaxOpenImports = 100
	// MaxChunkLines is the most lines of a chunk, and MaxChunkTemplates the most templates.
	MaxChunkLines     = 1 << 18
	MaxChunkTemplates = 1 << 16
	// MaxChunkNumber is the highest number of a chunk.
	MaxChunkNumber = 1 << 40
	// MaxImportRate is the highest rate of an import, in lines per second.
	MaxImportRate = 10_000_000
	// ImportKept is how long an import and its markers are kept after it has ended.
	ImportKept = 30 * 24 * time.Hour
)

// OnConflict is what an import does with a line whose idempotency_key exists. The numbers are
// stored, and those of the API.
type OnConflict int16

// What happens on a conflict.
const (
	SkipExisting   OnConflict = 1
	UpdateExisting OnConflict = 2
	FailExisting   OnConflict = 3
)

// String returns the name as it is in the API.
func (c OnConflict) String() string {
	switch c {
	case SkipExisting:
		return "SKIP"
	case UpdateExisting:
		return "UPDATE"
	case FailExisting:
		return "FAIL"
	}
	return fmt.Sprintf("OnConflict(%d)", int16(c))
}

// ImportState is the state of an import. The numbers are those of the API, and the first four
// are stored.
type ImportState int16

// The states of an import.
const (
	ImportOpen        ImportState = 1
	ImportFinished    ImportState = 2
	ImportAborted     ImportState = 3
	ImportRollingBack ImportState = 4
	ImportRolledBack  ImportState = 5
)

// String returns the name as it is in the API.
func (s ImportState) String() string {
	switch s {
	case ImportOpen:
		return "OPEN"
	case ImportFinished:
		return "FINISHED"
	case ImportAborted:
		return "ABORTED"
	case ImportRollingBack:
		return "ROLLING_BACK"
	case ImportRolledBack:
		return "ROLLED_BACK"
	}
	return fmt.Sprintf("ImportState(%d)", int16(s))
}

// ImportTerms are what the creator of an import has set. They are stored as JSON.
type ImportTerms struct {
	Description string `json:",omitempty"`
	// Options belong to the importing program.
	Options    string `json:",omitempty"`
	OnConflict OnConflict
	// MaxRate is the most lines per second. 0 means no limit.
	MaxRate int32 `json:",omitempty"`
	// DryRun means that nothing is stored.
	DryRun bool `json:",omitempty"`
	// Restore allows [ImportChunk.Restored].
	Restore bool `json:",omitempty"`
	// ExpectedBytes is what the import will take in all databases, as its creator expects. 0 means that it is not known.
	ExpectedBytes int64 `json:",omitempty"`
	// Creator says who created the import, as [AuditEvent.Actor] does.
	Creator string `json:",omitempty"`
}

// ImportSum counts the lines of stored chunks.
type ImportSum struct{ Lines, Added, Skipped, Updated, Rejected int64 }

// Plus returns the sum of two.
func (s ImportSum) Plus(o ImportSum) ImportSum {
	return ImportSum{s.Lines + o.Lines, s.Added + o.Added, s.Skipped + o.Skipped, s.Updated + o.Updated, s.Rejected + o.Rejected}
}

// Import is a stored import.
type Import struct {
	Tenant int32
	ID     int64
	Terms  ImportTerms
	State  ImportState
	// CreatedAt and FinishedAt are by the clock of the tenant's home database. FinishedAt is
	// [Never] while the import is open.
	CreatedAt, FinishedAt Instant
	ImportSum
	// Chunks is the number of stored chunks, and Stored has their numbers, if they were asked for.
	Chunks   int64
	Stored   []ChunkRange
	Checksum uint64
	// Removed counts the tasks that a rollback has removed. RolledBack is the number of databases
	// in which it has ended.
	Removed    int64
	RolledBack int
}

// ChunkRange are consecutive numbers of chunks.
type ChunkRange struct{ First, Last int64 }

// ImportChunk has the lines of a chunk that are valid as far as the caller of the store can
// know. The store does not change it.
type ImportChunk struct {
	Number int64
	// Specs are the templates of the lines: they have passed [Spec.Validate]. The fields that
	// lines have are not set in them.
	Specs []Spec
	Lines []ImportLine
	// Restored has the state of each line elsewhere; nil: the tasks are new.
	Restored []RestoredState
	// Rejected is the number of lines that are not in Lines because they were rejected before.
	Rejected int
	Checksum uint64
}

// ImportLine is a line of a chunk.
type ImportLine struct {
	// Line is the line's index in the chunk as the caller has sent it.
	Line int32
	// Spec is the index of the template.
	Spec int32
	// Begin is [Never] for now.
	Begin  Instant
	Params []byte
	// Key is the idempotency_key, if it is not nil, and KeyHash identifies the body.
	Key     []byte
	KeyHash *[16]byte
}

// RestoredState is how far a task has come elsewhere.
type RestoredState struct {
	// Scheduled is the next instant; 0: the first one of the schedule.
	Scheduled Instant
	RunCount  int64
	Missed    int64
	Paused    bool
	// Anchor is the instant of the last run, from which the intervals count; 0: begin_time.
	Anchor Instant
}

// ChunkResult is what has become of the lines of a chunk.
type ChunkResult struct {
	// ImportSum counts all lines, those that were rejected before included.
	ImportSum
	// Faults are those of lines that the store has rejected.
	Faults []LineFault
	// Replayed means that the chunk was stored before.
	Replayed bool
	// Types counts the added tasks by type.
	Types map[Type]int
}

// LineFault is a fault of a line of a chunk.
type LineFault struct {
	Line int32
	Fault
}
