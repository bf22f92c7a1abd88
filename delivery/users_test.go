package delivery

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/perceptor/perceptor/internal/kafkalogin"
	"github.com/perceptor/perceptor/internal/testenv"
)

// secured is a real Kafka with an authorizer, and what taskd does with it.
type secured struct {
	t      *testing.T
	server *testenv.SecureKafka
	conf   Config
	topics *Topics
	users  *Users
}

func overTLS(conf *tls.Config) func(context.Context, string, string) (net.Conn, error) {
	return (&tls.Dialer{Config: conf}).DialContext
}

func newSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{t: t, server: testenv.NewSecureKafka(t)}
	s.conf = Config{Brokers: []string{s.server.Addr()}, Dial: overTLS(s.server.CA.Trust()), SASL: s.server.Admin(), MetadataTTL: 200 * time.Millisecond}
	var err error
	if s.topics, err = NewTopics(s.conf, TopicConfig{Replication: 1, Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	if s.users, err = NewUsers(s.conf, UserConfig{FetchRate: 12 << 20}); err != nil {
		t.Fatal(err)
	}
	return s
}

// tenant creates the topics and the user of a tenant.
func (s *secured) tenant(id int32, name, mechanism string) (topic string, login Login) {
	s.t.Helper()
	topic = s.topics.Name(id, name)
	login = Login{Mechanism: mechanism, Username: UserName(topic, 1), Password: "password of " + name}
	limit := time.Now().Add(time.Minute)
	for done := 0; done < 2; { // both may be repeated
		err := errors.Join(s.topics.Ensure(s.t.Context(), topic), s.topics.Ensure(s.t.Context(), topic+DeadSuffix),
			s.users.Ensure(s.t.Context(), topic, login))
		switch {
		case err == nil:
			done++
		case time.Now().After(limit): // brokers on a machine that stands still are away for a moment
			s.t.Fatal(err)
		}
	}
	return topic, login
}

// as returns a client with a login.
func (s *secured) as(l Login) *kafka.Client {
	s.t.Helper()
	m, err := kafkalogin.New(l.Mechanism, l.Username, l.Password)
	if err != nil {
		s.t.Fatal(err)
	}
	c, closeClient := s.server.Client(m)
	s.t.Cleanup(closeClient)
	return c
}

// read returns the first record of a partition, and the number of records there.
func read(ctx context.Context, c *kafka.Client, topic string) error {
	res, err := c.Fetch(ctx, &kafka.FetchRequest{Topic: topic, Partition: 0, Offset: 0, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 2 * time.Second})
	if err != nil {
		return err
	}
	if res.Error != nil {
		return res.Error
	}
	_, err = res.Records.ReadRecord()
	return err
}

func write(ctx context.Context, c *kafka.Client, topic string) error {
	res, err := c.Produce(ctx, &kafka.ProduceRequest{Topic: topic, Partition: 0, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("forged"))})})
	if err != nil {
		return err
	}
	return res.Error
}

// join asks for membership of a group.
func join(ctx context.Context, c *kafka.Client, group string) error {
	found, err := c.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: group, KeyType: kafka.CoordinatorKeyTypeConsumer})
	if err != nil {
		return err
	}
	if found.Error != nil {
		return found.Error
	}
	res, err := c.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{group: {0}}})
	if err != nil {
		return err
	}
	return res.Error
}

// TestAUserOfATenantMayReadItsTopicsAndDoNothingElse tries what another tenant could want.
func TestAUserOfATenantMayReadItsTopicsAndDoNothingElse(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	mine, me := s.tenant(1, "shop", kafkalogin.Scram512)
	other, _ := s.tenant(2, "bank", kafkalogin.Scram256)
	admin, closeAdmin := s.server.Client(s.server.Admin())
	defer closeAdmin()
	for _, topic := range []string{mine, mine + DeadSuffix, other, other + DeadSuffix} {
		if err := write(t.Context(), admin, topic); err != nil {
			t.Fatal(err)
		}
	}
	c := s.as(me)
	for name, err := range map[string]error{
		"read its topic":       read(t.Context(), c, mine),
		"read its dead runs":   read(t.Context(), c, mine+DeadSuffix),
		"join its group":       join(t.Context(), c, mine),
		"join its other group": join(t.Context(), c, mine+DeadSuffix),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	created, err := c.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: mine + ".x", NumPartitions: 1, ReplicationFactor: 1}}})
	if err == nil {
		err = created.Errors[mine+".x"]
	}
	deleted, errDelete := c.DeleteTopics(t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{mine}})
	if errDelete == nil {
		errDelete = deleted.Errors[mine]
	}
	acls, errACL := c.CreateACLs(t.Context(), &kafka.CreateACLsRequest{ACLs: accessOf(other, me.Username)})
	if errACL == nil {
		errACL = errors.Join(acls.Errors...)
	}
	for name, err := range map[string]error{
		"read another tenant's topic":     read(t.Context(), c, other),
		"read another tenant's dead runs": read(t.Context(), c, other+DeadSuffix),
		"write its own topic":             write(t.Context(), c, mine),
		"write another tenant's topic":    write(t.Context(), c, other),
		"join another tenant's group":     join(t.Context(), c, other),
		"create a topic":                  err,
		"delete its topic":                errDelete,
		"give itself access":              errACL,
	} {
		if err == nil {
			t.Errorf("it may %s", name)
		}
	}
	all, err := c.Metadata(t.Context(), &kafka.MetadataRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range all.Topics {
		if topic.Name != mine && topic.Name != mine+DeadSuffix {
			t.Errorf("it learns of topic %s", topic.Name)
		}
	}
	s.checkQuota(admin, me.Username)
	s.checkRemoval(me, mine)
}

// checkQuota checks what a user may read per second.
func (s *secured) checkQuota(admin *kafka.Client, user string) {
	s.t.Helper()
	res, err := admin.DescribeClientQuotas(s.t.Context(), &kafka.DescribeClientQuotasRequest{
		Components: []kafka.DescribeClientQuotasRequestComponent{{EntityType: "user", MatchType: 0, Match: user}}, Strict: true,
	})
	if err != nil || len(res.Entries) != 1 {
		s.t.Fatal(err, res)
	}
	found := map[string]float64{}
	for _, v := range res.Entries[0].Values {
		found[v.Key] = v.Value
	}
	if found["consumer_byte_rate"] != 12<<20 || found["request_percentage"] != 100 {
		s.t.Errorf("quotas = %v", found)
	}
}

// checkRemoval removes a user, twice.
func (s *secured) checkRemoval(l Login, topic string) {
	s.t.Helper()
	for range 2 {
		if err := s.users.Remove(s.t.Context(), l); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := read(s.t.Context(), s.as(l), topic); err == nil {
		s.t.Error("a user that was removed still reads")
	}
}

// TestEveryLoginToKafkaWorksAndWrongOnesAreRefused pings with each mechanism.
func TestEveryLoginToKafkaWorksAndWrongOnesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	s.tenant(1, "small", kafkalogin.Scram256)
	login := func(name, user, password string) sasl.Mechanism {
		m, err := kafkalogin.New(name, user, password)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	ping := func(addr string, conf *tls.Config, m sasl.Mechanism) error {
		c := Config{Brokers: []string{addr}, SASL: m, DialTimeout: 5 * time.Second}
		if conf != nil {
			c.Dial = overTLS(conf)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return publisher(t, c.Brokers, names{}, func(into *Config) { *into = c }).Ping(ctx)
	}
	withCertificate := func(ca *testenv.CA) *tls.Config {
		issued := ca.Issue(t, testenv.Client, testenv.Subject(testenv.KafkaAdmin))
		pair, err := tls.LoadX509KeyPair(issued.CertFile, issued.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		conf := s.server.CA.Trust()
		conf.Certificates = []tls.Certificate{pair}
		return conf
	}
	trust, addr := s.server.CA.Trust(), s.server.Addr()
	good := map[string]error{
		"SCRAM-SHA-512": ping(addr, trust, login(kafkalogin.Scram512, testenv.KafkaAdmin, testenv.KafkaPassword)),
		"SCRAM-SHA-256": ping(addr, trust, login(kafkalogin.Scram256, UserName(s.topics.Name(1, "small"), 1), "password of small")),
		"PLAIN":         ping(addr, trust, login(kafkalogin.Plain, testenv.KafkaAdmin, testenv.KafkaPassword)),
		"OAUTHBEARER":   ping(addr, trust, tokenOf(t, testenv.KafkaAdmin, time.Hour)),
		"mTLS":          ping(s.server.MTLSAddr(), withCertificate(s.server.CA), nil),
	}
	bad := map[string]error{
		"a wrong password":               ping(addr, trust, login(kafkalogin.Scram512, testenv.KafkaAdmin, "wrong")),
		"a wrong password for PLAIN":     ping(addr, trust, login(kafkalogin.Plain, testenv.KafkaAdmin, "wrong")),
		"an unknown user":                ping(addr, trust, login(kafkalogin.Scram512, "nobody", testenv.KafkaPassword)),
		"an expired token":               ping(addr, trust, tokenOf(t, testenv.KafkaAdmin, -time.Hour)),
		"no TLS":                         ping(addr, nil, s.server.Admin()),
		"no login":                       ping(addr, trust, nil),
		"the certificate of another CA":  ping(addr, testenv.NewCA(t).Trust(), s.server.Admin()),
		"a client of another CA":         ping(s.server.MTLSAddr(), withCertificate(testenv.NewCA(t)), nil),
		"no client certificate for mTLS": ping(s.server.MTLSAddr(), trust, nil),
	}
	for name, err := range good {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range bad {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := bad["no login"]; err != nil && !strings.Contains(err.Error(), "kafka.sasl") {
		t.Errorf("%v; want that the login may be missing", err)
	}
}

// tokenOf returns the login with an unsigned token, which the test's broker accepts.
func tokenOf(t *testing.T, subject string, lifetime time.Duration) sasl.Mechanism {
	t.Helper()
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	end := time.Now().Add(lifetime)
	claims := fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d}`, subject, end.Add(-2*time.Hour).Unix(), end.Unix())
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(part(`{"alg":"none"}`)+"."+part(claims)+"."), 0o600); err != nil {
		t.Fatal(err)
	}
	return kafkalogin.TokenFile(path)
}

// TestTopicsThatAnyClientMayReadAreFound asks brokers with and without an authorizer.
func TestTopicsThatAnyClientMayReadAreFound(t *testing.T) {
	t.Parallel()
	open, err := NewUsers(Config{Brokers: []string{testenv.Kafka(t).Addr()}}, UserConfig{})
	if err != nil {
		t.Fatal(err)
	}
	found, err := open.CheckAccess(t.Context(), []string{"perceptor.1.shop"})
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Message, "any client that reaches them may read and write every topic") {
		t.Errorf("brokers without an authorizer: %v, %v", found, err)
	}
	s := newSecured(t)
	shop, _ := s.tenant(1, "shop", kafkalogin.Scram512)
	bank, _ := s.tenant(2, "bank", kafkalogin.Scram512)
	if found, err := s.users.CheckAccess(t.Context(), []string{shop, bank}); err != nil || len(found) != 0 {
		t.Errorf("access lists of tenants alone: %v, %v", found, err)
	}
	admin, closeAdmin := s.server.Client(s.server.Admin())
	defer closeAdmin()
	everyone := func(name string, pattern kafka.PatternType, op kafka.ACLOperationType) kafka.ACLEntry {
		return kafka.ACLEntry{ResourceType: kafka.ResourceTypeTopic, ResourceName: name, ResourcePatternType: pattern,
			Principal: "User:*", Host: "*", Operation: op, PermissionType: kafka.ACLPermissionTypeAllow}
	}
	res, err := admin.CreateACLs(t.Context(), &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{
		everyone("perceptor.2.", kafka.PatternTypePrefixed, kafka.ACLOperationTypeRead),
		everyone(shop, kafka.PatternTypeLiteral, kafka.ACLOperationTypeDescribe), everyone("other", kafka.PatternTypeLiteral, kafka.ACLOperationTypeAll),
	}})
	if err != nil || errors.Join(res.Errors...) != nil {
		t.Fatal(err, res)
	}
	found, err = s.users.CheckAccess(t.Context(), []string{shop, bank})
	if err != nil || len(found) != 1 || found[0].String() != "topic "+bank+": any client may read it, by the access list of User:* for perceptor.2." {
		t.Errorf("found %v, %v, want the topic that everyone may read", found, err)
	}
}

// TestTheCommandsForAnOperatorDoWhatTaskdWouldDo compares their content with what Ensure sends.
func TestTheCommandsForAnOperatorDoWhatTaskdWouldDo(t *testing.T) {
	t.Parallel()
	got := strings.Join(Commands("k:9092", "admin.properties", "p.1.shop", Login{Mechanism: kafkalogin.Scram512, Username: "p.1.shop.1", Password: "secret"}, UserConfig{}), "\n")
	want := `kafka-acls.sh --bootstrap-server k:9092 --command-config admin.properties --add --allow-principal 'User:p.1.shop.1' --operation READ --topic 'p.1.shop' --group 'p.1.shop' --topic 'p.1.shop.dead' --group 'p.1.shop.dead'
kafka-configs.sh --bootstrap-server k:9092 --command-config admin.properties --alter --entity-type users --entity-name 'p.1.shop.1' --add-config 'consumer_byte_rate=67108864,request_percentage=100'
kafka-configs.sh --bootstrap-server k:9092 --command-config admin.properties --alter --entity-type users --entity-name 'p.1.shop.1' --add-config 'SCRAM-SHA-512=[password=secret]'`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
