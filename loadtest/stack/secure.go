package stack

import (
	"context"
	"crypto/rand"
	"net/http"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/testenv"
)

// security is what closes the links of a stack. A nil security leaves them open.
type security struct {
	ca *testenv.CA
	// api and ops are the certificates of the API and of the servers for operators.
	api, ops, postgres testenv.Certificate
	// kafka is the broker, whose certificate is of a CA of its own.
	kafka *testenv.SecureKafka
	// opsToken is the operators' token, password that of the ZooKeeper user.
	opsToken, password string
}

// newSecurity makes a CA and certificates in a directory that exists.
func newSecurity(dir string) (*security, error) {
	ca, err := testenv.StartCA(dir)
	if err != nil {
		return nil, err
	}
	s := &security{ca: ca, opsToken: rand.Text(), password: rand.Text()}
	for _, c := range []*testenv.Certificate{&s.api, &s.ops, &s.postgres} {
		if *c, err = ca.Sign(testenv.Server); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *security) postgresOptions() []testenv.PostgresOption {
	if s == nil {
		return nil
	}
	return []testenv.PostgresOption{testenv.SecurePostgres(s.ca, s.postgres)}
}

func (s *security) zookeeperOptions() []testenv.ZooKeeperOption {
	if s == nil {
		return nil
	}
	return []testenv.ZooKeeperOption{testenv.Secure(s.ca)}
}

// configure adds the keys that close the links to a configuration.
func (s *security) configure(sections map[string]map[string]any) {
	if s == nil {
		return
	}
	section := func(name string) map[string]any {
		if sections[name] == nil {
			sections[name] = map[string]any{}
		}
		return sections[name]
	}
	section("taskd")["tls"] = map[string]any{"cert_file": s.api.CertFile, "key_file": s.api.KeyFile}
	section("ops")["tls"] = map[string]any{"cert_file": s.ops.CertFile, "key_file": s.ops.KeyFile}
	section("ops")["token"] = s.opsToken
	if sections["zookeeper"] != nil {
		section("zookeeper")["tls"] = map[string]any{"enabled": true, "ca_file": s.ca.File}
		section("zookeeper")["user"], section("zookeeper")["password"] = "perceptor", s.password
	}
	section("kafka")["tls"] = map[string]any{"enabled": true, "ca_file": s.kafka.CA.File}
	section("kafka")["sasl"] = map[string]any{"username": testenv.KafkaAdmin, "password": testenv.KafkaPassword}
	section("kafka")["users"] = map[string]any{"mode": "managed"}
}

// opsClient returns what asks the programs' servers for operators, and their scheme.
func (s *security) opsClient() (scheme string, asks *http.Client) {
	if s == nil {
		return "http", http.DefaultClient
	}
	return "https", &http.Client{Transport: &operator{&http.Transport{TLSClientConfig: s.ca.Trust(), MaxIdleConns: 10}, s.opsToken}}
}

// operator adds the operators' token to requests.
type operator struct {
	next  http.RoundTripper
	token string
}

// RoundTrip implements http.RoundTripper.
func (o *operator) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+o.token)
	return o.next.RoundTrip(r)
}

// startKafka starts the broker. Users of tenants are made by taskd.
func (s *security) startKafka(ctx context.Context, dir string, settings map[string]string) (server *testenv.KafkaServer, err error) {
	if s == nil {
		return testenv.StartKafkaWith(ctx, dir, settings)
	}
	if s.kafka, err = testenv.StartSecureKafkaWith(ctx, dir, settings); err != nil {
		return nil, err
	}
	return s.kafka.KafkaServer, nil
}

// bundle writes the certificates of both CAs into one file for clients.
func (s *security) bundle(file string) error {
	var all []byte
	for _, ca := range []*testenv.CA{s.ca, s.kafka.CA} {
		text, err := os.ReadFile(ca.File)
		if err != nil {
			return err
		}
		all = append(all, text...)
	}
	return os.WriteFile(file, all, 0o644)
}

// SecureKafka returns the broker of a secure stack, nil if the stack's links are open.
func (s *Stack) SecureKafka() *testenv.SecureKafka { return s.kafka }

// Client returns the configuration of a client of the stack with a token.
func (s *Stack) Client(token string) client.Config {
	return client.Config{Address: s.Address, Token: token, TLS: s.TLS, Kafka: client.KafkaConfig{TLS: s.TLS}}
}

// Transport returns the credentials of a connection to the API.
func (s *Stack) Transport() credentials.TransportCredentials {
	if s.TLS == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(s.TLS)
}
