package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"
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
	if err := p.testPostgres(ctx, len(errs) == 0); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		s.close()
		return nil, errors.Join(errs...)
	}
	return s, nil
}

// A taskd dev that was killed has closed its ports at once, and its PostgreSQL stops a moment later,
// after a checkpoint.
const (
	orphanStop = 3 * time.Second
	orphanPoll = 50 * time.Millisecond
)

// testPostgres opens the port of PostgreSQL and closes it, because PostgreSQL opens it itself. If mayWait
// is set and the port is in use, it waits for the PostgreSQL of a killed taskd dev. If other ports are in
// use, too, another installation runs, and nothing is worth waiting for.
func (p Ports) testPostgres(ctx context.Context, mayWait bool) error {
	if p.Postgres == 0 {
		return nil
	}
	for until := time.Now().Add(orphanStop); ; {
		l, err := openPort(ctx, "postgres", p.Postgres)
		if err == nil {
			return l.Close()
		}
		if !mayWait || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(orphanPoll):
		}
	}
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
