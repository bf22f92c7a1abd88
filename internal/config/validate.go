package config

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/duration"
)

// Need says which servers a program uses. The addresses of others may be missing.
type Need int

// The servers that a program may need.
const (
	NeedPostgres Need = 1 << iota
	NeedKafka
	// NeedAssignment: what dispatchers agree in, by [Config.Coordinator].
	NeedAssignment
	// ListensTaskd and ListensDispatcher say whose addresses the program listens on.
	ListensTaskd
	ListensDispatcher
)

// Validate returns an error for every broken rule, with key, value and rule.
func (c *Config) Validate(needs Need) error {
	v := &validator{}
	v.atLeast("start_timeout", c.StartTimeout, 0)
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "json", "text")
	c.Postgres.validate(v, needs&NeedPostgres != 0)
	c.Tasks.validate(v)
	c.Quotas.validate(v)
	c.Far.validate(v)
	c.Kafka.validate(v, needs&NeedKafka != 0)
	v.oneOf("assignment", c.Assignment, "", InPostgres, InZooKeeper)
	assigns := needs&NeedAssignment != 0
	v.check(!assigns || c.Coordinator() != InPostgres || needs&NeedPostgres != 0 || len(c.Postgres.Servers) > 0,
		"postgres.servers: is missing: 1 to 16 servers are needed, because assignment is postgres")
	c.Leases.validate(v)
	c.ZooKeeper.validate(v, assigns && c.Coordinator() == InZooKeeper)
	c.Taskd.validate(v)
	c.Dispatcher.validate(v)
	c.Tracing.validate(v)
	c.Audit.validate(v)
	c.Chores.validate(v)
	c.Ops.validate(v)
	if !c.Insecure {
		for _, l := range c.OpenLinks(needs) {
			v.check(false, "%s; or set insecure: true", l)
		}
	}
	return errors.Join(v.faults...)
}

const day = 24 * time.Hour

// topicCharacters are those that Kafka allows in the name of a topic.
const topicCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// ErrNoServers says that a program that needs PostgreSQL was given no server.
var ErrNoServers = errors.New("postgres.servers: is missing: 1 to 16 servers are needed")

func (c *Postgres) validate(v *validator, needed bool) {
	if needed && len(c.Servers) == 0 {
		v.faults = append(v.faults, ErrNoServers)
	}
	v.check(len(c.Servers) <= 16, "postgres.servers: %d are given: at most 16 are allowed", len(c.Servers))
	for i, s := range c.Servers {
		v.check(s.DSN != "", "postgres.servers[%d].dsn: is missing", i)
		for _, d := range s.Databases {
			v.check(d >= 0 && d <= 15, "postgres.servers[%d].databases: %d is not between 0 and 15", i, d)
		}
	}
	v.between("postgres.max_connections", c.MaxConnections, 1, 100)
	if c.ServerConnections != 0 {
		v.between("postgres.server_connections", c.ServerConnections, 4, 1600)
	}
	// PostgreSQL counts milliseconds with 31 bits, which is a little more than 24 days.
	v.within("postgres.statement_timeout", c.StatementTimeout, 100*time.Millisecond, day)
	v.within("postgres.lock_timeout", c.LockTimeout, 10*time.Millisecond, day)
	v.within("postgres.idle_in_transaction_timeout", c.IdleInTransaction, 100*time.Millisecond, day)
}

func (c *Tasks) validate(v *validator) {
	v.within("tasks.catch_up_interval", c.CatchUpInterval, time.Millisecond, time.Hour)
	v.within("tasks.dead_retention", c.DeadRetention, time.Hour, 87_600*time.Hour)
}

func (c *Quotas) validate(v *validator) {
	const most = 1_000_000
	v.between("quotas.add_rate", c.AddRate, 0, most)
	v.between("quotas.read_rate", c.ReadRate, 0, most)
	v.between("quotas.update_rate", c.UpdateRate, 0, most)
	v.between("quotas.preview_rate", c.PreviewRate, 0, most)
	v.between("quotas.run_rate", c.RunRate, 0, most)
	v.between("quotas.byte_rate", c.ByteRate, 0, 1_000_000_000_000)
	v.between("quotas.max_backlog", c.MaxBacklog, 0, 1_000_000_000)
	v.between("quotas.max_calls", c.MaxCalls, 0, most)
	v.between("quotas.max_connections", c.MaxConnections, 0, most)
}

func (f *Far) validate(v *validator) {
	if f.Horizon == "off" {
		return
	}
	d, err := duration.Parse(f.Horizon)
	v.check(err == nil, "far.horizon: %q is neither a duration, such as 10m, nor off", f.Horizon)
	v.check(err != nil || d >= time.Minute, "far.horizon: %s is below 1m0s", f.Horizon)
}

func (c *Kafka) validate(v *validator, needed bool) {
	v.check(!needed || len(c.Brokers) > 0, "kafka.brokers: is missing: at least one host:port is needed")
	v.addresses("kafka.brokers", c.Brokers)
	v.addresses("kafka.advertised_brokers", c.AdvertisedBrokers)
	v.check(len(c.TopicPrefix) <= 100 && strings.Trim(c.TopicPrefix, topicCharacters) == "",
		"kafka.topic_prefix: %q is not made of up to 100 letters, digits, '.', '_' and '-'", c.TopicPrefix)
	v.between("kafka.partitions", c.Partitions, 1, 10_000)
	v.between("kafka.replication_factor", c.ReplicationFactor, 0, 32)
	v.atLeast("kafka.retention", c.Retention, 2*time.Hour) // a silent run is published again after an hour at most
	v.within("kafka.timeout", c.Timeout, 100*time.Millisecond, time.Hour)
	v.oneOf("kafka.compression", c.Compression, "none", "lz4", "zstd", "snappy", "gzip")
	v.pair("kafka.tls.cert_file", c.TLS.CertFile, "kafka.tls.key_file", c.TLS.KeyFile)
	c.SASL.validate(v, c.TLS.Enabled)
	v.oneOf("kafka.users.mode", c.Users.Mode, UsersNone, UsersManaged, UsersManual)
	v.oneOf("kafka.users.mechanism", c.Users.Mechanism, sasl512, sasl256)
	v.between("kafka.users.fetch_rate", c.Users.FetchRate, 1<<10, 1<<40)
	v.between("kafka.users.request_percent", c.Users.RequestPercent, 1, 100_000)
	v.check(c.SigningSecret == "" || len(c.SigningSecret) >= 16, "kafka.signing_secret: has fewer than 16 bytes")
	v.check(c.TLS.Enabled || c.TLS.CAFile == "" && c.TLS.CertFile == "",
		"kafka.tls.enabled: false: the other keys of kafka.tls have no effect without it")
}

func (s *KafkaSASL) validate(v *validator, tls bool) {
	v.pair("kafka.sasl.username", s.Username, "kafka.sasl.password", s.Password)
	name := s.Name()
	switch name {
	case "":
		return
	case sasl512, sasl256, saslPlain:
		v.check(s.Username != "", "kafka.sasl.username: is missing: %s needs one", name)
		v.check(s.TokenFile == "", "kafka.sasl.token_file: %q has no effect with %s", s.TokenFile, name)
	case saslToken:
		v.check(s.TokenFile != "", "kafka.sasl.token_file: is missing: %s needs one", name)
		v.check(s.Username == "", "kafka.sasl.username: %q has no effect with %s", s.Username, name)
	default:
		v.oneOf("kafka.sasl.mechanism", name, sasl512, sasl256, saslPlain, saslToken)
	}
	v.check(tls || name != saslPlain && name != saslToken, "kafka.sasl.mechanism: %s sends a secret: kafka.tls.enabled must be true", name)
}

func (c *Leases) validate(v *validator) {
	v.within("leases.session_timeout", c.SessionTimeout, time.Second, time.Hour)
	v.atLeast("leases.takeover_after", c.TakeoverAfter, 100*time.Millisecond)
}

func (c *ZooKeeper) validate(v *validator, needed bool) {
	v.check(!needed || len(c.Servers) > 0, "zookeeper.servers: is missing: at least one host:port is needed, because assignment is zookeeper")
	v.addresses("zookeeper.servers", c.Servers)
	v.check(strings.HasPrefix(c.Root, "/") && len(c.Root) > 1, "zookeeper.root: %q is not a path such as /perceptor", c.Root)
	v.check(c.Environment != "", "zookeeper.environment: is empty")
	v.atLeast("zookeeper.session_timeout", c.SessionTimeout, time.Second)
	v.atLeast("zookeeper.takeover_after", c.TakeoverAfter, 100*time.Millisecond)
	v.pair("zookeeper.user", c.User, "zookeeper.password", c.Password)
	v.pair("zookeeper.tls.cert_file", c.TLS.CertFile, "zookeeper.tls.key_file", c.TLS.KeyFile)
	v.check(c.TLS.Enabled || c.TLS.CAFile == "" && c.TLS.CertFile == "",
		"zookeeper.tls.enabled: false: the other keys of zookeeper.tls have no effect without it")
}

func (c *Ops) validate(v *validator) {
	v.pair("ops.tls.cert_file", c.TLS.CertFile, "ops.tls.key_file", c.TLS.KeyFile)
	v.check(c.Token == "" || len(c.Token) >= minOpsToken, "ops.token: has %d characters: at least %d are needed", len(c.Token), minOpsToken)
}

// minOpsToken is the least length of the operators' token, so that it cannot be guessed.
const minOpsToken = 16

func (c *Taskd) validate(v *validator) {
	v.check(c.GRPCAddr != "", "taskd.grpc_addr: is empty: an address is needed")
	v.listen("taskd.grpc_addr", c.GRPCAddr)
	v.listen("taskd.http_addr", c.HTTPAddr)
	v.listen("taskd.ops_addr", c.OpsAddr)
	v.apart("taskd.http_addr", c.HTTPAddr, "taskd.grpc_addr", c.GRPCAddr)
	v.apart("taskd.ops_addr", c.OpsAddr, "taskd.grpc_addr", c.GRPCAddr)
	v.apart("taskd.ops_addr", c.OpsAddr, "taskd.http_addr", c.HTTPAddr)
	v.atLeast("taskd.grace", c.Grace, 0)
	v.atLeast("taskd.drain_delay", c.DrainDelay, 0)
	v.atLeast("taskd.min_interval", c.MinInterval, 10*time.Millisecond)
	v.atLeast("taskd.min_ack_timeout", c.MinAckTimeout, 10*time.Millisecond)
	v.atLeast("taskd.call_timeout", c.CallTimeout, 100*time.Millisecond)
	c.OIDC.validate(v)
	c.Console.validate(v, c.OIDC.Issuer)
	v.check(len(c.TLS.ClientIdentities) == 0 || c.TLS.ClientCAFile != "", "taskd.tls.client_identities: has no effect without taskd.tls.client_ca_file")
	v.check(c.Tokens.MaxLifetime == 0 || c.Tokens.MaxLifetime >= time.Minute, "taskd.tokens.max_lifetime: %s is neither 0s nor at least 1m0s", c.Tokens.MaxLifetime)
	v.between("taskd.max_list_scan", c.MaxListScan, 1, 1_000_000_000)
	v.between("taskd.max_calls", c.MaxCalls, 1, 1_000_000)
	v.between("taskd.max_connections", c.MaxConnections, 2, 1_000_000)
	v.between("taskd.max_request_bytes", c.MaxRequestBytes, 1<<16, 1<<30)
	v.pair("taskd.tls.cert_file", c.TLS.CertFile, "taskd.tls.key_file", c.TLS.KeyFile)
	v.check(c.TLS.ClientCAFile == "" || c.TLS.CertFile != "",
		"taskd.tls.client_ca_file: %q has no effect without taskd.tls.cert_file", c.TLS.ClientCAFile)
	v.oneOf("taskd.tls.client_certs", c.TLS.ClientCerts, "required", "optional")
}

func (c *Audit) validate(v *validator) {
	v.between("audit.rate", c.Rate, 1, 10_000)
	v.atLeast("audit.retention", c.Retention, 24*time.Hour)
}

func (c *Chores) validate(v *validator) {
	v.check(c.Share > 0 && c.Share <= 1, "chores.share: %v is not above 0 and at most 1", c.Share)
	v.between("chores.concurrency", c.Concurrency, 1, 16)
	v.atLeast("chores.compact_every", c.CompactEvery, time.Second)
	v.atLeast("chores.demote_every", c.DemoteEvery, time.Second)
	v.atLeast("chores.purge_every", c.PurgeEvery, 100*time.Millisecond)
	v.check(c.ForecastEvery >= time.Second && c.ForecastEvery <= time.Minute, "chores.forecast_every: %v is not between 1s and 1m", c.ForecastEvery)
	v.check(c.HistoryDays >= 1, "chores.history_days: %d is below 1", c.HistoryDays)
}

func (c *Dispatcher) validate(v *validator) {
	v.listen("dispatcher.ops_addr", c.OpsAddr)
	v.listen("dispatcher.hint_addr", c.HintAddr)
	if c.HintAdvertise != "" {
		v.addresses("dispatcher.hint_advertise", []string{c.HintAdvertise})
	}
	v.check(c.ClaimShare > 0 && c.ClaimShare <= 16, "dispatcher.claim_share: %v is not between 0 and 16", c.ClaimShare)
	v.within("dispatcher.claim_ahead", c.ClaimAhead, 0, 2*time.Second)
	v.atLeast("dispatcher.grace", c.Grace, 0)
	v.within("dispatcher.publish_ahead", c.PublishAhead, 0, 500*time.Millisecond)
	v.atLeast("dispatcher.min_tick", c.MinTick, time.Millisecond)
	v.notBelow("dispatcher.max_tick", c.MaxTick, "dispatcher.min_tick", c.MinTick)
	v.notBelow("dispatcher.peek_every", c.PeekEvery, "dispatcher.min_tick", c.MinTick)
	v.notBelow("dispatcher.max_sleep", c.MaxSleep, "dispatcher.peek_every", c.PeekEvery)
	v.atLeast("dispatcher.publish_timeout", c.PublishTimeout, 100*time.Millisecond)
	v.between("dispatcher.max_rows", c.MaxRows, 1, 100_000)
	v.between("dispatcher.claim_concurrency", c.ClaimConcurrency, 1, 16)
	v.between("dispatcher.max_records", c.MaxRecords, 1, 10_000_000)
	v.between("dispatcher.max_bytes", c.MaxBytes, 1<<20, 1<<40)
	v.between("dispatcher.breaker_after", c.BreakerAfter, 1, 1_000_000)
}

// validator collects broken rules.
type validator struct{ faults []error }

func (v *validator) check(ok bool, format string, args ...any) {
	if !ok {
		v.faults = append(v.faults, fmt.Errorf(format, args...))
	}
}

func (v *validator) between(key string, n, low, high int) {
	v.check(n >= low && n <= high, "%s: %d is not between %d and %d", key, n, low, high)
}

func (v *validator) atLeast(key string, d, low time.Duration) {
	v.check(d >= low, "%s: %s is below %s", key, d, low)
}

// notBelow compares the value of a key with that of another one.
func (v *validator) notBelow(key string, d time.Duration, than string, low time.Duration) {
	v.check(d >= low, "%s: %s is below %s, which is %s", key, d, than, low)
}

func (v *validator) within(key string, d, low, high time.Duration) {
	v.check(d >= low && d <= high, "%s: %s is not between %s and %s", key, d, low, high)
}

// oneOf checks a value; an empty one among those allowed means the default, and is not named.
func (v *validator) oneOf(key, value string, allowed ...string) {
	v.check(slices.Contains(allowed, value), "%s: %q is not one of %s", key, value, strings.TrimPrefix(strings.Join(allowed, ", "), ", "))
}

// addresses checks host:port with both.
func (v *validator) addresses(key string, list []string) {
	for _, a := range list {
		host, port, err := net.SplitHostPort(a)
		v.check(err == nil && host != "" && isPort(port), "%s: %q is not host:port", key, a)
	}
}

// listen checks an address to listen on; empty is allowed.
func (v *validator) listen(key, address string) {
	if address == "" {
		return
	}
	_, port, err := net.SplitHostPort(address)
	v.check(err == nil && isPort(port), "%s: %q is not host:port or :port", key, address)
}

// apart checks that a program can listen on both addresses.
func (v *validator) apart(keyA, a, keyB, b string) {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	all := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	same := errA == nil && errB == nil && portA == portB && portA != "0" && (hostA == hostB || all(hostA) || all(hostB))
	v.check(!same, "%s: %q has the port of %s, which is %q", keyA, a, keyB, b)
}

func isPort(port string) bool {
	n, err := strconv.Atoi(port)
	return err == nil && n >= 0 && n <= 65535
}

func (v *validator) pair(keyA, a, keyB, b string) {
	v.check(a == "" || b != "", "%s: is missing: %s is given", keyB, keyA)
	v.check(b == "" || a != "", "%s: is missing: %s is given", keyA, keyB)
}
