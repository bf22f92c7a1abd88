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
func (c Config) Ping(ctx context.Context) error {
	c = c.withDefaults()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(c.Brokers))
	for _, broker := range c.Brokers {
		go func() { answers <- c.ask(ctx, broker) }()
	}
	var failed []error
	for range c.Brokers {
		err := <-answers
		if err == nil {
			return nil
		}
		failed = append(failed, err)
	}
	return fmt.Errorf("ping Kafka: %w", errors.Join(failed...))
}

// Ping is [Config.Ping].
func (p *Publisher) Ping(ctx context.Context) error { return p.cfg.Ping(ctx) }

// ask sends a request to a broker. The connection is closed when ctx ends, because a broker
// may accept it and never answer. That it was closed is not what to tell then.
func (c Config) ask(ctx context.Context, broker string) error {
	err := c.askOnce(ctx, broker)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%s: the broker does not answer: %w", broker, ctx.Err())
	case isBroken(err):
		return fmt.Errorf("%s: the broker closes the connection, as it does if its listener needs another kafka.tls or kafka.sasl: %w", broker, err)
	}
	return err
}

func (c Config) askOnce(ctx context.Context, broker string) error {
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
	// Not for its versions, which a broker tells before a login.
	if _, err := conn.Brokers(); err != nil {
		return fmt.Errorf("%s: %w", broker, err)
	}
	return nil
}
