package assign

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"
)

// Access to the tree. A member with a user creates its nodes for that user alone. Nodes that
// were created without one are open to everybody who reaches ZooKeeper. The leader restricts
// them when every member has the user: earlier it would lock the others out. Until then the
// members with the user let everybody read their own nodes, because the leader may be a
// member without it. So an installation gets a user by restarting its members one after the
// other with the credentials, and nothing else.

// accessTo returns the entries of a node's access list, none if the node does not exist.
func (t *tree) accessTo(ctx context.Context, p string) ([]zk.ACL, error) {
	acl, err := request(ctx, t.s, "read access of "+p, func() ([]zk.ACL, error) {
		acl, _, err := t.s.conn.GetACL(p)
		return acl, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return acl, err
}

// isOpen reports whether anyone may read or change a node.
func isOpen(acl []zk.ACL) bool {
	return slices.ContainsFunc(acl, func(a zk.ACL) bool { return a.Scheme == "world" && a.Perms != 0 })
}

// memberAccess returns the access list for the node of a member.
func (t *tree) memberAccess(ctx context.Context) ([]zk.ACL, error) {
	if t.user == "" {
		return t.acl, nil
	}
	members, err := t.accessTo(ctx, t.members)
	if err != nil || !isOpen(members) {
		return t.acl, err
	}
	return append(zk.WorldACL(zk.PermRead), t.acl...), nil
}

// open returns the persistent nodes of this environment that are open. The nodes that
// environments share count only if there is no other environment, whose members may have no
// user.
func (t *tree) open(ctx context.Context) (open []string, err error) {
	nodes := []string{t.env, t.members, t.leaving, t.plan, t.strategy}
	names, err := t.children(ctx, t.envs, false)
	if err != nil {
		return nil, err
	}
	if len(names) == 1 {
		nodes = append(nodes, t.root, t.format, t.envs)
	}
	for _, p := range nodes {
		acl, err := t.accessTo(ctx, p)
		if err != nil {
			return nil, err
		}
		if isOpen(acl) {
			open = append(open, p)
		}
	}
	return open, nil
}

// restrict makes open nodes accessible to the user alone, if there is one and all members
// of the view have it. It returns the nodes that it has changed.
func (t *tree) restrict(ctx context.Context, v *view) ([]string, error) {
	if t.user == "" {
		return nil, nil
	}
	open, err := t.open(ctx)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	for _, m := range v.members {
		p := path.Join(t.members, m.node)
		acl, err := t.accessTo(ctx, p)
		if err != nil || len(acl) > 0 && !slices.Contains(acl, t.acl[0]) {
			return nil, err // a member without the user
		}
		open = append(open, p)
	}
	for _, p := range open {
		_, err := requestLeader(ctx, t.s, "restrict "+p, func() (*zk.Stat, error) { return t.s.conn.SetACL(p, t.acl, -1) })
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
	}
	return open, nil
}

// Open returns the nodes that anyone who reaches ZooKeeper may read or change. Without
// [AdminConfig].User these are all nodes. It returns [ErrNotFound] if no member has ever
// registered.
func (a *Admin) Open(ctx context.Context) (open []string, err error) {
	err = a.with(ctx, func(e outside) error {
		if err := e.check(ctx); err != nil {
			return err
		}
		if open, err = e.open(ctx); missing(err) {
			return fmt.Errorf("%w: %s", ErrNotFound, a.cfg.Environment)
		}
		return err
	})
	return open, err
}
