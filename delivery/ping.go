package delivery

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/segmentio/kafka-go"
)

// Ping asks all configured brokers at once, over new connections, and returns nil as soon as
// one answers. So a broker that hangs does not hide the others.
func (p *Publisher) Ping(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(p.cfg.Brokers))
	for _, broker := range p.cfg.Brokers {
		go func() { answers <- p.cfg.ask(ctx, broker) }()
	}
	var failed []error
	for range p.cfg.Brokers {
		err := <-answers
		if err == nil {
			return nil
		}
		failed = append(failed, err)
	}
	return fmt.Errorf("ping Kafka: %w", errors.Join(failed...))
}

// ask sends a request to a broker. The connection is closed when ctx ends, because a broker
// may accept it and never answer.
func (c Config) ask(ctx context.Context, broker string) error {
	dialer := kafka.Dialer{ClientID: c.ClientID, Timeout: c.DialTimeout, SASLMechanism: c.SASL}
	dialer.DialFunc = func(dialing context.Context, network, address string) (net.Conn, error) {
		conn, err := c.Dial(dialing, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
	conn, err := dialer.DialContext(ctx, "tcp", broker)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ApiVersions(); err != nil {
		return fmt.Errorf("%s: %w", broker, err)
	}
	return nil
}
