package app

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

// tenancy is what tenants have in Kafka: topics, and users if the installation makes them.
type tenancy struct {
	topics *delivery.Topics
	// users is nil unless kafka.users is managed.
	users *delivery.Users
	// mechanism is that of the tenants' logins; empty if they have none.
	mechanism string
	secret    []byte
}

var _ control.Provisioner = (*tenancy)(nil)

func newTenancy(c *config.Config, conf delivery.Config) (s *tenancy, err error) {
	s = &tenancy{secret: []byte(c.Kafka.SigningSecret)}
	if s.topics, err = newTopics(c, conf); err != nil {
		return nil, err
	}
	if c.Kafka.Users.Mode != config.UsersNone {
		s.mechanism = c.Kafka.Users.Mechanism
	}
	if c.Kafka.Users.Mode == config.UsersManaged {
		s.users, err = delivery.NewUsers(conf, userLimits(&c.Kafka))
	}
	return s, err
}

func userLimits(c *config.Kafka) delivery.UserConfig {
	return delivery.UserConfig{FetchRate: float64(c.Users.FetchRate), RequestPercent: float64(c.Users.RequestPercent)}
}

// removeTimeout bounds the removal of what was made for a tenant that cannot have all it needs.
const removeTimeout = 10 * time.Second

// ProvisionNew implements [control.Provisioner]. The topic is not removed unless it was created here: it
// may be one of another installation, with its records.
func (s *tenancy) ProvisionNew(ctx context.Context, t control.Tenant) error {
	topic := s.topics.Name(t.ID, t.Name)
	switch err := s.topics.Create(ctx, topic); {
	case errors.Is(err, delivery.ErrTopicExists):
		return fmt.Errorf("topic %s: %w", topic, control.ErrTaken)
	case err != nil:
		return noTopic(err)
	}
	err := s.provisionUsers(ctx, t, topic)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		// The topic goes first: users that cannot be made are perhaps not removed either.
		if left := errors.Join(s.topics.Remove(ctx, topic), s.Remove(ctx, t)); left != nil {
			err = errors.Join(err, fmt.Errorf("something of the tenant stays in Kafka: %w", left))
		}
	}
	return err
}

// Provision implements [control.Provisioner].
func (s *tenancy) Provision(ctx context.Context, t control.Tenant) error {
	topic := s.topics.Name(t.ID, t.Name)
	if err := s.topics.Ensure(ctx, topic); err != nil {
		return noTopic(err)
	}
	return s.provisionUsers(ctx, t, topic)
}

func noTopic(cause error) error {
	return task.Errorf(task.ReasonKafkaUnavailable,
		"nothing was changed: the tenant's Kafka topic could not be created; try again").CausedBy(cause)
}

// provisionUsers creates the Kafka users of the tenant's keys if the installation makes them.
func (s *tenancy) provisionUsers(ctx context.Context, t control.Tenant, topic string) error {
	if s.users == nil {
		return nil
	}
	for i := range t.Keys {
		if err := s.users.Ensure(ctx, topic, s.login(&t, &t.Keys[i])); err != nil {
			return task.Errorf(task.ReasonKafkaUnavailable,
				"nothing was changed: the tenant's Kafka user could not be created; try again").CausedBy(err)
		}
	}
	return nil
}

// ProvisionKey implements [control.Provisioner]. It needs no broker unless the installation makes the users.
func (s *tenancy) ProvisionKey(ctx context.Context, t control.Tenant, k control.Key) error {
	if s.users == nil {
		return nil
	}
	if err := s.users.Ensure(ctx, s.topics.Name(t.ID, t.Name), s.login(&t, &k)); err != nil {
		return task.Errorf(task.ReasonKafkaUnavailable,
			"the key was not rotated, and the keys so far remain valid: the Kafka user of the new key could not be created; try again").CausedBy(err)
	}
	return nil
}

// Revoke implements [control.Provisioner].
func (s *tenancy) Revoke(ctx context.Context, t control.Tenant, k control.Key) error {
	if s.users == nil {
		return nil
	}
	return s.users.Remove(ctx, s.login(&t, &k))
}

// Remove implements [control.Provisioner].
func (s *tenancy) Remove(ctx context.Context, t control.Tenant) error {
	for _, k := range t.Keys {
		if err := s.Revoke(ctx, t, k); err != nil {
			return err
		}
	}
	return s.topics.Remove(ctx, s.topics.Name(t.ID, t.Name))
}

// login returns the login to Kafka that belongs to a key of a tenant.
func (s *tenancy) login(t *control.Tenant, k *control.Key) delivery.Login {
	return delivery.Login{
		Mechanism: s.mechanism, Username: delivery.UserName(s.topics.Name(t.ID, t.Name), k.ID),
		Password: base64.RawURLEncoding.EncodeToString(derive(s.secret, t, k, passwordPurpose)),
	}
}

// Purposes of a key.
const (
	recordPurpose   = "record"
	passwordPurpose = "kafka password"
)

// derive returns 32 bytes for one purpose of a key: HKDF (RFC 5869) with the secret of the
// installation as the salt. So a copy of the databases alone neither signs nor logs in if the
// installation has a secret, and a key is worth nothing for another tenant.
func derive(secret []byte, t *control.Tenant, k *control.Key, purpose string) []byte {
	derived, err := hkdf.Key(sha256.New, k.Secret, secret, fmt.Sprintf("perceptor %s %s %d", purpose, t.UID, k.ID), sha256.Size)
	if err != nil {
		panic(err) // the length is valid
	}
	return derived
}

// KafkaCommands returns the commands of Kafka's tools that create the users of a tenant, one for
// each of its keys, for brokers on which taskd may not create them. file is the file with the
// settings of those tools.
func KafkaCommands(ctx context.Context, c *config.Config, tenants *control.Store, name, file string) ([]string, error) {
	link, err := newKafkaLink(c, "perceptorctl", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	s, err := newTenancy(c, link.Config)
	if err != nil {
		return nil, err
	}
	if s.mechanism == "" {
		return nil, errors.New("kafka.users.mode: none: tenants have no logins of their own")
	}
	t, err := tenants.Tenant(ctx, name)
	if err != nil {
		return nil, err
	}
	var commands []string
	for i := range t.Keys {
		commands = append(commands, delivery.Commands(strings.Join(c.Kafka.Brokers, ","), file, s.topics.Name(t.ID, t.Name), s.login(&t, &t.Keys[i]), userLimits(&c.Kafka))...)
	}
	return commands, nil
}

// ProvisionTenants creates the topics of all tenants that the configured brokers lack, and their users
// if kafka.users.mode is managed. It returns how many tenants have all they need, and the errors of the others. It
// may be repeated.
func ProvisionTenants(ctx context.Context, c *config.Config, tenants *control.Store) (done int, err error) {
	link, err := newKafkaLink(c, "perceptorctl", slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	s, err := newTenancy(c, link.Config)
	if err != nil {
		return 0, err
	}
	var failed []error
	for t, err := range allTenants(ctx, tenants, topicsPage) {
		if err != nil {
			return done, errors.Join(append(failed, err)...)
		}
		if err := s.Provision(ctx, t); err != nil {
			failed = append(failed, fmt.Errorf("tenant %s: %w", t.Name, err))
		} else {
			done++
		}
		if len(failed) >= maxProvisionErrors {
			break
		}
	}
	return done, errors.Join(failed...)
}

// maxProvisionErrors ends [ProvisionTenants]: the brokers do not answer, or refuse.
const maxProvisionErrors = 5

// keys returns the keys of a tenant for its listeners, without a reserved one.
func (s *tenancy) keys(t *control.Tenant) []server.TenantKey {
	keys := make([]server.TenantKey, 0, len(t.Keys))
	for i := range t.Keys {
		k := &t.Keys[i]
		if k.Reserved() {
			continue
		}
		key := server.TenantKey{ID: k.ID, Secret: derive(s.secret, t, k, recordPurpose), StartsAt: k.Start, ExpiresAt: k.End}
		if k.End == 0 {
			key.ExpiresAt = task.Never
		}
		if s.mechanism != "" {
			key.Login = server.Login(s.login(t, k))
		}
		keys = append(keys, key)
	}
	return keys
}
