package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

//go:embed backend.sql
var backendSQL string

// ErrPooled says that a pooler gives the session of a connection to others between transactions.
// Then parameters, prepared statements and LISTEN of one connection reach others.
var ErrPooled = errors.New("this program needs sessions of its own: set pool_mode = session for its database in the pooler, or connect to PostgreSQL directly")

// What [Cluster.CheckSessions] finds between a program and a server.
const (
	Direct  = "direct"
	Session = "session"
)

// CheckSessions returns for each server that answers, by host and port, whether connections to it
// are direct or through a pooler that keeps sessions, and the errors of the others. An error
// wraps [ErrPooled] if a pooler does not keep them. It uses two connections of its own to each
// server.
func (c *Cluster) CheckSessions(ctx context.Context) (map[string]string, error) {
	var asking sync.WaitGroup
	servers := c.budgets.servers()
	kinds, errs := make([]string, len(servers)), make([]error, len(servers))
	for i, server := range servers {
		asking.Go(func() {
			if kinds[i], errs[i] = checkSessions(ctx, c.placed[c.firstOn(server)]); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", server, errs[i])
			}
		})
	}
	asking.Wait()
	found := map[string]string{}
	for i, kind := range kinds {
		if kind != "" {
			found[servers[i]] = kind
		}
	}
	return found, errors.Join(errs...)
}

// checkSessions makes two connections and asks, on both in turn, for the process that answers.
// One session has one process for good, and no process has two sessions. A pooler that shares
// processes gives the one that became free last or first to the next who asks. So either both
// connections meet in one process, or one of them finds another one than before after the
// other has held its own in a transaction.
func checkSessions(ctx context.Context, p *placed) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout+2*otherHosts(p.copyConfig()))
	defer cancel()
	var pair [2]*pgx.Conn
	var first [2]uint32
	for i := range pair {
		config := p.copyConfig()
		p.order(config)
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return "", err
		}
		defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
		pair[i] = conn
		if first[i], err = backend(ctx, conn); err != nil {
			return "", err
		}
	}
	if first[0] == first[1] {
		return "", sharedBy("transaction")
	}
	tx, err := pair[0].Begin(ctx)
	if err != nil {
		if strings.Contains(err.Error(), "statement pooling") {
			return "", sharedBy("statement")
		}
		return "", err
	}
	if err := unchanged(ctx, pair, first, 0, 1, 1); err != nil {
		return "", err
	}
	if err := tx.Commit(ctx); err != nil {
		return "", err
	}
	if err := unchanged(ctx, pair, first, 1, 1, 0); err != nil {
		return "", err
	}
	if first[0] != pair[0].PgConn().PID() { // a pooler has process ids of its own
		return Session, nil
	}
	return Direct, nil
}

// unchanged returns an error unless the connections, asked in this order, still have their
// first processes.
func unchanged(ctx context.Context, pair [2]*pgx.Conn, first [2]uint32, order ...int) error {
	for _, i := range order {
		now, err := backend(ctx, pair[i])
		if err != nil {
			return err
		}
		if now != first[i] {
			return sharedBy("transaction")
		}
	}
	return nil
}

func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	// Poolers that share processes may know no prepared statements.
	err = conn.QueryRow(ctx, backendSQL, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid, err
}

func sharedBy(mode string) error {
	return fmt.Errorf("a pooler in %s mode is between this program and PostgreSQL, such as PgBouncer with pool_mode = %s: %w", mode, mode, ErrPooled)
}
