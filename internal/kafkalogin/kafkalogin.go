// Package kafkalogin makes the SASL mechanisms with which programs and the SDK log in to Kafka.
//
//   - SCRAM-SHA-512 and SCRAM-SHA-256: neither the password nor anything that replaces it
//     crosses the network.
//   - PLAIN sends the password, and OAUTHBEARER a token. [InTheClear] tells them, so that they
//     are used over TLS only.
//
// TLS with a client certificate needs no mechanism.
package kafkalogin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// Names of the mechanisms, as brokers know them.
const (
	Plain       = "PLAIN"
	Scram256    = "SCRAM-SHA-256"
	Scram512    = "SCRAM-SHA-512"
	OAuthBearer = "OAUTHBEARER"
)

// New returns the mechanism with a name, of those with a user name and a password.
func New(name, username, password string) (sasl.Mechanism, error) {
	switch name {
	case Plain:
		return plain.Mechanism{Username: username, Password: password}, nil
	case Scram256:
		return scram.Mechanism(scram.SHA256, username, password)
	case Scram512:
		return scram.Mechanism(scram.SHA512, username, password)
	}
	return nil, fmt.Errorf("SASL mechanism %q is not one of %s, %s, %s", name, Scram512, Scram256, Plain)
}

// Follow returns the mechanism with a name, for which [New] has returned one. Each connection logs in
// with the password that password returns then.
func Follow(name, username string, password func() (string, error)) sasl.Mechanism {
	return follow{name, username, password}
}

// PasswordFile returns the mechanism with a name and the password in a file, without the line break at its
// end. The file is read for each connection.
func PasswordFile(name, username, path string) (sasl.Mechanism, error) {
	password := func() (string, error) {
		text, err := readSecret("password", path)
		return strings.TrimRight(text, "\r\n"), err
	}
	now, err := password()
	if err == nil {
		_, err = New(name, username, now)
	}
	return Follow(name, username, password), err
}

type follow struct {
	name, username string
	password       func() (string, error)
}

// Name implements [sasl.Mechanism].
func (f follow) Name() string { return f.name }

// Start implements [sasl.Mechanism].
func (f follow) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	password, err := f.password()
	if err != nil {
		return nil, nil, err
	}
	m, err := New(f.name, f.username, password)
	if err != nil {
		return nil, nil, errors.New("the password for Kafka cannot be used with " + f.name)
	}
	return m.Start(ctx)
}

// InTheClear reports whether a mechanism sends a secret that needs TLS.
func InTheClear(m sasl.Mechanism) bool {
	return m != nil && (m.Name() == Plain || m.Name() == OAuthBearer)
}

// maxSecretBytes bounds a token or password.
const maxSecretBytes = 64 << 10

// TokenFile returns the mechanism OAUTHBEARER (RFC 7628) with the token in a file. The file is
// read for each connection, so that another program may renew it.
func TokenFile(path string) sasl.Mechanism { return tokenFile(path) }

type tokenFile string

func (tokenFile) Name() string { return OAuthBearer }

// Start implements [sasl.Mechanism]. The message is the GS2 header, which says that there is
// no channel binding, and the authorization, between octets of the value 1.
func (f tokenFile) Start(context.Context) (sasl.StateMachine, []byte, error) {
	token, err := f.read()
	if err != nil {
		return nil, nil, err
	}
	return answered{}, []byte("n,,\x01auth=Bearer " + token + "\x01\x01"), nil
}

func (f tokenFile) read() (string, error) {
	text, err := readSecret("token", string(f))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(text)
	switch {
	case token == "":
		return "", fmt.Errorf("the token for Kafka in %s is empty", string(f))
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("the token for Kafka in %s has spaces or characters that are not printable ASCII", string(f))
	}
	return token, nil
}

// readSecret returns the content of a file.
func readSecret(what, path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the %s for Kafka: %w", what, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
	if err != nil {
		return "", fmt.Errorf("read the %s for Kafka: %w", what, err)
	}
	if len(text) > maxSecretBytes {
		return "", fmt.Errorf("the %s for Kafka in %s has more than %d bytes", what, path, maxSecretBytes)
	}
	return string(text), nil
}

// answered handles the answer to a token.
type answered struct{}

// Next implements [sasl.StateMachine]. The broker sends nothing if it accepts the token, and
// otherwise the reason, which is not repeated here because it may quote the token.
func (answered) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	if len(challenge) > 0 {
		return false, nil, errors.New("Kafka has refused the token")
	}
	return true, nil, nil
}
