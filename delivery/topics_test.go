package delivery

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/perceptor/perceptor/internal/testenv"
)

func port(t *testing.T, addr string) int {
	t.Helper()
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func newTestTopics(t *testing.T, brokers []string, cfg TopicConfig) *Topics {
	t.Helper()
	topics, err := NewTopics(Config{Brokers: brokers, MetadataTTL: 100 * time.Millisecond}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return topics
}

func TestTopicIsMadeOnceAndKeepsRecordsLongEnough(t *testing.T) {
	testEnsure(t, broker(t, nil).ListenAddrs(), "perceptor.")
}

func TestTopicIsMadeOnceAndKeepsRecordsLongEnoughOnARealKafka(t *testing.T) {
	testEnsure(t, []string{testenv.Kafka(t).Addr()}, testenv.TopicPrefix(t))
}

func testEnsure(t *testing.T, brokers []string, prefix string) {
	topics := newTestTopics(t, brokers, TopicConfig{Prefix: prefix, Replication: 1, ParamsBytes: 256 << 10, GiveUpAfter: 48 * time.Hour})
	acme := topics.Name(17, "acme")
	if want := prefix + "17.acme"; acme != want {
		t.Errorf("Name = %s, want %s", acme, want)
	}
	for range 2 {
		if err := topics.Ensure(t.Context(), acme); err != nil {
			t.Fatal(err)
		}
	}
	client, closeClient := topics.client(acme)
	defer closeClient()
	meta, err := client.Metadata(t.Context(), &kafka.MetadataRequest{Topics: []string{acme}})
	if err != nil || len(meta.Topics[0].Partitions) != 8 {
		t.Fatalf("Metadata = %v, %v, want 8 partitions", meta, err)
	}
	found, err := topics.Check(t.Context(), []string{acme})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Fatal {
			t.Errorf("fatal finding for a new topic: %s", f)
		}
	}
	if len(found) != 1 || !strings.Contains(found[0].String(), "one replica") {
		t.Errorf("findings = %v, want one about the single replica", found)
	}
}

// TestRecordsOfADispatcherWithAWrongClockAreKept writes records as it would.
func TestRecordsOfADispatcherWithAWrongClockAreKept(t *testing.T) {
	t.Parallel()
	brokers := []string{testenv.Kafka(t).Addr()}
	topics := newTestTopics(t, brokers, TopicConfig{Prefix: testenv.TopicPrefix(t), Replication: 1})
	topic := topics.Name(1, "acme")
	if err := topics.Ensure(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	writer, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for _, wrong := range []time.Duration{2 * time.Hour, -30 * 24 * time.Hour} {
		record := &kgo.Record{Topic: topic, Timestamp: time.Now().Add(wrong), Value: []byte("run")}
		if err := writer.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatalf("a clock that is %s ahead: %v", wrong, err)
		}
	}
	for _, r := range stored(t, brokers, 2, topic) {
		if age := time.Since(r.Timestamp); age.Abs() > time.Hour {
			t.Errorf("a record counts as %s old", age)
		}
	}
}

func TestLargeParamsRaiseTheLimitOfTheTopic(t *testing.T) {
	topics := newTestTopics(t, broker(t, nil).ListenAddrs(), TopicConfig{ParamsBytes: 2 << 20})
	const acme = "acme"
	if err := topics.Ensure(t.Context(), acme); err != nil {
		t.Fatal(err)
	}
	found, err := topics.Check(t.Context(), []string{acme})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if strings.Contains(f.Message, "max.message.bytes") {
			t.Error(f)
		}
	}
}

func TestSettingsThatWouldLoseWorkAreFound(t *testing.T) {
	c := broker(t, nil, kfake.NumBrokers(3))
	topics := newTestTopics(t, c.ListenAddrs(), TopicConfig{ParamsBytes: 16 << 10})
	entries := []kafka.ConfigEntry{
		{ConfigName: "retention.ms", ConfigValue: "3600000"}, {ConfigName: "cleanup.policy", ConfigValue: "compact"},
		{ConfigName: "max.message.bytes", ConfigValue: "10000"}, {ConfigName: "min.insync.replicas", ConfigValue: "1"},
		{ConfigName: "retention.bytes", ConfigValue: "1000000"},
	}
	client, closeClient := topics.client("bad")
	defer closeClient()
	res, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: "bad", NumPartitions: 1, ReplicationFactor: 3, ConfigEntries: entries},
	}})
	if err != nil || res.Errors["bad"] != nil {
		t.Fatal(err, res)
	}
	found, err := topics.Check(t.Context(), []string{"bad", "gone"})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range found {
		if !f.Fatal {
			t.Errorf("finding is not fatal: %s", f)
		}
		text.WriteString(f.String() + "\n")
	}
	for _, want := range []string{
		"topic bad: retention.ms 3600000 is below give_up_after 24h0m0s", "topic bad: cleanup.policy compact",
		"topic bad: max.message.bytes 10000 is below", "topic bad: min.insync.replicas 1 with 3 replicas",
		"topic bad: retention.bytes 1000000", "topic gone: does not exist: the runs of its tenant wait until perceptorctl tenant provision has created it",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, text.String())
		}
	}
}

// TestNewTopicWithReplicasIsSafe also leaves the number of replicas to the brokers.
func TestNewTopicWithReplicasIsSafe(t *testing.T) {
	c := broker(t, nil, kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{"default.replication.factor": "3"}))
	for name, replication := range map[string]int{"two": 2, "three": 3, "default": 0} {
		topics := newTestTopics(t, c.ListenAddrs(), TopicConfig{Replication: replication})
		topic := topics.Name(1, name)
		if err := topics.Ensure(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		if found, err := topics.Check(t.Context(), []string{topic}); err != nil || len(found) != 0 {
			t.Errorf("%s: findings = %v, %v, want none", name, found, err)
		}
	}
}

func TestTenantNamesThatAreNoTopicNamesAreRefused(t *testing.T) {
	topics := newTestTopics(t, []string{"127.0.0.1:1"}, TopicConfig{})
	for _, name := range []string{"", "a b", "a/b", "ä", "a\x00", strings.Repeat("a", 250)} {
		if err := topics.Ensure(t.Context(), name); err == nil {
			t.Errorf("Ensure accepted the name %q", name)
		}
	}
}

func TestTopicConfigurationNamesEveryFault(t *testing.T) {
	err := TopicConfig{Prefix: "a b", Partitions: -1, Replication: 99, Retention: time.Hour}.Validate()
	if err == nil {
		t.Fatal("Validate accepted an invalid configuration")
	}
	for _, want := range []string{`prefix: "a b"`, "partitions: -1", "replication: 99", "retention: 1h0m0s is below give_up_after 24h0m0s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in the error: %v", want, err)
		}
	}
}

func TestSettingsThatCannotBeReadHideNoOtherFinding(t *testing.T) {
	c := broker(t, names{}, kfake.SeedTopics(1, "good", "short", "hidden"))
	topics := newTestTopics(t, c.ListenAddrs(), TopicConfig{})
	refused := map[string]int16{"hidden": kerr.TopicAuthorizationFailed.Code}
	c.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, asked := range r.(*kmsg.DescribeConfigsRequest).Resources {
			res := kmsg.NewDescribeConfigsResponseResource()
			res.ResourceType, res.ResourceName, res.ErrorCode = asked.ResourceType, asked.ResourceName, refused[asked.ResourceName]
			if asked.ResourceName == "short" {
				entry := kmsg.NewDescribeConfigsResponseResourceConfig()
				entry.Name, entry.Value = "retention.ms", kmsg.StringPtr("1000")
				res.Configs = append(res.Configs, entry)
			}
			resp.Resources = append(resp.Resources, res)
		}
		return resp, nil, true
	})
	all := []string{"good", "short", "hidden"}
	found, err := topics.Check(t.Context(), all)
	var short, hidden, broker bool
	for _, f := range found {
		short = short || f.Topic == "short" && f.Fatal && strings.Contains(f.Message, "retention.ms 1000")
		hidden = hidden || f.Topic == "hidden" && !f.Fatal && strings.Contains(f.Message, "settings cannot be read: [29]")
	}
	if err != nil || !short || !hidden {
		t.Errorf("one topic is refused: %v, %v", found, err)
	}

	refused["0"] = kerr.ClusterAuthorizationFailed.Code
	found, err = topics.Check(t.Context(), all)
	for _, f := range found {
		broker = broker || f.Topic == "" && !f.Fatal && strings.Contains(f.Message, "settings of broker 0 cannot be read: [31]")
	}
	if err != nil || !broker {
		t.Errorf("the broker refuses: %v, %v", found, err)
	}

	refused["good"], refused["short"] = refused["hidden"], refused["hidden"]
	if found, err = topics.Check(t.Context(), all); err == nil || !strings.Contains(err.Error(), "read settings of") {
		t.Errorf("all topics are refused: %v, %v", found, err)
	}
}
