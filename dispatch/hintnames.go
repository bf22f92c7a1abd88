package dispatch

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

const (
	// lookupWait is how long a sender waits for the addresses of names, and lookupLimit bounds a lookup.
	lookupWait  = 100 * time.Millisecond
	lookupLimit = 10 * time.Second
)

// hintNames has the addresses of receivers by their names. A name that resolves slowly delays no hint for others: its
// lookup goes on by itself, and meanwhile its last address counts. The zero value is ready.
type hintNames struct {
	mu    sync.Mutex
	known map[string]*hintName
}

// hintName is host:port.
type hintName struct {
	addr   net.Addr // nil: not known
	asking bool
}

// resolve returns the known addresses of the owners, and looks all of them up. Lookups end with ctx.
func (n *hintNames) resolve(ctx context.Context, owners map[task.Shard]task.Owner) map[string]net.Addr {
	n.mu.Lock()
	known, asked := map[string]*hintName{}, make(chan struct{}, len(owners))
	waiting := 0
	for _, o := range owners {
		if o.HintAddr == "" || known[o.HintAddr] != nil {
			continue
		}
		of := n.known[o.HintAddr]
		if of == nil {
			of = &hintName{}
		}
		known[o.HintAddr] = of
		if !of.asking {
			of.asking = true
			waiting++
			go func() {
				n.look(ctx, o.HintAddr, of)
				asked <- struct{}{}
			}()
		}
	}
	n.known = known
	n.mu.Unlock()
	late := time.NewTimer(lookupWait)
	defer late.Stop()
	for inTime := true; waiting > 0 && inTime; waiting-- {
		select {
		case <-asked:
		case <-late.C:
			inTime = false
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	addresses := make(map[string]net.Addr, len(known))
	for name, of := range known {
		addresses[name] = of.addr
	}
	return addresses
}

// look looks a name up. After an error the last address stays.
func (n *hintNames) look(ctx context.Context, name string, of *hintName) {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addr, err := lookUp(ctx, name)
	n.mu.Lock()
	defer n.mu.Unlock()
	if of.asking = false; err == nil {
		of.addr = addr
	}
}

// lookUp is [net.ResolveUDPAddr] with a context: of several addresses it takes the first of IPv4.
func lookUp(ctx context.Context, name string) (net.Addr, error) {
	host, service, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "udp", service)
	if err != nil {
		return nil, err
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // at least one
	if err != nil {
		return nil, err
	}
	first := all[0]
	if i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Unmap().Is4() }); i >= 0 {
		first = all[i]
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(first.Unmap(), uint16(port))), nil
}
