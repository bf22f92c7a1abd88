package task

import "time"

// ServerSpace is what is known of the disk of a PostgreSQL server.
type ServerSpace struct {
	// Databases are the numbers of the databases on the server.
	Databases []int
	// Total and Free are bytes. A Total of 0 means that neither is known.
	Total, Free int64
	// MaxLog is how large the server lets its log grow: max_wal_size.
	MaxLog int64
}

// Known reports whether the free space is known.
func (s *ServerSpace) Known() bool { return s.Total > 0 }

// spaceKept bounds the space that imports leave free.
const spaceKept = 10 << 30

// Floor returns the free space, in bytes, that imports leave to others: a twentieth of all, at most 10 GiB.
func (s *ServerSpace) Floor() int64 { return min(s.Total/20, spaceKept) }

// Needs returns the bytes that the server needs for a part of an import that will take bytes in all
// databases together: the data, as much log until it is recycled, and a tenth for what estimates miss.
func (s *ServerSpace) Needs(bytes int64) int64 {
	data := bytes / Databases * int64(len(s.Databases))
	return (data + min(data, s.MaxLog)) / 10 * 11
}

// Fits reports whether the server has room for such an import. It is true if that is not known.
func (s *ServerSpace) Fits(bytes int64) bool { return !s.Known() || s.Free-s.Floor() >= s.Needs(bytes) }

// ServerLoad is what a PostgreSQL server has yet to do with its log, in bytes. 0 also means that
// the user of the program may not see it.
type ServerLoad struct {
	// SinceCheckpoint was written since the begin of the last complete checkpoint. MaxLog is
	// max_wal_size.
	SinceCheckpoint, MaxLog int64
	// Unarchived waits for the archive, Retained is kept for the replication slot that is furthest
	// behind, Unreplayed has not been replayed by the slowest standby.
	Unarchived, Retained, Unreplayed int64
}

// PauseReason says why an import pauses. The numbers are those of the API.
type PauseReason int

// The reasons of pauses.
const (
	PauseNone     PauseReason = 0
	PauseRate     PauseReason = 1
	PauseQuota    PauseReason = 2
	PauseDue      PauseReason = 3
	PauseStandbys PauseReason = 4
	PauseLog      PauseReason = 5
	PauseArchive  PauseReason = 6
	PauseSlots    PauseReason = 7
	PauseStorage  PauseReason = 8
)

// String returns the name as it is in metrics.
func (r PauseReason) String() string {
	names := [...]string{"none", "rate", "quota", "due_tasks", "standbys", "checkpoints", "archive", "slots", "storage"}
	if r < 0 || int(r) >= len(names) {
		return "none"
	}
	return names[r]
}

// Pauses of imports for the log of a server.
const (
	// Chunks pause from a lag of standbys, of the archive or of slots of logBehind on: as long as it
	// takes to catch up with the rest at logRate, at most mostLogPause.
	logBehind    = 256 << 20
	logRate      = 64 << 20
	mostLogPause = 10 * time.Second
)

// Pause returns how long chunks should pause so that the server keeps up, and for what.
//
// A checkpoint should begin before the log has grown to half of max_wal_size, and end before all
// of it. If more was written since the last one, the disk does not keep up with the checkpoints.
func (l *ServerLoad) Pause() (longest time.Duration, reason PauseReason) {
	for _, p := range []struct {
		reason      PauseReason
		bytes, from int64
	}{
		{PauseStandbys, l.Unreplayed, logBehind},
		{PauseLog, l.SinceCheckpoint, max(l.MaxLog, logBehind)},
		{PauseArchive, l.Unarchived, logBehind},
		{PauseSlots, l.Retained, max(l.MaxLog, logBehind)},
	} {
		if p.bytes <= p.from {
			continue
		}
		pause := min(time.Duration(float64(p.bytes-p.from)/logRate*float64(time.Second)), mostLogPause)
		if pause > longest {
			longest, reason = pause, p.reason
		}
	}
	return longest, reason
}
