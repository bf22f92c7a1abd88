package assign

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// maxSwept bounds the environments that one sweep reads.
const maxSwept = 100

// sweep reads environments of the root, a random choice if there are many, and
// removes those that have had no members for staleAfter. It marks an
// environment without members by a node "idle", which the next member removes.
// The age of that node is measured by ZooKeeper's clock alone. Removing is one
// transaction, which fails if a member has registered.
func (t *tree) sweep(ctx context.Context, staleAfter time.Duration, log *slog.Logger) (cleared []string, err error) {
	names, err := t.children(ctx, t.envs, false)
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:min(len(names), maxSwept)] {
		if !validName(name) {
			continue // not created by this package
		}
		gone, err := t.of(name).sweepOne(ctx, staleAfter)
		switch {
		case errors.Is(err, zk.ErrNoAuth):
			log.Debug("assign: environment belongs to another user", "environment", name)
		case err != nil:
			return cleared, err // ZooKeeper may be unavailable; do not delay other steps
		case gone:
			cleared = append(cleared, name)
		}
	}
	return cleared, nil
}

func (t *tree) sweepOne(ctx context.Context, staleAfter time.Duration) (cleared bool, err error) {
	parts, err := t.children(ctx, t.env, false)
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	members, err := t.children(ctx, t.members, false)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return false, err
	}
	marked := slices.Contains(parts, path.Base(t.idle))
	if len(members) > 0 {
		if marked {
			return false, t.remove(ctx, t.idle)
		}
		return false, nil
	}
	if !marked {
		return false, t.make(ctx, t.idle, nil)
	}
	// The answer to a write has the server's time.
	stat, err := requestLeader(ctx, t.s, "touch "+t.idle, func() (*zk.Stat, error) { return t.s.conn.Set(t.idle, nil, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil // a member registered
	}
	if err != nil || time.Duration(stat.Mtime-stat.Ctime)*time.Millisecond < staleAfter {
		return false, err
	}
	return t.clear(ctx, parts, stat.Version)
}

// clear removes the environment and its parts, if nothing has changed since it
// was marked.
func (t *tree) clear(ctx context.Context, parts []string, idle int32) (cleared bool, err error) {
	var ops []any
	for _, part := range parts {
		p := path.Join(t.env, part)
		if !slices.Contains([]string{t.members, t.leaving, t.plan, t.strategy, t.idle}, p) {
			return false, nil // a node of another program
		}
		version := int32(-1)
		if p == t.idle {
			version = idle
		}
		ops = append(ops, &zk.DeleteRequest{Path: p, Version: version})
	}
	ops = append(ops, &zk.DeleteRequest{Path: t.env, Version: -1})
	_, err = requestLeader(ctx, t.s, "clear "+t.env, func() ([]zk.MultiResponse, error) { return t.s.conn.Multi(ops...) })
	for _, changed := range []error{zk.ErrNotEmpty, zk.ErrBadVersion, zk.ErrNoNode} {
		if errors.Is(err, changed) {
			return false, nil
		}
	}
	return err == nil, err
}
