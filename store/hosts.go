package store

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// hosts orders the hosts of connection strings, and the addresses of their names: the one that has answered last comes
// first, and the others follow in their own order. One that hangs, or whose machine is gone, takes the whole time of
// [limitConnect] from a connection that begins with it. So only the first connection of a process waits for it. A
// standby has not answered, for its connections are refused.
//
// The zero value is ready. The methods may be called concurrently.
type hosts struct {
	mu sync.Mutex
	// answered says when each host:port and each IP address has answered last.
	answered map[string]time.Time
	// names has the host whose name had led to an IP address last.
	names map[string]string
}

// maxNames bounds the addresses that are remembered. A name may have others each time.
const maxNames = 1000

// order makes a connection by a configuration, which must not be shared, begin with what has answered last.
func (h *hosts) order(c *pgx.ConnConfig) {
	all := append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
	h.mu.Lock()
	slices.SortStableFunc(all, func(a, b *pgconn.FallbackConfig) int {
		return h.later(hostPort(a.Host, a.Port), hostPort(b.Host, b.Port))
	})
	h.mu.Unlock()
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
	lookUp := c.LookupFunc
	c.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		ips, err := lookUp(ctx, host)
		return h.lookedUp(host, ips), err
	}
	c.AfterConnect = func(_ context.Context, conn *pgconn.PgConn) error {
		if at, ok := conn.Conn().RemoteAddr().(*net.TCPAddr); ok {
			h.reached(at)
		}
		return nil
	}
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// later compares two keys by when they have answered, the last one first. The caller holds the lock.
func (h *hosts) later(a, b string) int { return h.answered[b].Compare(h.answered[a]) }

// lookedUp returns the IP addresses of a host in their order.
func (h *hosts) lookedUp(host string, ips []string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names == nil || len(h.names) > maxNames {
		h.names = map[string]string{}
	}
	for _, ip := range ips {
		h.names[ip] = host
	}
	ips = slices.Clone(ips)
	slices.SortStableFunc(ips, h.later)
	return ips
}

// reached records that a server has answered.
func (h *hosts) reached(at *net.TCPAddr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.answered == nil || len(h.answered) > maxNames {
		h.answered = map[string]time.Time{}
	}
	ip, now := at.IP.String(), time.Now()
	h.answered[ip], h.answered[hostPort(h.names[ip], uint16(at.Port))] = now, now
}
