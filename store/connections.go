package store

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

var (
	//go:embed settings.sql
	settingsSQL string
	//go:embed admits.sql
	admitsSQL string
	//go:embed sessions.sql
	sessionsSQL string
	//go:embed loginrole.sql
	loginRoleSQL string
	//go:embed readonly.sql
	readOnlySQL string
)

const (
	// FirstConns bounds the connections of a program to one server until it knows what the
	// server admits.
	FirstConns = 16
	// LeastConns is the fewest connections to one server with which a program works.
	LeastConns = 4
	// shares is the least number of parts into which the connections that a server admits are
	// divided: one for each program that runs, and one for people and tools.
	shares = 6
	// settleTimeout bounds the first statement of a connection.
	settleTimeout = 5 * time.Second
)

// Programs that run for long. Their sessions are named so, and by a process; see
// [Admission.Processes].
const (
	TaskdApplication      = "perceptor-taskd"
	DispatcherApplication = "perceptor-dispatcher"
	// DevApplication is both in one.
	DevApplication = "perceptor-dev"
)

// processName returns an application_name that no other process has.
func processName(application string) string {
	return application + "." + strings.ToLower(rand.Text()[:6])
}

// settle sets the parameters of a new session.
func settle(ctx context.Context, conn *pgx.Conn, names, values []string) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, settingsSQL, pgx.QueryExecModeExec, names, values); err != nil {
		return fmt.Errorf("set the parameters of the session: %w", err)
	}
	return nil
}

// ErrReadOnly is the error of a database whose sessions cannot write.
var ErrReadOnly = errors.New("the server is read-only")

// Writable asks database d whether its sessions can write. It fails with [ErrReadOnly] if they cannot, and with
// [ErrFull] if a statement of this process has met a full disk of late.
func (c *Cluster) Writable(ctx context.Context, d int) error {
	var readOnly bool
	if err := c.pools[d].QueryRow(ctx, readOnlySQL).Scan(&readOnly); err != nil {
		return err
	}
	if readOnly {
		return ErrReadOnly
	}
	if c.full[d].full(time.Now()) {
		return ErrFull
	}
	return nil
}

// An Admission says how many connections a server admits, who has them, and what they may rely on.
type Admission struct {
	// Server is host and port.
	Server string
	// Max is max_connections, Reserved how many of them are for roles with special rights.
	Max, Reserved int
	// RoleLimit and DatabaseLimit are limits of the role and of the database; -1: none.
	RoleLimit, DatabaseLimit int
	// Locks is max_locks_per_transaction, Prepared max_prepared_transactions.
	Locks, Prepared int
	// Others counts the sessions of other roles.
	Others int
	// ReadOnly says that transactions of new sessions read only; Durable, that what is committed
	// survives a crash of the machine.
	ReadOnly, Durable bool
	// Sessions counts the sessions of this role by the name of the program and process.
	Sessions map[string]int
}

// Free returns how many connections programs with this role may have together.
func (a *Admission) Free() int {
	free := a.Max - a.Reserved - a.Others
	for _, limit := range []int{a.RoleLimit, a.DatabaseLimit} {
		if limit >= 0 {
			free = min(free, limit)
		}
	}
	return max(free, 0)
}

// Processes counts the processes of a program, such as [TaskdApplication], that have sessions.
func (a *Admission) Processes(application string) (n int) {
	for name := range a.Sessions {
		if strings.HasPrefix(name, application+".") {
			n++
		}
	}
	return n
}

// Running counts the processes that run for long.
func (a *Admission) Running() int {
	return a.Processes(TaskdApplication) + a.Processes(DispatcherApplication) + a.Processes(DevApplication)
}

// Share returns how many connections each of the programs that run for long opens at most,
// unless the configuration says it: an equal part of what is free for as many programs as run,
// and for one more, but no more than a sixth.
func (a *Admission) Share() int { return max(LeastConns, a.Free()/max(shares, a.Running()+1)) }

// Admission asks the server of database d what it admits.
func (c *Cluster) Admission(ctx context.Context, d int) (*Admission, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	server := c.ServerAddress(d)
	a := &Admission{Server: server, Sessions: map[string]int{}}
	err := pgx.BeginFunc(ctx, c.pools[d], func(tx pgx.Tx) error {
		// PostgreSQL counts and shows sessions by the role that has logged in, which may act as another (ALTER ROLE ... SET role).
		if _, err := tx.Exec(ctx, loginRoleSQL); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, admitsSQL).Scan(&a.Max, &a.Reserved, &a.RoleLimit, &a.DatabaseLimit, &a.Locks, &a.Prepared, &a.Others, &a.ReadOnly, &a.Durable)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sessionsSQL)
		if err != nil {
			return err
		}
		var name string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { a.Sessions[name] = n; return nil })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what %s admits: %w", server, err)
	}
	return a, nil
}

// Admissions asks all servers. It leaves out those that do not answer, and joins their errors.
func (c *Cluster) Admissions(ctx context.Context) (all []*Admission, err error) {
	for _, server := range c.budgets.servers() {
		a, failed := c.Admission(ctx, c.firstOn(server))
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		all = append(all, a)
	}
	return all, err
}

// firstOn returns the first database of a server.
func (c *Cluster) firstOn(server string) int {
	for d := range task.Databases {
		if c.ServerAddress(d) == server {
			return d
		}
	}
	return 0
}

// ServerLimit returns how many connections this process opens to a server at most.
func (c *Cluster) ServerLimit(server string) int {
	b := c.budgets.of(server)
	b.mu.Lock()
	defer b.mu.Unlock()
	most := 0
	for _, p := range b.pools {
		most += p.most
	}
	return min(most, b.limit)
}

// Fit sets the connections that this process opens to each server to its share of what the
// server admits. It must be called again now and then, because processes come and go. Without
// [Config.FitServers] it does nothing.
func (c *Cluster) Fit(ctx context.Context) error {
	if !c.fit {
		return nil
	}
	all, err := c.Admissions(ctx)
	for _, a := range all {
		c.budgets.of(a.Server).setLimit(a.Share())
	}
	return err
}
