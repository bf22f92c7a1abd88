package delivery

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"github.com/segmentio/kafka-go"
)

// A Login is what a listener of a tenant logs in to Kafka with.
type Login struct {
	// Mechanism is SCRAM-SHA-256 or SCRAM-SHA-512.
	Mechanism string
	Username  string
	Password  string
}

// UserName returns the name of the Kafka user for a key of the tenant with a topic.
func UserName(topic string, key int32) string { return topic + "." + strconv.Itoa(int(key)) }

// UserConfig configures the users of tenants. Zero fields take the given defaults.
type UserConfig struct {
	// FetchRate is the most bytes per second that a user may read from a broker. Default: 64 MiB.
	FetchRate float64
	// RequestPercent is the most time of a broker's threads that the requests of a user may
	// take, as a percentage of one thread. Default: 100.
	RequestPercent float64
}

// Users creates and removes the Kafka users of tenants: one for each key of a tenant, with
// access lists and quotas. A user may read the tenant's topic and dead-letter topic, and may
// join the groups of their names; it may do nothing else. The brokers must have an authorizer
// and accept SCRAM. Its methods may be called concurrently.
type Users struct {
	conn Config
	cfg  UserConfig
}

// NewUsers returns a Users, which connects for each call.
func NewUsers(conn Config, cfg UserConfig) (*Users, error) {
	if err := conn.Validate(); err != nil {
		return nil, fmt.Errorf("configure Kafka users: %w", err)
	}
	or(&cfg.FetchRate, 64<<20)
	or(&cfg.RequestPercent, 100)
	return &Users{conn: conn.withDefaults(), cfg: cfg}, nil
}

func (u *Users) client() (*kafka.Client, func()) {
	transport := u.conn.transport(nil)
	return &kafka.Client{Addr: u.conn.addr(), Timeout: u.conn.Timeout, Transport: transport}, transport.CloseIdleConnections
}

// scramIterations is the number of iterations of PBKDF2, the least that Kafka accepts:
// passwords are 256 random bits, which nobody guesses however fast.
const scramIterations = 4096

// scramOf returns Kafka's number of a mechanism, and its hash.
func scramOf(mechanism string) (kafka.ScramMechanism, func() hash.Hash, error) {
	switch mechanism {
	case "SCRAM-SHA-256":
		return kafka.ScramMechanismSha256, sha256.New, nil
	case "SCRAM-SHA-512":
		return kafka.ScramMechanismSha512, sha512.New, nil
	}
	return 0, nil, fmt.Errorf("mechanism %q of a Kafka user is neither SCRAM-SHA-256 nor SCRAM-SHA-512", mechanism)
}

// Ensure creates the user of a login for the tenant with a topic, or sets its password. The
// access list comes first: a password without it is of no use, and both may be repeated.
func (u *Users) Ensure(ctx context.Context, topic string, login Login) error {
	client, closeClient := u.client()
	defer closeClient()
	entries := accessOf(topic, login.Username)
	created, err := client.CreateACLs(ctx, &kafka.CreateACLsRequest{ACLs: entries})
	if err == nil {
		err = errors.Join(created.Errors...)
	}
	if err != nil {
		return fmt.Errorf("create access list of Kafka user %s: %w", login.Username, err)
	}
	if err := u.limit(ctx, client, login.Username, false); err != nil {
		return err
	}
	number, h, err := scramOf(login.Mechanism)
	if err != nil {
		return err
	}
	salt := make([]byte, 16)
	rand.Read(salt) //nolint:errcheck // never fails
	salted, err := pbkdf2.Key(h, login.Password, salt, scramIterations, h().Size())
	if err != nil {
		return fmt.Errorf("make credential of Kafka user %s: %w", login.Username, err)
	}
	res, err := client.AlterUserScramCredentials(ctx, &kafka.AlterUserScramCredentialsRequest{
		Upsertions: []kafka.UserScramCredentialsUpsertion{{
			Name: login.Username, Mechanism: number, Iterations: scramIterations, Salt: salt, SaltedPassword: salted,
		}},
	})
	if err != nil {
		return fmt.Errorf("create Kafka user %s: %w", login.Username, err)
	}
	for _, r := range res.Results {
		if r.Error != nil {
			return fmt.Errorf("create Kafka user %s: %w", login.Username, r.Error)
		}
	}
	return nil
}

// accessOf returns the access list of a user. The right to read implies that to describe.
func accessOf(topic, user string) (entries []kafka.ACLEntry) {
	for _, resource := range []kafka.ResourceType{kafka.ResourceTypeTopic, kafka.ResourceTypeGroup} {
		for _, name := range []string{topic, topic + DeadSuffix} {
			entries = append(entries, kafka.ACLEntry{
				ResourceType: resource, ResourceName: name, ResourcePatternType: kafka.PatternTypeLiteral,
				Principal: "User:" + user, Host: "*", Operation: kafka.ACLOperationTypeRead, PermissionType: kafka.ACLPermissionTypeAllow,
			})
		}
	}
	return entries
}

// limit sets the quotas of a user, or removes them.
func (u *Users) limit(ctx context.Context, client *kafka.Client, user string, remove bool) error {
	res, err := client.AlterClientQuotas(ctx, &kafka.AlterClientQuotasRequest{Entries: []kafka.AlterClientQuotaEntry{{
		Entities: []kafka.AlterClientQuotaEntity{{EntityType: "user", EntityName: user}},
		Ops: []kafka.AlterClientQuotaOps{
			{Key: "consumer_byte_rate", Value: u.cfg.FetchRate, Remove: remove},
			{Key: "request_percentage", Value: u.cfg.RequestPercent, Remove: remove},
		},
	}}})
	if err == nil {
		for _, e := range res.Entries {
			err = errors.Join(err, e.Error)
		}
	}
	if err != nil {
		return fmt.Errorf("set quotas of Kafka user %s: %w", user, err)
	}
	return nil
}

// Remove removes a user with its access list and its quotas. A user that does not exist is no
// error.
func (u *Users) Remove(ctx context.Context, login Login) error {
	client, closeClient := u.client()
	defer closeClient()
	number, _, err := scramOf(login.Mechanism)
	if err != nil {
		return err
	}
	res, err := client.AlterUserScramCredentials(ctx, &kafka.AlterUserScramCredentialsRequest{
		Deletions: []kafka.UserScramCredentialsDeletion{{Name: login.Username, Mechanism: number}},
	})
	if err == nil {
		for _, r := range res.Results {
			if r.Error != nil && !errors.Is(r.Error, kafka.ResourceNotFound) {
				err = r.Error
			}
		}
	}
	if err != nil {
		return fmt.Errorf("remove Kafka user %s: %w", login.Username, err)
	}
	removed, err := client.DeleteACLs(ctx, &kafka.DeleteACLsRequest{Filters: []kafka.DeleteACLsFilter{{
		ResourceTypeFilter: kafka.ResourceTypeAny, ResourcePatternTypeFilter: kafka.PatternTypeAny, PrincipalFilter: "User:" + login.Username,
		Operation: kafka.ACLOperationTypeAny, PermissionType: kafka.ACLPermissionTypeAny,
	}}})
	if err == nil {
		for _, r := range removed.Results {
			err = errors.Join(err, r.Error)
		}
	}
	if err != nil {
		return fmt.Errorf("remove access list of Kafka user %s: %w", login.Username, err)
	}
	return u.limit(ctx, client, login.Username, true)
}

// Commands returns the commands of Kafka's tools that do what [Users.Ensure] does, for brokers
// that do not let a client do it. server is the address for the tools, and config their file of
// client settings.
func Commands(server, config, topic string, login Login, cfg UserConfig) []string {
	or(&cfg.FetchRate, 64<<20)
	or(&cfg.RequestPercent, 100)
	at := fmt.Sprintf("--bootstrap-server %s --command-config %s", server, config)
	acls := fmt.Sprintf("kafka-acls.sh %s --add --allow-principal 'User:%s' --operation READ", at, login.Username)
	for _, name := range []string{topic, topic + DeadSuffix} {
		acls += fmt.Sprintf(" --topic '%s' --group '%s'", name, name)
	}
	return []string{
		acls,
		fmt.Sprintf("kafka-configs.sh %s --alter --entity-type users --entity-name '%s' --add-config 'consumer_byte_rate=%.0f,request_percentage=%.0f'",
			at, login.Username, cfg.FetchRate, cfg.RequestPercent),
		fmt.Sprintf("kafka-configs.sh %s --alter --entity-type users --entity-name '%s' --add-config '%s=[password=%s]'",
			at, login.Username, login.Mechanism, login.Password),
	}
}

// CheckAccess says which of the topics any client may use, because the brokers have no
// authorizer or because an access list says so.
func (u *Users) CheckAccess(ctx context.Context, topics []string) ([]Finding, error) {
	client, closeClient := u.client()
	defer closeClient()
	res, err := client.DescribeACLs(ctx, &kafka.DescribeACLsRequest{Filter: kafka.ACLFilter{
		ResourceTypeFilter: kafka.ResourceTypeTopic, ResourcePatternTypeFilter: kafka.PatternTypeAny,
		Operation: kafka.ACLOperationTypeAny, PermissionType: kafka.ACLPermissionTypeAllow,
	}})
	if err == nil {
		err = res.Error
	}
	switch {
	case errors.Is(err, kafka.SecurityDisabled):
		return []Finding{{Message: "the brokers have no authorizer: any client that reaches them may read and write every topic; " +
			"records are signed, but the params of all tenants can be read"}}, nil
	case err != nil:
		return nil, fmt.Errorf("read access lists: %w", err)
	}
	var found []Finding
	for _, r := range res.Resources {
		for _, a := range r.ACLs {
			if a.Principal != "User:*" || !opens(a.Operation) {
				continue
			}
			for _, topic := range topics {
				if covers(r, topic) {
					found = append(found, Finding{Topic: topic, Message: "any client may " + strings.ToLower(a.Operation.String()) +
						" it, by the access list of User:* for " + r.ResourceName})
				}
			}
		}
	}
	return found, nil
}

// opens reports whether an operation on a topic shows or changes its records.
func opens(o kafka.ACLOperationType) bool {
	return o == kafka.ACLOperationTypeRead || o == kafka.ACLOperationTypeWrite || o == kafka.ACLOperationTypeAll
}

// covers reports whether an access list is about a topic or its dead-letter topic.
func covers(r kafka.ACLResource, topic string) bool {
	if r.PatternType == kafka.PatternTypePrefixed {
		return strings.HasPrefix(topic+DeadSuffix, r.ResourceName)
	}
	return r.ResourceName == "*" || r.ResourceName == topic || r.ResourceName == topic+DeadSuffix
}
