package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/record/recordset"
)

// TopicConfig configures topics. Zero fields take the given defaults.
type TopicConfig struct {
	// Prefix begins the names of topics. Default: "perceptor.".
	Prefix string
	// Partitions is the number of partitions of a new topic. Default: 8. More
	// partitions allow more listeners for a tenant; fewer cost the brokers
	// less.
	Partitions int
	// Replication is the number of replicas of a new topic. Default: that of
	// the broker.
	Replication int
	// Retention is how long a new topic keeps records. Default: 3 x
	// GiveUpAfter.
	Retention time.Duration
	// GiveUpAfter is the longest give_up_after of tasks. Topics must keep
	// records and committed offsets at least this long. Default: 24 h.
	GiveUpAfter time.Duration
	// ParamsBytes is the highest limit of params of any tenant, in bytes.
	ParamsBytes int
}

func (c TopicConfig) withDefaults() TopicConfig {
	or(&c.Prefix, "perceptor.")
	or(&c.Partitions, 8)
	or(&c.Replication, -1)
	or(&c.GiveUpAfter, 24*time.Hour)
	or(&c.Retention, 3*c.GiveUpAfter)
	or(&c.ParamsBytes, 16<<10)
	return c
}

// Validate returns all faults of the configuration, or nil.
func (c TopicConfig) Validate() error {
	c = c.withDefaults()
	var faults []error
	if bad := strings.Trim(c.Prefix, topicCharacters); bad != "" || len(c.Prefix) > 100 {
		faults = append(faults, fmt.Errorf("prefix: %q is not made of up to 100 letters, digits, '.', '_' and '-'", c.Prefix))
	}
	if c.Partitions < 1 || c.Partitions > 10_000 {
		faults = append(faults, fmt.Errorf("partitions: %d is not between 1 and 10000", c.Partitions))
	}
	if c.Replication < -1 || c.Replication > 32 {
		faults = append(faults, fmt.Errorf("replication: %d is not between 1 and 32", c.Replication))
	}
	if c.Retention < c.GiveUpAfter {
		faults = append(faults, fmt.Errorf("retention: %s is below give_up_after %s: runs in flight would be lost", c.Retention, c.GiveUpAfter))
	}
	return errors.Join(faults...)
}

const topicCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// maxTopicBytes is Kafka's limit on the name of a topic.
const maxTopicBytes = 249

// Topics creates and checks the topics of tenants. Its methods may be called
// concurrently.
type Topics struct {
	cfg  TopicConfig
	conn Config
}

// NewTopics returns a Topics, which connects for each call.
func NewTopics(conn Config, cfg TopicConfig) (*Topics, error) {
	if err := errors.Join(conn.Validate(), cfg.Validate()); err != nil {
		return nil, fmt.Errorf("configure topics: %w", err)
	}
	return &Topics{cfg: cfg.withDefaults(), conn: conn.withDefaults()}, nil
}

// client returns a client that knows the given topics, and a function that closes it.
func (t *Topics) client(topics ...string) (*kafka.Client, func()) {
	transport := t.conn.transport(topics)
	return &kafka.Client{Addr: t.conn.addr(), Timeout: t.conn.Timeout, Transport: transport}, transport.CloseIdleConnections
}

// Name returns the topic of a tenant. The number makes it unique for all time, so that a new
// tenant of an old name does not get records of its predecessor; the name is for people.
func (t *Topics) Name(id int32, tenant string) string { return TopicName(t.cfg.Prefix, id, tenant) }

// TopicName returns the topic of a tenant in an installation with a prefix.
func TopicName(prefix string, id int32, tenant string) string {
	return prefix + strconv.Itoa(int(id)) + "." + tenant
}

// ErrTopicExists is returned by [Topics.Create].
var ErrTopicExists = errors.New("the topic exists")

// Ensure creates a topic unless it exists. It does not change an existing topic; see
// [Topics.Check].
func (t *Topics) Ensure(ctx context.Context, topic string) error {
	if err := t.Create(ctx, topic); !errors.Is(err, ErrTopicExists) {
		return err
	}
	return nil
}

// Create creates a topic. Of all that create one of this name, one succeeds, and the others get
// [ErrTopicExists]. After another error it is not known whether the topic was created.
func (t *Topics) Create(ctx context.Context, topic string) error {
	if topic == "" || strings.Trim(topic, topicCharacters) != "" || len(topic) > maxTopicBytes {
		return fmt.Errorf("%q cannot be the name of a topic", topic)
	}
	entries := []kafka.ConfigEntry{
		{ConfigName: "cleanup.policy", ConfigValue: "delete"},
		{ConfigName: "retention.ms", ConfigValue: strconv.FormatInt(t.cfg.Retention.Milliseconds(), 10)},
		{ConfigName: "retention.bytes", ConfigValue: "-1"},
		// By the clock of the broker: it refuses records of a dispatcher whose clock is an hour ahead, and deletes those
		// of one whose clock is behind by the retention before they are read.
		{ConfigName: "message.timestamp.type", ConfigValue: "LogAppendTime"},
	}
	if need := t.messageBytes(); need > defaultMessageBytes {
		entries = append(entries, kafka.ConfigEntry{ConfigName: "max.message.bytes", ConfigValue: strconv.Itoa(need)})
	}
	client, closeClient := t.client(topic)
	defer closeClient()
	replicas, err := t.replicas(ctx, client)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	if replicas >= 2 {
		entries = append(entries, kafka.ConfigEntry{ConfigName: "min.insync.replicas", ConfigValue: "2"})
	}
	res, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: topic, NumPartitions: t.cfg.Partitions, ReplicationFactor: t.cfg.Replication, ConfigEntries: entries,
	}}})
	if err == nil {
		err = res.Errors[topic]
	}
	if errors.Is(err, kafka.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w", topic, ErrTopicExists)
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	return nil
}

// replicas returns the number of replicas of a new topic, or 0 if it is the broker's default and the
// broker does not tell it. Without an answer it returns an error: a topic of many replicas that is
// created like one of a single replica loses records with a broker.
func (t *Topics) replicas(ctx context.Context, client *kafka.Client) (int64, error) {
	if t.cfg.Replication > 0 {
		return int64(t.cfg.Replication), nil
	}
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{}})
	if err != nil {
		return 0, fmt.Errorf("find brokers: %w", err)
	}
	if len(meta.Brokers) == 0 {
		return 0, nil
	}
	settings, err := describe(ctx, client, []kafka.DescribeConfigRequestResource{brokerResource(meta)})
	if err != nil {
		return 0, err
	}
	if len(settings) == 0 || settings[0].Error != nil {
		return 0, nil
	}
	n, _ := number(settingsOf(settings[0]), "default.replication.factor")
	return n, nil
}

func brokerResource(meta *kafka.MetadataResponse) kafka.DescribeConfigRequestResource {
	return kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeBroker, ResourceName: strconv.Itoa(meta.Brokers[0].ID)}
}

// defaultMessageBytes is Kafka's default of max.message.bytes.
const defaultMessageBytes = 1048588

// messageBytes returns the minimum of max.message.bytes.
func (t *Topics) messageBytes() int {
	return t.cfg.ParamsBytes + record.MaxOverheadBytes + recordset.HeaderBytes + 1024
}

// A Finding is a fault in the settings that an operator should know about.
type Finding struct {
	// Topic is "" if the finding concerns the whole cluster.
	Topic string
	// Fatal is set if runs may be lost or cannot be published.
	Fatal bool
	// Message names the setting, its value and the rule.
	Message string
}

// String returns the finding in one line.
func (f Finding) String() string {
	if f.Topic == "" {
		return f.Message
	}
	return "topic " + f.Topic + ": " + f.Message
}

// Check checks the settings of topics and of the cluster. It returns an error if Kafka does not answer, or refuses to tell the
// settings of all of them.
func (t *Topics) Check(ctx context.Context, topics []string) ([]Finding, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	client, closeClient := t.client(topics...)
	defer closeClient()
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, fmt.Errorf("read topics: %w", err)
	}
	var found []Finding
	var resources []kafka.DescribeConfigRequestResource
	replicas := make(map[string]int)
	for _, m := range meta.Topics {
		if m.Error != nil || len(m.Partitions) == 0 {
			found = append(found, Finding{Topic: m.Name, Fatal: true, Message: unusable(m.Error)})
			continue
		}
		replicas[m.Name] = len(m.Partitions[0].Replicas)
		resources = append(resources, kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: m.Name, ConfigNames: topicSettings})
	}
	if len(resources) > 0 && len(meta.Brokers) > 0 {
		resources = append(resources, brokerResource(meta))
		settings, err := describe(ctx, client, resources)
		if err != nil {
			return nil, err
		}
		more, err := t.checkAll(settings, replicas)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return strings.Compare(a.Topic, b.Topic) })
	return found, nil
}

// unusable says why a topic cannot be used.
func unusable(err error) string {
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		return "does not exist: the runs of its tenant wait until perceptorctl tenant provision has created it"
	}
	return fmt.Sprintf("cannot be used: %v", err)
}

// describe reads settings. What Kafka refuses to tell of one resource is an error of that resource.
func describe(ctx context.Context, client *kafka.Client, resources []kafka.DescribeConfigRequestResource) ([]kafka.DescribeConfigResponseResource, error) {
	res, err := client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: resources})
	if err != nil {
		return nil, fmt.Errorf("read settings of topics: %w", err)
	}
	return res.Resources, nil
}

// checkAll checks the settings of topics and of the broker. Settings that cannot be read are a finding about their topic,
// but an error if no topic's can: then the program lacks a right, and as many findings as topics would hide all others.
func (t *Topics) checkAll(settings []kafka.DescribeConfigResponseResource, replicas map[string]int) (found []Finding, err error) {
	read := 0
	for _, r := range settings {
		broker := r.ResourceType == int8(kafka.ResourceTypeBroker)
		switch {
		case r.Error == nil:
			found = append(found, t.checkSettings(r, replicas)...)
			if !broker {
				read++
			}
		case broker:
			found = append(found, Finding{Message: fmt.Sprintf("settings of broker %s cannot be read: %v", r.ResourceName, r.Error)})
		default:
			found = append(found, Finding{Topic: r.ResourceName, Message: fmt.Sprintf("settings cannot be read: %v", r.Error)})
			err = fmt.Errorf("read settings of %s: %w", r.ResourceName, r.Error)
		}
	}
	if read > 0 {
		err = nil
	}
	return found, err
}

// topicSettings are the settings that checkSettings looks at. A topic has dozens.
var topicSettings = []string{"retention.ms", "retention.bytes", "cleanup.policy", "max.message.bytes", "min.insync.replicas"}

// checkSettings checks the settings of one topic, or of the broker.
func (t *Topics) checkSettings(r kafka.DescribeConfigResponseResource, replicas map[string]int) []Finding {
	settings := settingsOf(r)
	if r.ResourceType == int8(kafka.ResourceTypeBroker) {
		return t.checkBroker(settings)
	}
	topic := r.ResourceName
	var found []Finding
	add := func(fatal bool, format string, args ...any) {
		found = append(found, Finding{Topic: topic, Fatal: fatal, Message: fmt.Sprintf(format, args...)})
	}
	if ms, ok := number(settings, "retention.ms"); ok && ms >= 0 && time.Duration(ms)*time.Millisecond < t.cfg.GiveUpAfter {
		add(true, "retention.ms %d is below give_up_after %s: runs in flight would be lost", ms, t.cfg.GiveUpAfter)
	}
	if n, ok := number(settings, "retention.bytes"); ok && n >= 0 {
		add(true, "retention.bytes %d: records may be deleted before retention.ms has passed; it must be -1", n)
	}
	if p := settings["cleanup.policy"]; strings.Contains(p, "compact") {
		add(true, "cleanup.policy %s: older runs of a task would be lost; it must be delete", p)
	}
	if n, ok := number(settings, "max.message.bytes"); ok && n < int64(t.messageBytes()) {
		add(true, "max.message.bytes %d is below %d: params of %d bytes could not be published", n, t.messageBytes(), t.cfg.ParamsBytes)
	}
	n, ok := number(settings, "min.insync.replicas")
	switch {
	case replicas[topic] == 1:
		add(false, "has one replica: the loss of a broker's disk loses runs in flight")
	case ok && n < 2:
		add(true, "min.insync.replicas %d with %d replicas: the loss of one broker may lose runs in flight; it must be 2 or more", n, replicas[topic])
	}
	return found
}

func (t *Topics) checkBroker(settings map[string]string) []Finding {
	minutes, ok := number(settings, "offsets.retention.minutes")
	if ok && time.Duration(minutes)*time.Minute < t.cfg.GiveUpAfter {
		return []Finding{{Fatal: true, Message: fmt.Sprintf("broker setting offsets.retention.minutes %d is below give_up_after %s: listeners that were down would miss runs", minutes, t.cfg.GiveUpAfter)}}
	}
	return nil
}

func settingsOf(r kafka.DescribeConfigResponseResource) map[string]string {
	settings := make(map[string]string, len(r.ConfigEntries))
	for _, e := range r.ConfigEntries {
		settings[e.ConfigName] = e.ConfigValue
	}
	return settings
}

func number(settings map[string]string, name string) (int64, bool) {
	n, err := strconv.ParseInt(settings[name], 10, 64)
	return n, err == nil
}
