package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/store/place"
)

// placed is where one logical database is, as far as this process knows. Its pool connects
// there; when the place changes the pool replaces its connections.
type placed struct {
	d         int
	readOnly  bool
	bootstrap *login   // that of the configuration
	logins    []*login // to all servers of the configuration
	// moved is called when the place has changed.
	moved func()

	// address is that of config. Connections that lead elsewhere are not used.
	address atomic.Pointer[place.Address]
	// gate is nil unless a move is about to switch the database: then nothing begins here
	// until the channel is closed.
	gate atomic.Pointer[chan struct{}]

	mu     sync.Mutex
	number int64 // of the place; 0: not known
	login  *login
	to     place.Address // "" for that of the configuration
}

// newPlaced returns the place of database d in the configuration, to which bootstrap leads.
func newPlaced(d int, bootstrap *login, logins []*login, readOnly bool) *placed {
	p := &placed{d: d, bootstrap: bootstrap, logins: logins, readOnly: readOnly, login: bootstrap}
	address := bootstrap.configured
	p.address.Store(&address)
	return p
}

// current returns the number and the address of the place.
func (p *placed) current() (number int64, address place.Address) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.number, *p.address.Load()
}

// leads returns the login to the place, its address for [login.at], and its server.
func (p *placed) leads() (l *login, to place.Address, server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.login, p.to, p.address.Load().Server()
}

// config returns the configuration of a connection to the place. It must not be changed.
func (p *placed) config() (*pgx.ConnConfig, error) {
	l, to, _ := p.leads()
	return l.at(to)
}

// copyConfig returns a copy of it. A place whose configuration cannot be made was not learnt.
func (p *placed) copyConfig() *pgx.ConnConfig {
	config, err := p.config()
	if err != nil {
		config, _ = p.bootstrap.at("") // which is known
	}
	return config.Copy()
}

// connect is the pool's BeforeConnect: it makes a connection lead to the place.
func (p *placed) connect(_ context.Context, c *pgx.ConnConfig) error {
	to, err := p.config()
	if err != nil {
		return err
	}
	c.Host, c.Port, c.Database, c.User, c.Password = to.Host, to.Port, to.Database, to.User, to.Password
	c.TLSConfig, c.Fallbacks, c.ValidateConnect = to.TLSConfig, to.Fallbacks, to.ValidateConnect
	p.order(c)
	return nil
}

// order makes a connection begin with the host that has answered last. It leads to the same address, where the hosts
// keep their order. Programs that only read have another reason for the order of the hosts: a standby comes first.
func (p *placed) order(c *pgx.ConnConfig) {
	if p.readOnly {
		return
	}
	at, err := place.AddressIn(c)
	l, _, _ := p.leads()
	l.hosts.order(c)
	reached := c.AfterConnect
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err == nil {
			conn.CustomData()[placeKey] = at
		}
		return reached(ctx, conn)
	}
}

// learn records a place if its number is greater than the known one. An empty address is that
// of the configuration.
func (p *placed) learn(number int64, address place.Address) error {
	p.mu.Lock()
	if number <= p.number {
		p.mu.Unlock()
		return nil
	}
	l := p.loginOf(address)
	config, err := l.at(address)
	if err != nil {
		p.mu.Unlock()
		return fmt.Errorf("database %d is at %s: %w", p.d, address, err)
	}
	p.number = number
	now, before := address, *p.address.Load()
	if now == "" {
		now, err = place.AddressIn(config)
	}
	if changed := err == nil && now != before; changed {
		p.login, p.to = l, address
		p.address.Store(&now)
		p.mu.Unlock()
		p.moved()
	} else {
		p.mu.Unlock()
	}
	p.open()
	return err
}

// loginOf returns the login to the server of an address: that of the configuration for the same server, or
// else that of this database.
func (p *placed) loginOf(address place.Address) *login {
	if address == "" || address.Server() == p.bootstrap.configured.Server() {
		return p.bootstrap
	}
	for _, l := range p.logins {
		if l.configured.Server() == address.Server() {
			return l
		}
	}
	return p.bootstrap
}

// maxPause bounds how long calls wait, whatever a database says.
const maxPause = 3 * time.Second

// close makes new calls wait until the place has changed or open is called, but not longer
// than the time given: a move that dies stops nobody.
func (p *placed) close(longest time.Duration) {
	gate := make(chan struct{})
	if p.gate.CompareAndSwap(nil, &gate) {
		time.AfterFunc(min(longest, maxPause), func() {
			if p.gate.CompareAndSwap(&gate, nil) {
				close(gate)
			}
		})
	}
}

// open ends close.
func (p *placed) open() {
	if gate := p.gate.Swap(nil); gate != nil {
		close(*gate)
	}
}

// placeKey is under which a connection has the address that it leads to.
const placeKey = "place"

// admit is the pool's PrepareConn. It waits while the database is about to be switched, and
// passes connections that lead to the place.
func (p *placed) admit(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if gate := p.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
	at, _ := conn.PgConn().CustomData()[placeKey].(place.Address)
	return at == *p.address.Load(), nil
}

// follow learns from a copy that is not open.
func (p *placed) follow(c place.Copy) error {
	switch c.State {
	case place.Moved:
		return p.learn(c.Number, c.Address)
	case place.Incoming:
		return p.learn(c.Number-1, c.Address)
	}
	return nil
}

// recognize reads what the copy of a new connection says of itself, and follows it to the
// place. It returns whether the connection leads there.
func (p *placed) recognize(ctx context.Context, conn *pgx.Conn) (here bool, err error) {
	at, ordered := conn.PgConn().CustomData()[placeKey].(place.Address)
	if !ordered {
		var err error
		if at, err = place.AddressIn(conn.Config()); err != nil {
			at = *p.address.Load()
		}
		conn.PgConn().CustomData()[placeKey] = at
	}
	c, err := place.Read(ctx, conn)
	if err != nil {
		return false, fmt.Errorf("read the place of database %d: %w", p.d, err)
	}
	return p.judge(ctx, conn, c, at)
}

// judge decides about a copy at an address.
func (p *placed) judge(ctx context.Context, conn *pgx.Conn, c place.Copy, at place.Address) (here bool, err error) {
	known, address := p.current()
	elsewhere := func(number int64, to place.Address) (bool, error) {
		if err := p.learn(number, to); err != nil {
			return false, err
		}
		if _, address := p.current(); address == at {
			return false, fmt.Errorf("database %d: the copy at %s, number %d, is %s, and number %d is said to be there", p.d, at, c.Number, c.State, known)
		}
		conn.PgConn().CustomData()[placeKey] = place.Address("")
		return false, nil
	}
	switch {
	case c.State == "": // a new schema
		return true, nil
	case c.State == place.Moved:
		return elsewhere(c.Number, c.Address)
	case c.State == place.Incoming && c.Number != known:
		return elsewhere(c.Number-1, c.Address)
	case c.State == place.Open && c.Number < known:
		if address != at {
			return elsewhere(known, address)
		}
		return false, fmt.Errorf("database %d: the copy at %s has number %d, and number %d is known: it is from before a move", p.d, at, c.Number, known)
	case c.State == place.Incoming && !p.readOnly: // the old place has said that this is the new one
		if err := place.OpenCopy(ctx, conn, c.Number); err != nil {
			return false, fmt.Errorf("open the copy of database %d: %w", p.d, err)
		}
	}
	return true, p.learn(c.Number, at)
}
