package delivery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/perceptor/perceptor/internal/kafkadial"
)

// Config configures the connection to Kafka and the encoding of records. Zero fields, except
// Brokers, take the given defaults.
type Config struct {
	// Brokers are addresses, host:port. At least one must answer.
	Brokers []string
	// ClientID identifies this process to the brokers. Default: "perceptor".
	ClientID string
	// Dial opens connections, with TLS if the brokers speak it. Default: without TLS.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// SASL, if set, is used to authenticate.
	SASL sasl.Mechanism

	// Compression of record batches: none (default), lz4, zstd, snappy, gzip.
	Compression string
	// Timeout is how long a broker may wait for its replicas. Default: 10 s. The publisher
	// abandons a request one second later.
	Timeout time.Duration
	// BatchBytes is the maximum size of a batch of records of one partition
	// before compression, in bytes. Default: 900 KiB. It should be below the
	// topics' max.message.bytes. A larger single record is sent alone.
	BatchBytes int
	// RequestBytes is the maximum size of a produce request, and so of a
	// record. Default: 16 MiB.
	RequestBytes int
	// MetadataTTL is the maximum age of the cached list of brokers. Default: 2 s.
	MetadataTTL time.Duration
	// DialTimeout bounds the opening of a connection. Default: 3 s.
	DialTimeout time.Duration
}

func (c Config) withDefaults() Config {
	or(&c.ClientID, "perceptor")
	or(&c.Compression, "none")
	or(&c.Timeout, 10*time.Second)
	or(&c.BatchBytes, 900<<10)
	or(&c.RequestBytes, 16<<20)
	or(&c.MetadataTTL, 2*time.Second)
	or(&c.DialTimeout, 3*time.Second)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: c.DialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	return c
}

func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns all faults of the configuration, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	if len(c.Brokers) == 0 {
		faults = append(faults, errors.New("brokers: at least one address is required"))
	}
	for _, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			faults = append(faults, fmt.Errorf("brokers: %q is not host:port: %w", b, err))
		}
	}
	if _, err := codecOf(c.Compression); err != nil {
		faults = append(faults, err)
	}
	for name, n := range map[string]int{"batch_bytes": c.BatchBytes, "request_bytes": c.RequestBytes} {
		if n < 1024 {
			faults = append(faults, fmt.Errorf("%s: %d is below 1024", name, n))
		}
	}
	if c.RequestBytes < c.BatchBytes {
		faults = append(faults, fmt.Errorf("request_bytes: %d is below batch_bytes %d", c.RequestBytes, c.BatchBytes))
	}
	for name, d := range map[string]time.Duration{"timeout": c.Timeout, "metadata_ttl": c.MetadataTTL, "dial_timeout": c.DialTimeout} {
		if d < 10*time.Millisecond {
			faults = append(faults, fmt.Errorf("%s: %s is below 10ms", name, d))
		}
	}
	return errors.Join(faults...)
}

// addr returns the address of any broker, for [Config.transport].
func (c Config) addr() net.Addr { return kafkadial.Addr(c.Brokers) }

// codecOf returns the codec of the named compression, or nil for none.
func codecOf(name string) (compress.Codec, error) {
	if name == "none" {
		return nil, nil
	}
	for _, c := range compress.Codecs[1:] {
		if c.Name() == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("compression: %q is not one of none, lz4, zstd, snappy, gzip", name)
}

// transport returns a transport with its own connections, because the library's shared one
// detects new topics and leaders too late. It knows the brokers and the given topics; without
// that list it would read the layout of all topics of the cluster every MetadataTTL.
func (c Config) transport(topics []string) *kafka.Transport {
	if topics == nil {
		topics = []string{} // nil stands for all topics
	}
	return &kafka.Transport{
		Dial: kafkadial.Bounded(kafkadial.NewBrokers(c.Brokers, c.Dial).Dial), DialTimeout: c.DialTimeout, MetadataTTL: c.MetadataTTL, MetadataTopics: topics,
		ClientID: c.ClientID, SASL: c.SASL,
	}
}
