package subprocess

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are drawn below the range of source ports of outgoing connections (32768 and up on Linux,
// 49152 and up elsewhere), so the port of a server stays free while the server restarts.
const (
	lowestPort  = 15000
	highestPort = 31999
	portTries   = 100
)

// ErrNoFreePort is returned by [FreePort] when it could bind none of the ports that it tried.
var ErrNoFreePort = errors.New("no free TCP port")

// FreePort returns a TCP port on 127.0.0.1 that no process listens on now. Another process may bind it
// before the caller does. A caller whose server cannot bind the port tries again with another one.
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
