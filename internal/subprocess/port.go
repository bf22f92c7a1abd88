package subprocess

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are drawn below the range from which systems take the source ports of outgoing connections
// (32768 and up on Linux, 49152 and up elsewhere), so a server that is restarted finds its port free.
const (
	lowestPort  = 15000
	highestPort = 31999
	portTries   = 100
)

// ErrNoFreePort is returned when no port of the range could be bound.
var ErrNoFreePort = errors.New("no free TCP port")

// FreePort returns a TCP port on 127.0.0.1 that nobody listens on now. Another process can still take
// it before it is used: callers try again with another when their server cannot bind it.
func FreePort() (int, error) {
	for range portTries {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			continue
		}
		return port, nil
	}
	return 0, fmt.Errorf("%w between %d and %d on 127.0.0.1", ErrNoFreePort, lowestPort, highestPort)
}
