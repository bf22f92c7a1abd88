package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A hint is one datagram of 16 bytes, big-endian: the magic number, the version, a zero
// byte, the database, and the earliest due instant in ms since 1970. It is not
// authenticated: a forged hint costs its receiver one early claim.
const (
	hintSize           = 16
	hintMagic   uint32 = 0x50524348 // "PRCH"
	hintVersion byte   = 1
)

func appendHint(b []byte, database int, due task.Instant) []byte {
	b = binary.BigEndian.AppendUint32(b, hintMagic)
	b = append(b, hintVersion, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(database))
	return binary.BigEndian.AppendUint64(b, uint64(due))
}

// parseHint parses a datagram. It returns false if the datagram is not a hint of this
// version.
func parseHint(b []byte) (database int, due task.Instant, ok bool) {
	if len(b) != hintSize || binary.BigEndian.Uint32(b) != hintMagic || b[4] != hintVersion {
		return 0, 0, false
	}
	database = int(binary.BigEndian.Uint16(b[6:]))
	due = task.Instant(binary.BigEndian.Uint64(b[8:]))
	return database, due, database < task.Databases && due >= 0
}

// Hints receives hints by UDP.
type Hints struct {
	conn *net.UDPConn
}

// ListenHints opens the UDP address, host:port. Port 0 chooses a free port.
func ListenHints(address string) (*Hints, error) {
	addr, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, fmt.Errorf("resolve hint address %q: %w", address, err)
	}
	conn, err := net.ListenUDP("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for hints: %w", err)
	}
	return &Hints{conn: conn}, nil
}

// Addr returns the address that was opened.
func (h *Hints) Addr() string { return h.conn.LocalAddr().String() }

// Run calls wake, such as [Dispatcher.Hint], for each hint until ctx ends. Then it closes
// the socket and returns nil.
func (h *Hints) Run(ctx context.Context, wake func(database int, due task.Instant)) error {
	stop := context.AfterFunc(ctx, func() { _ = h.conn.Close() })
	defer stop()
	defer h.conn.Close()
	buf := make([]byte, hintSize+1)
	for {
		n, err := h.conn.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read hint: %w", err)
		case err != nil: // such as an ICMP answer that a port is closed
			if !pause(ctx, 10*time.Millisecond) {
				return nil
			}
			continue
		}
		if database, due, ok := parseHint(buf[:n]); ok {
			wake(database, due)
		}
	}
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
