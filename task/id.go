package task

import (
	"fmt"
	"strconv"
	"strings"
)

// The storage layout that ids encode. It never changes in an installation.
const (
	// Shards is the number of task tables.
	Shards = 512
	// Databases is the number of logical databases.
	Databases = 16
	// ShardsPerDatabase is the number of consecutive shards in one database.
	ShardsPerDatabase = Shards / Databases
)

// ID is the identity of a task: number*512 + shard. It is positive, and unique
// over all tenants.
type ID int64

// NewID returns the id of the given number (positive) in the given shard.
func NewID(number int64, shard Shard) ID { return ID(number*Shards + int64(shard)) }

// Shard returns the shard that stores the task.
func (id ID) Shard() Shard { return Shard(id % Shards) }

// Valid reports whether id can be the id of a task.
func (id ID) Valid() bool { return id >= Shards }

// String returns the id in decimal.
func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }

// Shard is the number of one of the 512 task tables, from 0.
type Shard int16

// Database returns the number of the logical database that holds the shard.
func (s Shard) Database() int { return int(s) / ShardsPerDatabase }

// RunID names one run of a task. It stays the same for all deliveries.
type RunID struct {
	Task ID
	Seq  int64
}

// String returns the run_id as records and logs contain it: "TASK-SEQ".
func (r RunID) String() string { return string(r.AppendTo(nil)) }

// AppendTo appends the text of String.
func (r RunID) AppendTo(b []byte) []byte {
	return strconv.AppendInt(append(strconv.AppendInt(b, int64(r.Task), 10), '-'), r.Seq, 10)
}

// ParseRunID is the inverse of [RunID.String].
func ParseRunID(s string) (RunID, error) {
	id, seq, ok := strings.Cut(s, "-")
	if !ok {
		return RunID{}, fmt.Errorf("run_id %q: want TASK-SEQ", s)
	}
	i, err := strconv.ParseInt(id, 10, 64)
	if err != nil || !ID(i).Valid() {
		return RunID{}, fmt.Errorf("run_id %q: %q is not a task id", s, id)
	}
	n, err := strconv.ParseInt(seq, 10, 64)
	if err != nil || n < 1 {
		return RunID{}, fmt.Errorf("run_id %q: %q is not a run number from 1", s, seq)
	}
	return RunID{Task: ID(i), Seq: n}, nil
}

// Attempt names one delivery of a run.
type Attempt struct {
	RunID
	// Attempt counts deliveries from 1.
	Attempt int32
}
