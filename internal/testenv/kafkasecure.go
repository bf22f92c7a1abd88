package testenv

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha512"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// The user of a [SecureKafka] who may do everything. Its password is also valid for PLAIN, and
// a client certificate with its name as the subject is its login at the address for mTLS.
const (
	KafkaAdmin    = "admin"
	KafkaPassword = "admin-password"
)

// SecureKafka is a Kafka server that speaks only TLS, asks for a login, and has an authorizer:
// who is on no access list may do nothing. At its address it takes SCRAM-SHA-512 and -256, PLAIN
// and OAUTHBEARER with unsigned tokens, whose subject is the user.
type SecureKafka struct {
	*KafkaServer
	// CA has signed the server's certificate, and those of clients that it accepts.
	CA *CA

	mtls string
}

// MTLSAddr returns the host:port at which a client certificate is the login.
func (s *SecureKafka) MTLSAddr() string { return s.mtls }

// Admin returns the login of [KafkaAdmin].
func (s *SecureKafka) Admin() sasl.Mechanism {
	m, err := scram.Mechanism(scram.SHA512, KafkaAdmin, KafkaPassword)
	if err != nil {
		panic(err) // the name and the password are plain ASCII
	}
	return m
}

// Transport connects to the server with all rights. That of a nil SecureKafka connects in the
// clear, without a login.
func (s *SecureKafka) Transport() *kafka.Transport {
	if s == nil {
		return &kafka.Transport{}
	}
	return &kafka.Transport{TLS: s.CA.Trust(), SASL: s.Admin()}
}

// Client returns a client with a login, and a function that closes it.
func (s *SecureKafka) Client(login sasl.Mechanism) (*kafka.Client, func()) {
	transport := &kafka.Transport{TLS: s.CA.Trust(), SASL: login}
	return &kafka.Client{Addr: kafka.TCP(s.Addr()), Timeout: kafkaCallWait, Transport: transport}, transport.CloseIdleConnections
}

// SetPassword sets the password of a user for SCRAM-SHA-512, and creates the user if there is none.
func (s *SecureKafka) SetPassword(ctx context.Context, user, password string) error {
	const iterations = 4096
	salt := make([]byte, 16)
	rand.Read(salt) //nolint:errcheck // never fails
	salted, err := pbkdf2.Key(sha512.New, password, salt, iterations, sha512.Size)
	if err != nil {
		return err
	}
	client, disconnect := s.Client(s.Admin())
	defer disconnect()
	res, err := client.AlterUserScramCredentials(ctx, &kafka.AlterUserScramCredentialsRequest{Upsertions: []kafka.UserScramCredentialsUpsertion{{
		Name: user, Mechanism: kafka.ScramMechanismSha512, Iterations: iterations, Salt: salt, SaltedPassword: salted,
	}}})
	if err == nil {
		for _, r := range res.Results {
			err = errors.Join(err, r.Error)
		}
	}
	if err != nil {
		return fmt.Errorf("set the password of a Kafka user: %w", err)
	}
	return nil
}

// NewSecureKafka starts a SecureKafka for one test.
func NewSecureKafka(tb testing.TB) *SecureKafka {
	tb.Helper()
	return private(tb, StartSecureKafka)
}

// StartSecureKafka starts a SecureKafka with its data in dir, which it creates.
func StartSecureKafka(ctx context.Context, dir string) (*SecureKafka, error) {
	return StartSecureKafkaWith(ctx, dir, nil)
}

// StartSecureKafkaWith is [StartSecureKafka] with further lines of server.properties.
func StartSecureKafkaWith(ctx context.Context, dir string, more map[string]string) (*SecureKafka, error) {
	s, err := startSecureKafka(ctx, dir, more)
	if err != nil {
		return nil, fmt.Errorf("start secure Kafka: %w", err)
	}
	return s, nil
}

func startSecureKafka(ctx context.Context, dir string, more map[string]string) (*SecureKafka, error) {
	server, err := newKafka(ctx, dir)
	if err != nil {
		return nil, err
	}
	s := &SecureKafka{KafkaServer: server}
	if s.CA, err = StartCA(dir); err != nil {
		return nil, err
	}
	own, err := s.CA.Sign(Server, Subject("broker"), func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, Client) })
	if err != nil {
		return nil, err
	}
	s.answers = func(ctx context.Context) error {
		return joinable(ctx, s.addr, &kafka.Transport{TLS: s.CA.Trust(), SASL: s.Admin()})
	}
	settings := func(port, controller int) (map[string]string, error) {
		second, err := subprocess.FreePort()
		s.mtls = fmt.Sprintf("127.0.0.1:%d", second)
		all := secureSettings(fmt.Sprintf("127.0.0.1:%d", port), s.mtls, controller, own.CombinedFile, s.CA.File)
		maps.Copy(all, more)
		return all, err
	}
	user := fmt.Sprintf("SCRAM-SHA-512=[name=%s,password=%s]", KafkaAdmin, KafkaPassword)
	if err := s.start(ctx, settings, "--add-scram", user); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// secureSettings returns the settings of the listeners and of the authorizer. The controller
// and the broker know each other by their certificate.
func secureSettings(addr, mtls string, controller int, own, ca string) map[string]string {
	const login = "org.apache.kafka.common.security."
	return map[string]string{
		"listeners":                                             fmt.Sprintf("SASL_SSL://%s,SSL://%s,CONTROLLER://127.0.0.1:%d", addr, mtls, controller),
		"advertised.listeners":                                  fmt.Sprintf("SASL_SSL://%s,SSL://%s", addr, mtls),
		"listener.security.protocol.map":                        "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL",
		"inter.broker.listener.name":                            "SSL",
		"ssl.keystore.type":                                     "PEM",
		"ssl.keystore.location":                                 own,
		"ssl.truststore.type":                                   "PEM",
		"ssl.truststore.location":                               ca,
		"listener.name.ssl.ssl.client.auth":                     "required",
		"listener.name.controller.ssl.client.auth":              "required",
		"ssl.principal.mapping.rules":                           "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
		"authorizer.class.name":                                 "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                                           "User:broker;User:" + KafkaAdmin,
		"sasl.enabled.mechanisms":                               "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
		"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": login + "scram.ScramLoginModule required;",
		"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": login + "scram.ScramLoginModule required;",
		"listener.name.sasl_ssl.plain.sasl.jaas.config":         login + "plain.PlainLoginModule required user_" + KafkaAdmin + "=\"" + KafkaPassword + "\";",
		"listener.name.sasl_ssl.oauthbearer.sasl.jaas.config":   login + "oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"unused\";",
	}
}
