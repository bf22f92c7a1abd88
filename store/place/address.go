package place

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// An Address names a PostgreSQL database without credentials: host:port/database, or
// host:port,host:port/database if it has several servers of which one is the primary. How to
// log in there is in the configuration of each program.
type Address string

// ErrAddress is the error of a text that is not an address.
var ErrAddress = errors.New("an address has the form host:port/database")

// AddressOf returns the address that a connection string leads to.
func AddressOf(dsn string) (Address, error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return "", errors.New("it is not a connection string") // the driver's error may quote a password
	}
	return AddressIn(c)
}

// AddressIn returns the address that a configuration leads to.
func AddressIn(c *pgx.ConnConfig) (Address, error) {
	if strings.Contains(c.Database, "/") {
		return "", fmt.Errorf("the name of the database, %q, has a slash", c.Database)
	}
	servers := []string{server(c.Host, c.Port)}
	for _, f := range c.Fallbacks { // one server may be there twice, with and without TLS
		if s := server(f.Host, f.Port); s != servers[len(servers)-1] {
			servers = append(servers, s)
		}
	}
	database := c.Database
	if database == "" {
		database = c.User
	}
	return Address(strings.Join(servers, ",") + "/" + database), nil
}

func server(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// Server returns the address without the name of the database.
func (a Address) Server() string { return string(a[:max(0, strings.LastIndexByte(string(a), '/'))]) }

// split returns the hosts, the ports and the database.
func (a Address) split() (hosts, ports []string, database string, err error) {
	slash := strings.LastIndexByte(string(a), '/')
	if slash < 1 || slash == len(a)-1 {
		return nil, nil, "", fmt.Errorf("%q: %w", a, ErrAddress)
	}
	for one := range strings.SplitSeq(string(a[:slash]), ",") {
		host, port, err := net.SplitHostPort(one)
		if err != nil || host == "" || port == "" {
			return nil, nil, "", fmt.Errorf("%q: %w", a, ErrAddress)
		}
		hosts, ports = append(hosts, host), append(ports, port)
	}
	return hosts, ports, string(a[slash+1:]), nil
}

// DSN returns dsn with the servers and the database of the address. User, password, TLS and
// everything else stay.
func (a Address) DSN(dsn string) (string, error) {
	hosts, ports, database, err := a.split()
	if err != nil {
		return "", err
	}
	settings := [][2]string{{"host", strings.Join(hosts, ",")}, {"port", strings.Join(ports, ",")}, {"dbname", database}}
	if len(hosts) > 1 && !strings.Contains(dsn, "target_session_attrs") {
		settings = append(settings, [2]string{"target_session_attrs", "read-write"})
	}
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		for _, s := range settings { // later values count
			dsn += fmt.Sprintf(" %s='%s'", s[0], strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s[1]))
		}
		return dsn, nil
	}
	rest := dsn[strings.LastIndexByte(dsn, '@')+1:]
	separator := byte('?')
	if strings.IndexByte(rest, '?') >= 0 {
		separator = '&'
	}
	for _, s := range settings {
		dsn += string(separator) + s[0] + "=" + url.PathEscape(s[1])
		separator = '&'
	}
	return dsn, nil
}
