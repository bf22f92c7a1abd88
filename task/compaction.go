package task

import "time"

// CompactionKind says which packs a compaction takes.
type CompactionKind int

const (
	// CompactPromote opens the buckets that begin within the horizon, oldest first.
	CompactPromote CompactionKind = iota + 1
	// CompactLevel0 takes what group commits have added.
	CompactLevel0
	// CompactSplit takes buckets that are too coarse for how near they are.
	CompactSplit
	// CompactMerge takes buckets with many small packs.
	CompactMerge
)

// String returns the kind in small letters.
func (k CompactionKind) String() string {
	switch k {
	case CompactPromote:
		return "promote"
	case CompactLevel0:
		return "compact"
	case CompactSplit:
		return "split"
	case CompactMerge:
		return "merge"
	}
	return "unknown"
}

// CompactionRequest asks for one compaction of one database's packs.
type CompactionRequest struct {
	Database int
	// Own is the ownership of the database's chores.
	Own  Ownership
	Kind CompactionKind
	// Before bounds CompactLevel0: only what was added before it is taken. 0: all.
	Before Instant
	// MaxTasks bounds how many tasks one transaction moves; a single pack may
	// be more. 0: the store's own bound, which no value exceeds.
	MaxTasks int
}

// Compaction is what a compaction, or a demotion, has moved.
type Compaction struct {
	// Lost: the ownership is no longer the one in the request. Nothing was
	// changed.
	Lost bool
	// Now is the database's clock when the packs were chosen; 0: there were none.
	Now Instant
	// Near and Packed count the tasks that went to the near tier and into packs.
	Near, Packed int
	// Void counts copies that were no longer valid.
	Void int
	// Read and Written count packs; Bytes is the size of the ones read.
	Read, Written int
	Bytes         int64
	// Late is how late the most late of the promoted tasks was.
	Late time.Duration
	// More: there is more to take at once.
	More bool
	// Damaged are packs that were set aside.
	Damaged []DamagedPack
}

// Add adds what another part of the same compaction has moved.
func (c *Compaction) Add(m *Compaction) {
	c.Lost, c.More = c.Lost || m.Lost, c.More || m.More
	c.Near, c.Packed, c.Void = c.Near+m.Near, c.Packed+m.Packed, c.Void+m.Void
	c.Read, c.Written, c.Bytes = c.Read+m.Read, c.Written+m.Written, c.Bytes+m.Bytes
	c.Late = max(c.Late, m.Late)
}

// DamagedPack is a pack that could not be moved and was set aside.
type DamagedPack struct {
	// Pack is the id of the pack, or minus the first number of an arrival.
	Pack int64
	// Tasks is how many tasks it says to hold.
	Tasks  int
	Reason string
}

// FarStats says what the far tier of one database holds.
type FarStats struct {
	// Arrivals and Packs count packs; ArrivedTasks and PackedTasks the tasks in
	// them, those with a void copy included.
	Arrivals, ArrivedTasks, Packs, PackedTasks int64
	// Damaged counts packs that were set aside; they are in no other figure.
	Damaged int64
	// Oldest is the age of the oldest arrival; 0: there is none.
	Oldest time.Duration
	// Behind is how far the beginning of the oldest bucket lies behind now; 0:
	// it has not begun.
	Behind time.Duration
}

// ChoresShard returns the number of the item that stands for the chores of a
// database, where stores ask for a shard.
func ChoresShard(database int) Shard { return Shard(Shards + database) }
