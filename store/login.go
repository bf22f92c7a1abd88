package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/renewal"
	"github.com/perceptor/perceptor/store/place"
)

// replaceEvery is the time between the replacements of the connections of two databases, so that
// not all of them are opened at once.
const replaceEvery = 50 * time.Millisecond

// errMoved says that a connection string leads elsewhere.
var errMoved = errors.New("the connection string leads to another host, port or database: restart this program")

// login is how a process logs in to one server of the configuration, and to those to which its
// databases have moved.
type login struct {
	*renewal.Follower[*loginText]
	// configured is the address in the connection string.
	configured place.Address
	readOnly   bool
	stop       func() // ends Run and waits for it; nil: it does not run
	hosts      hosts

	mu sync.Mutex
	// parsed has the configurations for addresses, made of the text of, and before those of the text before.
	of             *loginText
	parsed, before map[place.Address]*pgx.ConnConfig
}

// loginText is a connection string, with what the files that it names held when it was read.
type loginText struct {
	dsn    string
	config *pgx.ConnConfig
}

func readLogin(dsn string, readOnly bool) (*loginText, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, scrub(err)
	}
	preferPrimary(config, readOnly)
	limitConnect(config)
	return &loginText{dsn, config}, nil
}

// at returns the configuration of a connection to an address; "" stands for that of the connection string.
func (t *loginText) at(to place.Address, readOnly bool) (*pgx.ConnConfig, error) {
	if to == "" {
		return t.config, nil
	}
	dsn, err := to.DSN(t.dsn)
	if err != nil {
		return nil, err
	}
	moved, err := readLogin(dsn, readOnly)
	if err != nil {
		return nil, err
	}
	return moved.config, nil
}

// at returns the configuration of a connection to an address that begins now; "" stands for the
// configured one. It must not be changed.
func (l *login) at(to place.Address) (*pgx.ConnConfig, error) {
	now := l.Current()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of != now {
		l.of, l.parsed, l.before = now, map[place.Address]*pgx.ConnConfig{}, l.parsed
	}
	if known := l.parsed[to]; known != nil {
		return known, nil
	}
	config, err := now.at(to, l.readOnly)
	if err != nil {
		if last := l.before[to]; last != nil {
			return last, nil
		}
		return nil, err
	}
	l.parsed[to] = config
	return config, nil
}

// newLogins makes the logins to all servers of the configuration.
func (c *Cluster) newLogins(cfg Config) error {
	for i, s := range cfg.Servers {
		first, err := readLogin(s.DSN, cfg.ReadOnly)
		if err != nil {
			return fmt.Errorf("postgres.servers[%d].dsn is not a connection string: %w", i, err)
		}
		c.logins = append(c.logins, c.newLogin(first, s, cfg.ReadOnly))
	}
	return nil
}

// newLogin follows the login to a server, of which first is the connection string.
func (c *Cluster) newLogin(first *loginText, s Server, readOnly bool) *login {
	read := s.Read
	if read == nil {
		read = func() (string, error) { return s.DSN, nil } // the files that it names may change
	}
	l := &login{readOnly: readOnly, configured: addressIn(first.config)}
	l.Follower = renewal.New(first, renewal.Config[*loginText]{
		Read: func() (*loginText, error) {
			dsn, err := read()
			if err != nil {
				return nil, err
			}
			fresh, err := readLogin(dsn, readOnly)
			if err == nil && addressIn(fresh.config) != l.configured {
				err = errMoved
			}
			return fresh, err
		},
		Same:    func(a, b *loginText) bool { return sameLogin(a.config, b.config) },
		Try:     func(ctx context.Context, fresh *loginText) error { return c.tryLogin(ctx, l, fresh) },
		Adopted: func(ctx context.Context) { c.replaceConnections(ctx, l) },
		Refused: func(err error) { c.tellLogin(l, err) },
	})
	return l
}

// addressIn returns the address of a configuration. That of a database that cannot be moved
// is read by nobody.
func addressIn(config *pgx.ConnConfig) place.Address {
	address, err := place.AddressIn(config)
	if err != nil {
		return place.Address(config.Database)
	}
	return address
}

// using returns the databases to which a login leads, and the address of the first.
func (c *Cluster) using(l *login) (databases []int, first place.Address) {
	for d, p := range c.placed {
		if of, to, _ := p.leads(); of == l {
			if databases = append(databases, d); len(databases) == 1 {
				first = to
			}
		}
	}
	return databases, first
}

// tryLogin opens a connection with a changed login, to where a database is that uses it.
func (c *Cluster) tryLogin(ctx context.Context, l *login, fresh *loginText) error {
	_, to := c.using(l)
	config, err := fresh.at(to, l.readOnly)
	if err != nil {
		return err
	}
	config = config.Copy()
	config.RuntimeParams["application_name"] = c.application
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// replaceConnections replaces the connections of a login, when nobody uses them.
func (c *Cluster) replaceConnections(ctx context.Context, l *login) {
	c.tellLogin(l, nil)
	c.watches.disconnect(l)
	databases, _ := c.using(l)
	for _, d := range databases {
		c.pools[d].Reset()
		if !ctxtime.Sleep(ctx, replaceEvery) {
			return
		}
	}
}

// disconnect closes the probers' connections of a login.
func (s *watches) disconnect(l *login) {
	s.mu.Lock()
	probers := slices.Clone(s.probers)
	s.mu.Unlock()
	for _, p := range probers {
		if p.login == l {
			p.close()
		}
	}
}

func (c *Cluster) tellLogin(l *login, err error) {
	c.mu.Lock()
	f := c.onLogin
	c.mu.Unlock()
	if f != nil {
		f(l.configured.Server(), err)
	}
}

// OnLogin makes f receive each change of a login to a server of the configuration: nil when new connections use
// it, and once the error because of which they cannot yet, which holds no secret. f must not block.
func (c *Cluster) OnLogin(f func(server string, err error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onLogin = f
}

// runLogins begins to follow all logins.
func (c *Cluster) runLogins() {
	for _, l := range c.logins {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = l.Run(ctx) }) // which ends without an error
		l.stop = func() { cancel(); running.Wait() }
	}
}

func (c *Cluster) closeLogins() {
	for _, l := range c.logins {
		if l.stop != nil {
			l.stop()
		}
	}
}

// sameLogin reports whether two connection strings log in alike.
func sameLogin(a, b *pgx.ConnConfig) bool {
	if a.User != b.User || a.Password != b.Password || len(a.Fallbacks) != len(b.Fallbacks) || !sameTLS(a.TLSConfig, b.TLSConfig) {
		return false
	}
	for i := range a.Fallbacks {
		if !sameTLS(a.Fallbacks[i].TLSConfig, b.Fallbacks[i].TLSConfig) {
			return false
		}
	}
	return true
}

func sameTLS(a, b *tls.Config) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.InsecureSkipVerify == b.InsecureSkipVerify && a.RootCAs.Equal(b.RootCAs) &&
		slices.EqualFunc(a.Certificates, b.Certificates, func(a, b tls.Certificate) bool {
			return slices.EqualFunc(a.Certificate, b.Certificate, slices.Equal)
		})
}
