package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/certs"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/kafkalogin"
	"github.com/perceptor/perceptor/internal/renewal"
)

// kafkaKeepAlive is how often an idle connection to a broker is probed.
const kafkaKeepAlive = 15 * time.Second

// kafkaLink is how Kafka clients connect, and follows what they log in with.
type kafkaLink struct {
	delivery.Config
	// run follows the login until its context ends.
	run Part
	// renewed are called when the login is another one. They are set before run is called.
	renewed []func()
}

// kafkaCredential is what a login consists of that may change while a process runs.
type kafkaCredential struct {
	password string
	// certificates are what the files of kafka.tls hold; nil without TLS.
	certificates *certs.Material
}

// newKafkaLink returns how to connect to Kafka.
func newKafkaLink(c *config.Config, clientID string, log *slog.Logger) (*kafkaLink, error) {
	k := &kafkaLink{Config: delivery.Config{
		Brokers: c.Kafka.Brokers, ClientID: clientID,
		Compression: c.Kafka.Compression, Timeout: c.Kafka.Timeout,
	}}
	source, err := kafkaCertificates(&c.Kafka.TLS, log)
	if err != nil {
		return nil, err
	}
	if c.Kafka.SASL.Name() == kafkalogin.OAuthBearer {
		k.SASL = kafkalogin.TokenFile(c.Kafka.SASL.TokenFile)
	}
	read, dial := kafkaReader(c, source), (&net.Dialer{KeepAlive: kafkaKeepAlive}).DialContext
	first, err := read()
	if err == nil {
		_, err = kafkaMechanism(&c.Kafka.SASL, first.password)
	}
	if err != nil {
		return nil, err
	}
	follower := renewal.New(first, renewal.Config[kafkaCredential]{
		Read: read, Same: func(a, b kafkaCredential) bool { return a == b },
		Try: func(ctx context.Context, fresh kafkaCredential) (err error) {
			conf := k.Config
			if source != nil {
				conf.Dial = certs.Dialer(dial, func() *certs.Material { return fresh.certificates })
			}
			if conf.SASL, err = kafkaMechanism(&c.Kafka.SASL, fresh.password); err != nil {
				return err
			}
			return conf.Ping(ctx)
		},
		Adopted: func(context.Context) {
			log.Info("the login to Kafka was renewed", "brokers", c.Kafka.Brokers)
			for _, f := range k.renewed {
				f()
			}
		},
		Refused: func(err error) {
			log.Warn("a changed login to Kafka cannot be used yet; the last one stays in use", "brokers", c.Kafka.Brokers, "err", oneLine(err))
		},
	})
	if source != nil {
		k.Dial = certs.Dialer(dial, func() *certs.Material { return follower.Current().certificates })
	}
	if c.Kafka.SASL.Username != "" {
		k.SASL = kafkalogin.Follow(c.Kafka.SASL.Name(), c.Kafka.SASL.Username, func() (string, error) { return follower.Current().password, nil })
	}
	k.run = follower.Run
	return k, nil
}

// kafkaCertificates returns the certificates for connections to brokers; nil means without TLS.
func kafkaCertificates(t *config.KafkaTLS, log *slog.Logger) (*certs.Source, error) {
	if !t.Enabled {
		return nil, nil
	}
	return certs.Open(certs.Files{Cert: t.CertFile, Key: t.KeyFile, CA: t.CAFile},
		certs.Names{Cert: "kafka.tls.cert_file", CA: "kafka.tls.ca_file"}, log)
}

// kafkaReader returns what reads the credential.
func kafkaReader(c *config.Config, source *certs.Source) func() (kafkaCredential, error) {
	file, given := c.SecretFile("kafka.sasl.password"), c.Kafka.SASL.Password
	return func() (now kafkaCredential, err error) {
		if source != nil {
			now.certificates = source.Newest()
		}
		if now.password = given; file != "" {
			if now.password, err = config.ReadSecret(file); err != nil {
				err = fmt.Errorf("kafka.sasl.password_file: %w", err)
			}
		}
		return now, err
	}
}

// kafkaMechanism returns the mechanism with a password; nil means no login.
func kafkaMechanism(c *config.KafkaSASL, password string) (sasl.Mechanism, error) {
	switch name := c.Name(); name {
	case "":
		return nil, nil
	case kafkalogin.OAuthBearer:
		return kafkalogin.TokenFile(c.TokenFile), nil
	default:
		m, err := kafkalogin.New(name, c.Username, password)
		if err != nil {
			return nil, errors.New("kafka.sasl.password: cannot be used with " + name)
		}
		return m, nil
	}
}
