package assign

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"
)

// A tree is the part of ZooKeeper's tree that one environment uses, accessed
// through one session. Each method is one step and may be repeated.
type tree struct {
	s   *session
	acl []zk.ACL
	// user owns the nodes; empty: everybody does.
	user, password string
	authenticated  bool
	// ours: this process has verified that the root belongs to this package.
	ours bool

	root, format, envs, env, members, leaving, plan, strategy, idle string // paths
}

func newTree(s *session, cfg Config) *tree {
	acl := zk.WorldACL(zk.PermAll)
	if cfg.User != "" {
		acl = zk.DigestACL(zk.PermAll, cfg.User, cfg.Password)
	}
	t := &tree{s: s, acl: acl, user: cfg.User, password: cfg.Password, root: cfg.Root, format: path.Join(cfg.Root, "format"), envs: path.Join(cfg.Root, "env")}
	return t.of(cfg.Environment)
}

// of returns the same root with another environment.
func (t *tree) of(environment string) *tree {
	o, env := *t, path.Join(t.envs, environment)
	o.env, o.members, o.leaving = env, path.Join(env, "members"), path.Join(env, "leaving")
	o.plan, o.strategy, o.idle = path.Join(env, "plan"), path.Join(env, "strategy"), path.Join(env, "idle")
	return &o
}

// authenticate sends the digest credentials, if there are any.
func (t *tree) authenticate(ctx context.Context) error {
	if t.user == "" || t.authenticated {
		return nil
	}
	_, err := request(ctx, t.s, "authenticate", func() (struct{}, error) {
		return struct{}{}, t.s.conn.AddAuth("digest", []byte(t.user+":"+t.password))
	})
	t.authenticated = err == nil
	return err
}

// prepare creates the missing nodes that every member needs. It refuses a root
// of another program.
func (t *tree) prepare(ctx context.Context) error {
	if err := t.authenticate(ctx); err != nil {
		return err
	}
	if err := t.ensureFormat(ctx); err != nil {
		return err
	}
	// Only missing nodes are written, because many members may start at once.
	there, err := t.children(ctx, t.env, false)
	if errors.Is(err, zk.ErrNoNode) {
		err = t.makeAll(ctx, t.env)
	}
	if err != nil {
		return err
	}
	for _, p := range []string{t.members, t.leaving, t.plan, t.strategy} {
		if slices.Contains(there, path.Base(p)) {
			continue
		}
		if err := t.make(ctx, p, nil); err != nil {
			return err
		}
	}
	if slices.Contains(there, path.Base(t.idle)) {
		return t.remove(ctx, t.idle)
	}
	return nil
}

// ensureFormat writes the format node into an empty root, and checks that of
// any other root. It restores the node if it was deleted after this process had
// verified it.
func (t *tree) ensureFormat(ctx context.Context) error {
	for {
		data, _, err := t.get(ctx, t.format, false)
		if err == nil {
			return checkFormat(data)
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		children, err := t.children(ctx, t.root, false)
		if errors.Is(err, zk.ErrNoNode) {
			err = t.makeAll(ctx, t.root)
		}
		if err != nil {
			return err
		}
		if slices.Contains(children, "format") {
			continue // created in between
		}
		if len(children) > 0 && (!t.ours || !slices.Equal(children, []string{"env"})) {
			return fmt.Errorf("%w: %s has no format node, but %s", ErrFormat, t.root, strings.Join(children[:min(3, len(children))], ", "))
		}
		if err := t.make(ctx, t.format, []byte(formatText)); err != nil {
			return err
		}
	}
}

// restoreFormat restores the format node if it was deleted while members are
// running.
func (t *tree) restoreFormat(ctx context.Context) error {
	if _, _, err := t.get(ctx, t.format, false); !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	return t.make(ctx, t.format, []byte(formatText))
}

// makeAll creates p and its missing parents.
func (t *tree) makeAll(ctx context.Context, p string) error {
	err := t.make(ctx, p, nil)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	if err := t.makeAll(ctx, path.Dir(p)); err != nil {
		return err
	}
	return t.make(ctx, p, nil)
}

// make creates one persistent node unless it exists.
func (t *tree) make(ctx context.Context, p string, data []byte) error {
	_, err := t.create(ctx, p, data, 0, t.acl)
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

func (t *tree) create(ctx context.Context, p string, data []byte, flags int32, acl []zk.ACL) (string, error) {
	return requestLeader(ctx, t.s, "create "+p, func() (string, error) { return t.s.conn.Create(p, data, flags, acl) })
}

func (t *tree) get(ctx context.Context, p string, watched bool) ([]byte, zk.Stat, error) {
	type found struct {
		data []byte
		stat zk.Stat
	}
	w := watch{p, false}
	arm := watched && t.s.arm(w)
	f, err := request(ctx, t.s, "get "+p, func() (found, error) {
		get := t.s.conn.Get
		if arm {
			get = func(p string) ([]byte, *zk.Stat, error) {
				data, stat, _, err := t.s.conn.GetW(p)
				return data, stat, err
			}
		}
		data, stat, err := get(p)
		if err != nil {
			return found{}, err
		}
		return found{data, *stat}, nil
	})
	if err != nil && arm {
		t.s.disarm(w)
	}
	return f.data, f.stat, err
}

func (t *tree) children(ctx context.Context, p string, watched bool) ([]string, error) {
	w := watch{p, true}
	arm := watched && t.s.arm(w)
	names, err := request(ctx, t.s, "list "+p, func() ([]string, error) {
		if !arm {
			names, _, err := t.s.conn.Children(p)
			return names, err
		}
		names, _, _, err := t.s.conn.ChildrenW(p)
		return names, err
	})
	if err != nil && arm {
		t.s.disarm(w)
	}
	return names, err
}

// prove implements [environment].
func (t *tree) prove(ctx context.Context) error { return t.sync(ctx) }

// maintain restores the format and restricts open nodes.
func (t *tree) maintain(ctx context.Context, v *view) ([]string, error) {
	if err := t.restoreFormat(ctx); err != nil {
		return nil, err
	}
	return t.restrict(ctx, v)
}

// sync waits until this member's server has all earlier writes, and proves that
// the session is alive.
func (t *tree) sync(ctx context.Context) error {
	_, err := requestLeader(ctx, t.s, "sync", func() (string, error) { return t.s.conn.Sync(t.env) })
	return err
}

// register creates this member's node, or finds the one that an earlier try in
// this session has created. It then removes other nodes of this member, which
// belong to an abandoned session, so that the member is never missing.
func (t *tree) register(ctx context.Context, id string, data []byte) (node string, version int64, err error) {
	names, err := t.children(ctx, t.members, false)
	if err != nil {
		return "", 0, err
	}
	var others []string
	for _, name := range names {
		if who, _, ok := parseMemberName(name); !ok || who != id {
			continue
		}
		_, stat, err := t.get(ctx, path.Join(t.members, name), false)
		switch {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return "", 0, err
		case stat.EphemeralOwner == t.s.conn.SessionID() && node == "":
			node, version = name, int64(stat.Version)
		default:
			others = append(others, name)
		}
	}
	if node == "" {
		acl, err := t.memberAccess(ctx)
		if err != nil {
			return "", 0, err
		}
		made, err := t.create(ctx, path.Join(t.members, memberName(id)), data, zk.FlagEphemeral|zk.FlagSequence, acl)
		if err != nil {
			return "", 0, err
		}
		node = path.Base(made)
	}
	for _, other := range others {
		if err := t.remove(ctx, path.Join(t.members, other)); err != nil {
			return "", 0, err
		}
	}
	return node, version, nil
}

func (t *tree) remove(ctx context.Context, p string) error {
	_, err := requestLeader(ctx, t.s, "delete "+p, func() (struct{}, error) { return struct{}{}, t.s.conn.Delete(p, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

// writeMember implements [environment].
func (t *tree) writeMember(ctx context.Context, node string, w memberWrite) (int64, error) {
	p := path.Join(t.members, node)
	ops := []any{&zk.SetDataRequest{Path: p, Data: w.data, Version: int32(w.version)}}
	if w.plan != anyVersion {
		ops = append(ops, &zk.CheckVersionRequest{Path: t.plan, Version: int32(w.plan)})
	}
	res, err := requestLeader(ctx, t.s, "write "+p, func() ([]zk.MultiResponse, error) { return t.s.conn.Multi(ops...) })
	if err != nil {
		return 0, err
	}
	return int64(res[0].Stat.Version), nil
}

// writePlan replaces the plan of the given version. It returns
// [zk.ErrBadVersion] if the version has changed.
func (t *tree) writePlan(ctx context.Context, p plan, version int64) error {
	_, err := requestLeader(ctx, t.s, "write plan", func() (*zk.Stat, error) { return t.s.conn.Set(t.plan, encodePlan(p), int32(version)) })
	return err
}

// announceLeaving tells the leader that this member is about to leave.
func (t *tree) announceLeaving(ctx context.Context, id string) error {
	_, err := t.create(ctx, path.Join(t.leaving, id), nil, zk.FlagEphemeral, t.acl)
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}
