package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// # The servers of an import
//
// An import that says how much it will store is refused if a server has no room for it. Meanwhile
// others fill the disk, too. So a chunk is refused, for the time being, while a server to which
// it would go has less free space than the floor; and after each chunk the caller pauses while
// the server does not keep up with its log. What a server does not tell is no reason to pause.

const (
	// loadEvery and spaceEvery are the ages up to which what is known of a server is used.
	loadEvery, spaceEvery = 2 * time.Second, 5 * time.Second
	// serverWithin bounds the questions to a server.
	serverWithin = time.Second
	// lowRetry is when a chunk may be sent again that a full disk has kept out.
	lowRetry = 10 * time.Second
)

// servers is what is known of the PostgreSQL servers. It is safe for concurrent use.
type servers struct {
	store Imports
	known [task.Databases]knownServer // by server
}

type knownServer struct {
	mu              sync.Mutex
	loadAt, spaceAt time.Time
	load            task.ServerLoad
	space           task.ServerSpace
}

// each calls f with a database of each server that has some of the given ones, nil: of all.
func (s *servers) each(databases []int, f func(d int)) {
	var seen [task.Databases]bool
	for d := range task.Databases {
		if databases != nil {
			if d >= len(databases) {
				return
			}
			d = databases[d]
		}
		if at := s.store.ServerOf(d); !seen[at] {
			seen[at] = true
			f(d)
		}
	}
}

// load returns the load of the server of a database. If it cannot be read there is none.
func (s *servers) load(ctx context.Context, d int) task.ServerLoad {
	k := &s.known[s.store.ServerOf(d)]
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.loadAt) < loadEvery {
		return k.load
	}
	ctx, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	load, err := s.store.ServerLoad(ctx, d)
	if err != nil {
		load = task.ServerLoad{}
	}
	k.loadAt, k.load = time.Now(), load
	return load
}

// space returns the space of the server of a database. If it cannot be read, what was last known
// counts.
func (s *servers) space(ctx context.Context, d int) task.ServerSpace {
	k := &s.known[s.store.ServerOf(d)]
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.spaceAt) < spaceEvery {
		return k.space
	}
	ctx, cancel := context.WithTimeout(ctx, serverWithin)
	defer cancel()
	space, err := s.store.ServerSpace(ctx, d)
	if k.spaceAt = time.Now(); err == nil || k.space.Databases == nil {
		k.space = space
	}
	return k.space
}

// low returns the first server of some databases whose free space is below its floor.
func (s *servers) low(ctx context.Context, databases []int) (low *task.ServerSpace) {
	s.each(databases, func(d int) {
		if space := s.space(ctx, d); low == nil && space.Known() && space.Free < space.Floor() {
			low = &space
		}
	})
	return low
}

// pause returns how long chunks should pause for the servers of some databases, and why.
func (s *servers) pause(ctx context.Context, databases []int) (longest time.Duration, reason task.PauseReason) {
	s.each(databases, func(d int) {
		load := s.load(ctx, d)
		if pause, why := load.Pause(); pause > longest {
			longest, reason = pause, why
		}
	})
	return longest, reason
}

// waitsFor returns what an open import waits for at the servers now.
func (s *servers) waitsFor(ctx context.Context) task.PauseReason {
	if s.low(ctx, nil) != nil {
		return task.PauseStorage
	}
	_, reason := s.pause(ctx, nil)
	return reason
}

// databasesOf returns the databases into which a chunk goes; nil: all.
func (c *heldChunk) databasesOf() []int {
	if len(c.checks.hashes) > 0 {
		return nil
	}
	return []int{int(uint64(c.of.ID+c.lines.Number) % task.Databases)}
}

// spaceError refuses a chunk for a while.
func spaceError(low *task.ServerSpace) error {
	return detailed(&errdetails.ErrorInfo{Reason: string(task.ReasonStorageLow), Domain: domain},
		fmt.Sprintf("the PostgreSQL server of %s has %s of %s free, and imports leave %s to others: make room; the import goes on then",
			databasesText(low.Databases), sizeText(low.Free), sizeText(low.Total), sizeText(low.Floor())),
		&errdetails.RetryInfo{RetryDelay: durationpb.New(lowRetry)})
}

// fits returns an error if a server has no room for so many bytes in all databases together.
func (s *servers) fits(ctx context.Context, bytes int64) (err error) {
	if bytes <= 0 {
		return nil
	}
	s.each(nil, func(d int) {
		if space := s.space(ctx, d); err == nil && !space.Fits(bytes) {
			err = task.Errorf(task.ReasonStorageTooSmall, "the PostgreSQL server of %s has %s of %s free, and the import needs %s there, besides %s that imports leave to others",
				databasesText(space.Databases), sizeText(space.Free), sizeText(space.Total), sizeText(space.Needs(bytes)), sizeText(space.Floor()))
		}
	})
	return err
}

// plan returns what each server needs, and has, for so many bytes in all databases together.
func (s *servers) plan(ctx context.Context, bytes int64) *perceptorv1.ImportPlan {
	out := &perceptorv1.ImportPlan{}
	s.each(nil, func(d int) {
		space := s.space(ctx, d)
		x := &perceptorv1.ServerSpace{
			TotalBytes: space.Total, FreeBytes: space.Free, ReservedBytes: space.Floor(), NeededBytes: space.Needs(bytes), Fits: space.Fits(bytes),
		}
		for _, d := range space.Databases {
			x.Databases = append(x.Databases, int32(d))
		}
		out.Servers = append(out.Servers, x)
	})
	return out
}

// databasesText names some databases.
func databasesText(list []int) string {
	switch n := len(list); n {
	case 0:
		return "no database"
	case 1:
		return fmt.Sprintf("database %d", list[0])
	default:
		return fmt.Sprintf("the databases %d to %d", list[0], list[n-1])
	}
}

// sizeText writes a number of bytes.
func sizeText(n int64) string {
	const unit = 1000
	switch {
	case n >= unit*unit*unit:
		return fmt.Sprintf("%.1f GB", float64(n)/(unit*unit*unit))
	case n >= unit*unit:
		return fmt.Sprintf("%.1f MB", float64(n)/(unit*unit))
	}
	return fmt.Sprintf("%d bytes", n)
}
