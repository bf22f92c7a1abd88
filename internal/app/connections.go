package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// fitEvery is how often a process looks how many others share the connections of the servers.
const fitEvery = 10 * time.Second

// fitConnections sets how many connections this process opens. What cannot be asked stays as it is.
func fitConnections(ctx context.Context, cluster *store.Cluster, log *slog.Logger) {
	if err := cluster.Fit(ctx); err != nil && ctx.Err() == nil {
		log.Debug("the number of connections stays as it is", "err", err)
	}
}

// keepFit does so as long as the process runs.
func keepFit(cluster *store.Cluster, log *slog.Logger) Part {
	return func(ctx context.Context) error {
		return ctxtime.Every(ctx, fitEvery, func(ctx context.Context) { fitConnections(ctx, cluster, log) })
	}
}

// locksOfSession is how many locks on relations one session holds in the largest of the usual
// transactions: those on the partitions of a database, with their indexes.
const locksOfSession = 150

// wantedLocks is the max_locks_per_transaction that suits every installation.
const wantedLocks = 256

// connections compares what the servers admit with what the programs that run may open.
func (e *examination) connections(ctx context.Context, cluster *store.Cluster) {
	all, err := cluster.Admissions(ctx)
	if err != nil {
		e.fail("connections", err)
	}
	databases := map[string]int{}
	for d := range task.Databases {
		databases[cluster.ServerAddress(d)]++
	}
	for _, a := range all {
		e.admission(a, databases[a.Server], a.Server == cluster.ServerAddress(homeDatabase))
	}
}

// admission examines one server, which has so many of the databases.
func (e *examination) admission(a *store.Admission, databases int, home bool) {
	c := &e.config.Postgres
	each := a.Share()
	if c.ServerConnections > 0 {
		each = c.ServerConnections
	}
	each = min(each, databases*c.MaxConnections)
	most := a.Running() * each
	if home { // each dispatcher listens on one more if they agree there
		most += a.Processes(store.DispatcherApplication)
	}
	open := 0
	for _, n := range a.Sessions {
		open += n
	}
	f := Finding{State: OK, Part: "connections", What: fmt.Sprintf(
		"%s admits %d (max_connections %d - %d reserved%s); %d taskds and %d dispatchers that run open at most %d each, %d together; open now: %d",
		a.Server, a.Free(), a.Max, a.Reserved, taken(a), a.Processes(store.TaskdApplication)+a.Processes(store.DevApplication),
		a.Processes(store.DispatcherApplication), each, most, open)}
	if most > a.Free() {
		f.State = Failed
		f.Cure = fmt.Sprintf("raise max_connections of the server by %d or more", most-a.Free()+toolConns)
		if fits := (a.Free() - toolConns) / max(1, a.Running()); fits >= store.LeastConns {
			f.Cure += fmt.Sprintf(", or set postgres.server_connections to %d or less", fits)
		}
	}
	e.findings = append(e.findings, f)
	e.locks(a, max(most, each))
	e.writes(a)
}

// taken says what else limits what a server admits.
func taken(a *store.Admission) (text string) {
	if a.Others > 0 {
		text += fmt.Sprintf(" - %d of other roles", a.Others)
	}
	if a.RoleLimit >= 0 {
		text += fmt.Sprintf(", limit of the role %d", a.RoleLimit)
	}
	if a.DatabaseLimit >= 0 {
		text += fmt.Sprintf(", limit of the database %d", a.DatabaseLimit)
	}
	return text
}

// locks compares the table of locks, which all sessions of a server share, with what so many
// sessions may need.
func (e *examination) locks(a *store.Admission, sessions int) {
	table, need := a.Locks*(a.Max+a.Prepared), locksOfSession*sessions
	f := Finding{State: OK, Part: "locks", What: fmt.Sprintf("%s has places for %d locks (max_locks_per_transaction %d); %d sessions need at most %d",
		a.Server, table, a.Locks, sessions, need)}
	if table < need {
		f.State, f.Cure = Warning, fmt.Sprintf("set max_locks_per_transaction to %d and restart the server", wantedLocks)
	}
	e.findings = append(e.findings, f)
}

// writes says whether the programs can write to a server, and rely on what they have written. The server
// of a development installation may be without fsync on purpose.
func (e *examination) writes(a *store.Admission) {
	if a.ReadOnly {
		e.add(Failed, "writes", "%s is read-only: default_transaction_read_only is on for the server, the database or the role", a.Server)
		e.cure("set it to off; some services turn it on while the disk is full")
	}
	if !a.Durable && !e.single {
		e.add(Warning, "writes", "%s has fsync or full_page_writes off: a crash of its machine may lose acknowledged calls, or all data", a.Server)
		e.cure("set both to on")
	}
}

// sessions says what is between the programs and the servers. It returns false if that shares
// sessions: then nothing else can be examined. Servers that do not answer are examined elsewhere.
func (e *examination) sessions(ctx context.Context, cluster *store.Cluster) bool {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout+cluster.OtherHosts())
	defer cancel()
	kinds, err := cluster.CheckSessions(ctx)
	var pooled []string
	for _, server := range slices.Sorted(maps.Keys(kinds)) {
		if kinds[server] == store.Session {
			pooled = append(pooled, server)
		}
	}
	switch {
	case errors.Is(err, store.ErrPooled):
		e.fail("sessions", err)
		return false
	case err != nil:
	case len(pooled) > 0:
		e.add(OK, "sessions", "a pooler that keeps sessions is between the programs and %s", strings.Join(pooled, ", "))
		e.cure("its pool must admit what the programs may open together")
	default:
		e.add(OK, "sessions", "each connection has a session of its own")
	}
	return true
}
