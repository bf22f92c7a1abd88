package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perceptor/perceptor/migrations"
	"github.com/perceptor/perceptor/store/move/sql"
	"github.com/perceptor/perceptor/store/place"
)

// Refused lists everything that is missing for a move.
type Refused struct{ Faults []string }

// Error implements error.
func (r *Refused) Error() string { return strings.Join(r.Faults, "; ") }

// server is what a server says of itself.
type server struct {
	system                            int64
	version                           int32
	standby                           bool
	walLevel, encoding                string
	slots, senders, workers, origins  int32
	keep                              int64 // bytes of log that a slot may hold; negative: all
	prepared                          int32
	timeout                           int64 // of a statement, in ms; 0: none
	create, super, replicate, sub, ow bool
}

// The least that must be free: one for the subscription, and one for a table that is being
// copied.
const (
	leastSlots   = 2
	leastWorkers = 2
	leastOrigins = 2
)

func (s *session) describe(ctx context.Context) (v server, err error) {
	err = s.row(ctx, sql.Server, nil, &v.system, &v.version, &v.standby, &v.walLevel, &v.encoding, &v.slots, &v.senders, &v.keep, &v.workers, &v.origins, &v.prepared, &v.timeout)
	if err == nil {
		err = s.row(ctx, sql.Rights, nil, &v.create, &v.super, &v.replicate, &v.sub, &v.ow)
	}
	return v, err
}

// check returns a [Refused] with everything that is missing. The parts of a move that is
// resumed are there and need no place.
func (m *Mover) check(ctx context.Context, resumed bool) error {
	old, err := m.old.describe(ctx)
	if err != nil {
		return fmt.Errorf("examine %s: %w", m.from, err)
	}
	next, err := m.new.describe(ctx)
	if err != nil {
		return fmt.Errorf("examine %s: %w", m.to, err)
	}
	var size int64
	if err := m.old.row(ctx, sql.Size, nil, &size); err != nil {
		return err
	}
	r := &Refused{}
	r.source(m.from, &old, size, resumed)
	r.target(m, &next, resumed)
	if !resumed {
		if err := errors.Join(m.checkDisk(ctx, r, size), m.checkSchema(ctx, r)); err != nil {
			return err
		}
	}
	if old.encoding != next.encoding {
		r.add("encoding: %s has %s, %s has %s", m.from, old.encoding, m.to, next.encoding)
	}
	if old.system == next.system && databaseOf(m.from) == databaseOf(m.to) {
		r.add("--to: %s is the same PostgreSQL database as %s", m.to, m.from)
	}
	if err := m.checkLogin(ctx); err != nil {
		r.add("login: programs cannot connect to %s: list this server in postgres.servers of all programs, with databases: [], or make their user there: %v", m.to, err)
	}
	if err := m.checkClocks(ctx, r); err != nil {
		return err
	}
	if err := m.checkVersion(ctx, r); err != nil {
		return err
	}
	if err := m.checkRoles(ctx, r); err != nil {
		return err
	}
	if err := m.checkOwner(ctx, r); err != nil {
		return err
	}
	if len(r.Faults) > 0 {
		return r
	}
	return nil
}

// clockTolerance is how much the clocks of two servers may differ: about as late as runs may be.
const clockTolerance = time.Second

// checkClocks compares the clocks of the servers: after the switch it is the new one that says what is due.
func (m *Mover) checkClocks(ctx context.Context, r *Refused) error {
	var old, next int64
	began := time.Now()
	if err := m.old.row(ctx, sql.Clock, nil, &old); err != nil {
		return fmt.Errorf("read the clock of %s: %w", m.from, err)
	}
	if err := m.new.row(ctx, sql.Clock, nil, &next); err != nil {
		return fmt.Errorf("read the clock of %s: %w", m.to, err)
	}
	r.clocks(m, time.Duration(next-old)*time.Millisecond, time.Since(began))
	return nil
}

// clocks checks the clocks of both places, of which the new one was read after the old one, at most between later.
func (r *Refused) clocks(m *Mover, ahead, between time.Duration) {
	switch {
	case ahead-between > clockTolerance:
		r.add("clock: that of %s is about %s ahead of that of %s, so tasks would fire too early: set the clocks", m.to, ahead-between, m.from)
	case -ahead > clockTolerance:
		r.add("clock: that of %s is about %s behind that of %s, so tasks would fire too late: set the clocks", m.to, -ahead, m.from)
	}
}

func databaseOf(a place.Address) string { return string(a[len(a.Server()):]) }

func (r *Refused) add(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

// source checks the old place.
func (r *Refused) source(at place.Address, s *server, size int64, resumed bool) {
	if s.walLevel != "logical" {
		r.add("wal_level of %s is %s: set it to logical and restart the server", at, s.walLevel)
	}
	if s.slots < leastSlots && !resumed {
		r.add("max_replication_slots of %s leaves %d: want %d free", at, s.slots, leastSlots)
	}
	if s.senders < leastSlots && !resumed {
		r.add("max_wal_senders of %s leaves %d: want %d free", at, s.senders, leastSlots)
	}
	if s.keep >= 0 && s.keep < size {
		r.add("max_slot_wal_keep_size of %s is %d bytes, less than the database with %d: the slot could be lost; set it to -1", at, s.keep, size)
	}
	if s.prepared > 0 {
		r.add("%s has %d prepared transactions: the slot would wait for them", at, s.prepared)
	}
	if s.timeout > 0 { // the subscription logs in with it, and no parameter of its connection changes that
		r.add("statement_timeout of the role at %s is %s: the copy of a table that takes longer would begin again and again; ALTER ROLE ... SET statement_timeout = 0",
			at, time.Duration(s.timeout)*time.Millisecond)
	}
	if !s.create {
		r.add("the role at %s lacks CREATE on the PostgreSQL database", at)
	}
	if !s.replicate {
		r.add("the role at %s lacks REPLICATION", at)
	}
	if !s.ow {
		r.add("the role at %s does not own all tables of the schema: run the command as their owner, which runs the migrations, too", at)
	}
}

// target checks the new place.
func (r *Refused) target(m *Mover, s *server, resumed bool) {
	if s.standby {
		r.add("%s is a standby", m.to)
	}
	if s.workers < leastWorkers && !resumed {
		r.add("max_logical_replication_workers of %s leaves %d: want %d free", m.to, s.workers, leastWorkers)
	}
	if s.origins < leastOrigins && !resumed {
		r.add("max_replication_slots (from PostgreSQL 18 on max_active_replication_origins) of %s leaves %d: want %d free", m.to, s.origins, leastOrigins)
	}
	if !s.create {
		r.add("the role at %s lacks CREATE on the PostgreSQL database", m.to)
	}
	if !s.sub {
		r.add("the role at %s may not subscribe: grant pg_create_subscription (PostgreSQL 16 and later), or use a superuser", m.to)
	}
}

// checkDisk compares the size of the database with what is free at the target, as far as that is
// known: PostgreSQL tells no user how large its disk is.
func (m *Mover) checkDisk(ctx context.Context, r *Refused, size int64) error {
	if m.Free > 0 {
		if m.Free < size {
			r.add("disk: %s has %d bytes free, and the database has %d", m.to, m.Free, size)
		}
		return nil
	}
	storage := m.Cluster.StorageAt(m.to)
	if storage == 0 {
		return nil
	}
	var used int64
	if err := m.new.row(ctx, sql.Used, nil, &used); err != nil {
		return fmt.Errorf("read what %s has on its disk: %w", m.to, err)
	}
	if storage-used < size {
		r.add("disk: of the %d bytes of %s (postgres.servers[].storage) databases and log take %d, and the database has %d", storage, m.to, used, size)
	}
	return nil
}

// checkSchema looks whether the name of the schema is free at the target.
func (m *Mover) checkSchema(ctx context.Context, r *Refused) error {
	c, err := place.Read(ctx, m.new.conn)
	if err != nil {
		return fmt.Errorf("read what %s has: %w", m.to, err)
	}
	fault, err := m.inTheWay(ctx, c.State)
	if fault != "" {
		r.add("%s", fault)
	}
	return err
}

func (m *Mover) checkVersion(ctx context.Context, r *Refused) error {
	v, err := migrations.Version(ctx, m.source, m.schema)
	if err != nil {
		return err
	}
	if v != migrations.Latest() {
		r.add("schema of %s has version %d, this program has %d: run perceptorctl migrate up, or the version of this program that fits", m.from, v, migrations.Latest())
	}
	return nil
}

// checkLogin connects to the target as the programs will.
func (m *Mover) checkLogin(ctx context.Context) error {
	config, err := m.Cluster.ConfigAt(m.Database, m.to)
	if err != nil {
		return err
	}
	s, err := m.open(ctx, config, m.schema)
	s.close()
	return err
}

// checkRoles looks for the roles that the programs log in with.
func (m *Mover) checkRoles(ctx context.Context, r *Refused) error {
	var roles []string
	var name string
	if err := m.old.rows(ctx, sql.Roles, nil, []any{&name}, func() error { roles = append(roles, name); return nil }); err != nil {
		return err
	}
	return m.new.rows(ctx, sql.NoRoles, []any{roles}, []any{&name}, func() error {
		r.add("%s has no role %s, which has rights at %s", m.to, name, m.from)
		return nil
	})
}

// An owner owns the tables at the old place.
type owner struct {
	name                string
	there, act, creates bool // at the target: it exists and is not the role of the session; the session may act as it; it may create schemas
}

func (m *Mover) owner(ctx context.Context) (o owner, err error) {
	if err = m.old.row(ctx, sql.Owner, nil, &o.name); err == nil {
		err = m.new.row(ctx, sql.ActAs, []any{o.name}, &o.there, &o.act, &o.creates)
	}
	return o, err
}

// checkOwner makes sure that the new copy can belong to the owner of the old one, if the target has that role.
func (m *Mover) checkOwner(ctx context.Context, r *Refused) error {
	o, err := m.owner(ctx)
	if err != nil || !o.there {
		return err
	}
	if !o.act {
		r.add("the role at %s may not act as %s, which owns the tables at %s: grant it that role", m.to, o.name, m.from)
	}
	if !o.creates {
		r.add("%s, which owns the tables at %s, lacks CREATE on the PostgreSQL database of %s", o.name, m.from, m.to)
	}
	return nil
}
