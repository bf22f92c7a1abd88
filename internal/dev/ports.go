package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Ports are the ports of 127.0.0.1 to listen on. 0 stands for any free port.
type Ports struct{ GRPC, HTTP, Ops, Kafka, Postgres int }

// DefaultPorts are the default ports of taskd dev.
var DefaultPorts = Ports{GRPC: 7070, HTTP: 7071, Ops: 7072, Kafka: 7092, Postgres: 7032}

// sockets holds the listeners of the open ports.
type sockets struct{ grpc, http, ops, kafka net.Listener }

// open opens all ports. Its error names every port that cannot be opened.
func (p Ports) open(ctx context.Context) (*sockets, error) {
	s := &sockets{}
	var errs []error
	for _, o := range []struct {
		into *net.Listener
		flag string
		port int
	}{{&s.grpc, "grpc", p.GRPC}, {&s.http, "http", p.HTTP}, {&s.ops, "ops", p.Ops}, {&s.kafka, "kafka", p.Kafka}} {
		l, err := openPort(ctx, o.flag, o.port)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		*o.into = l
	}
	// PostgreSQL opens its port itself.
	if p.Postgres != 0 {
		if l, err := openPort(ctx, "postgres", p.Postgres); err != nil {
			errs = append(errs, err)
		} else {
			_ = l.Close() // it was only a test of the port
		}
	}
	if len(errs) > 0 {
		s.close()
		return nil, errors.Join(errs...)
	}
	return s, nil
}

func openPort(ctx context.Context, name string, port int) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, portInUse(name, port)
	}
	return nil, fmt.Errorf("port %d on 127.0.0.1 for %s cannot be opened: %w", port, name, err)
}

func portInUse(name string, port int) error {
	return fmt.Errorf("port %d on 127.0.0.1 for %s is in use: stop the program that uses it, or choose another with --%s-port (0: any free port)", port, name, name)
}

// close closes all listeners. Most are already closed by their servers.
func (s *sockets) close() {
	for _, l := range []net.Listener{s.grpc, s.http, s.ops, s.kafka} {
		if l != nil {
			_ = l.Close() // an error says that the server has closed it
		}
	}
}
