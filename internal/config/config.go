// Package config is the one configuration of all programs: a YAML file, then
// environment variables, then flags; a later source overrides an earlier one. The
// struct [Config] is the list of keys. Its tags hold their defaults and their
// documentation, from which docs/configuration.md is generated.
//
// An unknown key, a value of the wrong type and a value that breaks a rule are
// errors. All of them are reported at once, each with its key, its value and its
// origin. Values of secret keys are never shown.
//
// A key such as taskd.grpc_addr is the environment variable
// PERCEPTOR_TASKD_GRPC_ADDR and the flag --taskd.grpc-addr. There, commas separate
// the elements of lists.
package config

import (
	"time"

	"github.com/perceptor/perceptor/internal/duration"
)

// Config holds the effective value of every key.
type Config struct {
	Insecure     bool          `key:"insecure" default:"false" doc:"Whether links to and from other machines may be open: without TLS, or without a check of the other end. Without it, a program refuses to start and names each open link. With it, the log names them. Links within the machine (loopback) are always allowed."`
	StartTimeout time.Duration `key:"start_timeout" default:"30s" doc:"How long a program tries to reach its servers at start. After that it ends with an error."`
	Log          Log           `key:"log" doc:"The log, written to standard error."`
	Ops          Ops           `key:"ops" doc:"The HTTP server for operators: /healthz, /readyz, /metrics."`
	Postgres     Postgres      `key:"postgres" doc:"The servers of the 16 logical databases."`
	Tasks        Tasks         `key:"tasks" doc:"Rules for the tasks of all tenants. Give taskd and dispatchers the same values."`
	Quotas       Quotas        `key:"quotas" doc:"What the calls of a tenant may use unless the tenant has a quota of its own; 0 means no limit. Rates are over all taskd processes. Give taskd and dispatchers the same values. They do not apply while the installation has a virtual clock."`
	Far          Far           `key:"far" doc:"The far tier: tasks that are due beyond a horizon. Give taskd and dispatchers the same values."`
	Kafka        Kafka         `key:"kafka" doc:"The cluster to which runs are published."`
	Assignment   string        `key:"assignment" doc:"Where dispatchers agree on the owner of each shard: postgres or zookeeper. Default: zookeeper if zookeeper.servers is set, otherwise postgres. Give taskd and dispatchers the same value."`
	Leases       Leases        `key:"leases" doc:"The sessions of dispatchers that agree on owners in Postgres."`
	ZooKeeper    ZooKeeper     `key:"zookeeper" doc:"The ensemble through which dispatchers agree on the owner of each shard, if not in Postgres."`
	Taskd        Taskd         `key:"taskd" doc:"The API."`
	Dispatcher   Dispatcher    `key:"dispatcher" doc:"The dispatcher. The defaults of ticks and limits suit nearly every installation."`
	Tracing      Tracing       `key:"tracing" doc:"Traces by OpenTelemetry of taskd and dispatchers, see tracing.md."`
	Audit        Audit         `key:"audit" doc:"The audit log. Give taskd and dispatchers the same values."`
	Chores       Chores        `key:"chores" doc:"The periodic maintenance that dispatchers do: moving tasks between tiers, purging expired rows, folding counters."`

	secretFiles map[string]string // by key
}

// Log configures the log.
type Log struct {
	Level  string `key:"level" default:"info" doc:"The lowest level that is logged: debug, info, warn or error."`
	Format string `key:"format" default:"json" doc:"json or text."`
}

// Ops configures the HTTP server for operators.
type Ops struct {
	Token string `key:"token" secret:"true" doc:"If set, only callers with the header Authorization: Bearer TOKEN see metrics, profiles and the reasons in /readyz. Needed to listen on other than loopback."`
	TLS   OpsTLS `key:"tls" doc:"TLS for the server for operators. The files are read again when they change."`
	Pprof bool   `key:"pprof" default:"false" doc:"Also serve profiles under /debug/pprof/. Profiles show the memory of the process."`
}

// OpsTLS configures TLS of the server for operators.
type OpsTLS struct {
	CertFile string `key:"cert_file" doc:"File of the certificate with its chain. Default: no TLS."`
	KeyFile  string `key:"key_file" doc:"File of its private key."`
}

// Postgres configures the databases.
type Postgres struct {
	Servers           []Server      `key:"servers" doc:"1 to 16 servers, each with dsn (a connection string or URL) or dsn_file (a file with it, whose user and password may change while programs run), databases (numbers from 0 to 15) and storage (the size of its disk, such as 500GB, by which taskd knows whether an import fits and perceptorctl database move whether a database does; default: taskd asks the file system if the server is on its machine). If no server names databases, they are distributed evenly, in order. A database that was moved says itself where it is (perceptorctl database list). In the environment and in flags: a YAML list, or a single dsn."`
	MaxConnections    int           `key:"max_connections" default:"4" doc:"The most connections of one process to one logical database; 1 to 100."`
	ServerConnections int           `key:"server_connections" default:"0" doc:"The most connections of one process to one server, over its logical databases; 4 to 1600. 0: an equal share of what the server admits for each running process, and at most a sixth; see connections.md."`
	StatementTimeout  time.Duration `key:"statement_timeout" default:"5s" doc:"Cancels a statement that takes longer; 100ms to 24h."`
	LockTimeout       time.Duration `key:"lock_timeout" default:"200ms" doc:"Cancels a statement that waits longer for a row lock; 10ms to 24h."`
	IdleInTransaction time.Duration `key:"idle_in_transaction_timeout" default:"2s" doc:"Ends a session that is idle in a transaction for longer; 100ms to 24h."`
}

// Server is one PostgreSQL server.
type Server struct {
	DSN string
	// DSNFile is the file from which DSN was read; "": it was given.
	DSNFile   string
	Databases []int
	// Storage is the size of the server's disk in bytes; 0: not configured.
	Storage int64
}

// Tasks holds rules for all tasks.
type Tasks struct {
	CatchUpInterval time.Duration `key:"catch_up_interval" default:"100ms" doc:"The catch-up interval: the least time between two missed instants of a task that FIRE_ALL fires; 1ms to 1h."`
	DeadRetention   time.Duration `key:"dead_retention" default:"720h" doc:"How long dead runs are kept, even when the retention of their task is shorter; 1h to 87600h."`
}

// Quotas holds the quotas of tenants that have none of their own.
type Quotas struct {
	AddRate        int `key:"add_rate" default:"20000" doc:"Tasks added, dead runs replayed and runs triggered per second."`
	ReadRate       int `key:"read_rate" default:"10000" doc:"Tasks, events, dead runs and operations read per second."`
	UpdateRate     int `key:"update_rate" default:"5000" doc:"Changes of tasks, kinds and operations per second."`
	PreviewRate    int `key:"preview_rate" default:"10000" doc:"Instants previewed per second."`
	RunRate        int `key:"run_rate" default:"100000" doc:"Starts, checks, heartbeats, hand-backs and results of runs per second."`
	ByteRate       int `key:"byte_rate" default:"134217728" doc:"Bytes of requests and answers per second."`
	MaxBacklog     int `key:"max_backlog" default:"50000000" doc:"Unfinished tasks."`
	MaxCalls       int `key:"max_calls" default:"1000" doc:"Calls in progress at one taskd."`
	MaxConnections int `key:"max_connections" default:"500" doc:"Connections to one taskd."`
}

// Far configures the far tier.
type Far struct {
	Horizon string `key:"horizon" default:"10m" doc:"Tasks due later than this are kept in packs, many tasks to one row: a duration of at least 1m. off keeps every task in a row of its own; existing packs are still read and emptied in time."`
}

// HorizonOff is what [Far.Within] returns for off.
const HorizonOff time.Duration = -1

// Within returns the horizon, or [HorizonOff]. The value must be valid.
func (f *Far) Within() time.Duration {
	if f.Horizon == "off" {
		return HorizonOff
	}
	d, _ := duration.Parse(f.Horizon)
	return d
}

// Kafka configures where and how runs are published.
type Kafka struct {
	Brokers           []string      `key:"brokers" doc:"Addresses, host:port. One that answers is enough."`
	AdvertisedBrokers []string      `key:"advertised_brokers" doc:"Addresses that listeners use. Default: those of brokers."`
	TopicPrefix       string        `key:"topic_prefix" default:"perceptor." doc:"Prefix of the names of a tenant's topic and consumer group; the tenant's number and name follow. Up to 100 letters, digits, '.', '_' and '-'."`
	Partitions        int           `key:"partitions" default:"8" doc:"Partitions of a new topic. At most this many listeners share a tenant's runs. Fewer partitions cost the brokers less."`
	ReplicationFactor int           `key:"replication_factor" default:"0" doc:"Replicas of a new topic. 0: the default of the brokers. With 3 or more, min.insync.replicas is set to 2."`
	Retention         time.Duration `key:"retention" default:"72h" doc:"How long a new topic keeps records. It must be longer than every ack_timeout, because a run without a result is published again after its ack_timeout, or after an hour if that is longer; taskd refuses a task with another ack_timeout."`
	Compression       string        `key:"compression" default:"none" doc:"none, lz4, zstd, snappy or gzip."`
	Timeout           time.Duration `key:"timeout" default:"10s" doc:"How long a broker may wait for its replicas; 100ms to 1h."`
	TLS               KafkaTLS      `key:"tls" doc:"TLS for connections to the brokers."`
	SASL              KafkaSASL     `key:"sasl" doc:"The login of taskd and dispatchers to the brokers."`
	Users             KafkaUsers    `key:"users" doc:"The logins of tenants to the brokers. Give taskd and dispatchers the same values."`
	SigningSecret     string        `key:"signing_secret" secret:"true" doc:"A secret, of 16 bytes or more, that goes into the keys which sign records and into the passwords of tenants, so that a copy of the databases is not enough to forge records. Give taskd and dispatchers the same value. After a change, records that are not read yet are refused and delivered again. Default: none."`
}

// KafkaSASL configures the login to the brokers.
type KafkaSASL struct {
	Mechanism string `key:"mechanism" doc:"SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER; the latter two need kafka.tls. Default: SCRAM-SHA-512 with a username, OAUTHBEARER with a token_file, otherwise no login."`
	Username  string `key:"username" doc:"User name for SCRAM and PLAIN."`
	Password  string `key:"password" secret:"true" doc:"Password of username. A file with it is read again when it changes."`
	TokenFile string `key:"token_file" doc:"File of the token for OAUTHBEARER. It is read for each connection."`
}

// KafkaUsers configures the logins of tenants.
type KafkaUsers struct {
	Mode           string `key:"mode" default:"none" doc:"none: tenants have no logins of their own. managed: taskd creates a user for each key of a tenant, who may read the topics of the tenant and nothing else; the brokers need an authorizer. manual: listeners get the same logins, and an operator creates them with the commands that perceptorctl tenant kafka prints."`
	Mechanism      string `key:"mechanism" default:"SCRAM-SHA-512" doc:"SCRAM-SHA-512 or SCRAM-SHA-256."`
	FetchRate      int    `key:"fetch_rate" default:"67108864" doc:"The most bytes per second that a tenant may read from one broker."`
	RequestPercent int    `key:"request_percent" default:"100" doc:"The most time of a broker's threads that the requests of a tenant may take, as a percentage of one thread."`
}

// Values of [KafkaUsers].Mode.
const (
	UsersNone    = "none"
	UsersManaged = "managed"
	UsersManual  = "manual"
)

// Values of [KafkaSASL].Mechanism.
const (
	sasl512   = "SCRAM-SHA-512"
	sasl256   = "SCRAM-SHA-256"
	saslPlain = "PLAIN"
	saslToken = "OAUTHBEARER"
)

// Name returns the mechanism; empty: no login.
func (s *KafkaSASL) Name() string {
	switch {
	case s.Mechanism != "":
		return s.Mechanism
	case s.Username != "":
		return sasl512
	case s.TokenFile != "":
		return saslToken
	}
	return ""
}

// KafkaTLS configures TLS to the brokers.
type KafkaTLS struct {
	Enabled  bool   `key:"enabled" default:"false" doc:"Whether connections are encrypted."`
	CAFile   string `key:"ca_file" doc:"File of the certificates that sign the brokers' certificates. Default: the system's."`
	CertFile string `key:"cert_file" doc:"File of this program's certificate, for brokers that require one."`
	KeyFile  string `key:"key_file" doc:"File of its private key."`
}

// Values of [Config].Assignment.
const (
	InPostgres  = "postgres"
	InZooKeeper = "zookeeper"
)

// Coordinator returns where dispatchers agree on owners: [InPostgres] or [InZooKeeper]. The
// configuration must be valid.
func (c *Config) Coordinator() string {
	switch {
	case c.Assignment != "":
		return c.Assignment
	case len(c.ZooKeeper.Servers) > 0:
		return InZooKeeper
	}
	return InPostgres
}

// Leases configures the assignment in Postgres.
type Leases struct {
	SessionTimeout time.Duration `key:"session_timeout" default:"10s" doc:"A dispatcher without contact to database 0 for this long is considered dead; 1s to 1h."`
	TakeoverAfter  time.Duration `key:"takeover_after" default:"5s" doc:"How long to wait for a live but stuck owner before its shards are taken over."`
}

// ZooKeeper configures the ensemble of the assignment.
type ZooKeeper struct {
	Servers        []string      `key:"servers" doc:"Addresses, host:port."`
	Root           string        `key:"root" default:"/perceptor" doc:"The path under which all nodes are created."`
	Environment    string        `key:"environment" default:"BASE" doc:"Separates clusters that share a root."`
	SessionTimeout time.Duration `key:"session_timeout" default:"10s" doc:"A dispatcher without contact for this long is considered dead. At least 1s; the ZooKeeper server may impose another value."`
	TakeoverAfter  time.Duration `key:"takeover_after" default:"5s" doc:"How long to wait for a live but stuck owner before its shards are taken over."`
	User           string        `key:"user" doc:"User for digest authentication. Only this user may then read and change the nodes under root. Default: none."`
	Password       string        `key:"password" secret:"true" doc:"Password of user."`
	TLS            ZooKeeperTLS  `key:"tls" doc:"TLS for connections to the ensemble. The files are read again when they change."`
}

// ZooKeeperTLS configures TLS to ZooKeeper.
type ZooKeeperTLS struct {
	Enabled  bool   `key:"enabled" default:"false" doc:"Whether connections are encrypted. servers then names the secure ports."`
	CAFile   string `key:"ca_file" doc:"File of the certificates that sign the servers' certificates. Default: the system's."`
	CertFile string `key:"cert_file" doc:"File of this program's certificate, for servers that require one."`
	KeyFile  string `key:"key_file" doc:"File of its private key."`
}

// Taskd configures the API.
type Taskd struct {
	GRPCAddr        string        `key:"grpc_addr" default:":7070" doc:"Listen address of the gRPC API."`
	HTTPAddr        string        `key:"http_addr" default:":7071" doc:"Listen address of the HTTP/JSON API. Empty: no HTTP API."`
	OpsAddr         string        `key:"ops_addr" default:"127.0.0.1:7072" doc:"Listen address of the server for operators. Other than loopback needs ops.tls and ops.token. Empty: none."`
	Grace           time.Duration `key:"grace" default:"10s" doc:"How long a stop waits for calls in progress."`
	DrainDelay      time.Duration `key:"drain_delay" default:"0s" doc:"How long taskd continues to serve after a stop signal while /readyz answers not ready, so that load balancers notice."`
	MinInterval     time.Duration `key:"min_interval" default:"1s" doc:"The shortest interval that a task may have; at least 10ms."`
	MinAckTimeout   time.Duration `key:"min_ack_timeout" default:"1s" doc:"The shortest ack_timeout that a task may have; at least 10ms."`
	MaxCalls        int           `key:"max_calls" default:"4096" doc:"The most calls in progress. Further calls get SERVER_BUSY. One tenant has at most half of them, or less while others have many; its further calls get TENANT_BUSY."`
	MaxConnections  int           `key:"max_connections" default:"4096" doc:"The most connections of both APIs together. Half of them may come from one address, or less while others have many. Further connections are closed."`
	MaxRequestBytes int           `key:"max_request_bytes" default:"8388608" doc:"The largest request, in bytes."`
	MaxListScan     int           `key:"max_list_scan" default:"1000000" doc:"The most tasks that a listing by kind, type or tags may read; ten times as many with a range of due times. A listing that would read more gets LIST_TOO_LARGE."`
	CallTimeout     time.Duration `key:"call_timeout" default:"30s" doc:"Cancels a call that takes longer."`
	Tokens          Tokens        `key:"tokens" doc:"The tokens that callers use."`
	OIDC            OIDC          `key:"oidc" doc:"JSON Web Tokens as identities of callers, see security.md."`
	Console         Console       `key:"console" doc:"The web console under /console/ of the HTTP API, see console.md."`
	TLS             ServerTLS     `key:"tls" doc:"TLS for the gRPC and HTTP APIs. Needed to listen on other than loopback. The files are read again when they change."`
}

// Console configures the web console.
type Console struct {
	Enabled bool         `key:"enabled" default:"true" doc:"Whether the console is served."`
	URL     string       `key:"url" doc:"The address of taskd's HTTP API as browsers reach it, such as https://perceptor.example.com. With https the cookies of the console are Secure, also behind a proxy that ends TLS. Needed with login.client_id."`
	Login   ConsoleLogin `key:"login" doc:"Logins with a browser at taskd.oidc.issuer, besides those with tokens."`
	Secret  string       `key:"secret" secret:"true" doc:"A secret, of 16 bytes or more, with which the cookies of sessions are encrypted. Give all taskds the same value, or users must log in again whenever another one answers. After a change, all users log in again. Default: derived from kafka.signing_secret; without that, each taskd draws one at its start."`
}

// Tokens configures the tokens of callers.
type Tokens struct {
	MaxLifetime time.Duration `key:"max_lifetime" default:"8760h" doc:"How long a new token is valid at most, and unless it is created with an expiry. 0s: no limit."`
}

// ServerTLS configures TLS of the API.
type ServerTLS struct {
	CertFile         string   `key:"cert_file" doc:"File of the certificate with its chain. Default: no TLS."`
	KeyFile          string   `key:"key_file" doc:"File of its private key."`
	ClientCAFile     string   `key:"client_ca_file" doc:"If set, callers present a certificate signed by one of these; see client_certs."`
	ClientIdentities []string `key:"client_identities" doc:"Identities of client certificates: a list of NAME TENANT SCOPES, such as uri:spiffe://example.org/acme/worker acme add+listen. NAME is uri:, dns: or cn: and a name of the certificate; TENANT is - for scopes of the installation. A caller with such a certificate needs no token, and can use only tokens of that tenant."`
	ClientCerts      string   `key:"client_certs" default:"required" doc:"required: a connection without a certificate is refused. optional: it is accepted, but a certificate that is presented must be valid."`
}

// Dispatcher configures the process that claims and publishes due tasks.
type Dispatcher struct {
	Name             string        `key:"name" doc:"Name of this dispatcher as the owner of shards. Default: the host's name and the process id."`
	OpsAddr          string        `key:"ops_addr" default:"127.0.0.1:7073" doc:"Listen address of the server for operators. Other than loopback needs ops.tls and ops.token. Empty: none."`
	HintAddr         string        `key:"hint_addr" default:":7074" doc:"UDP listen address for hints from taskd about tasks that are due soon. Empty: no hints; a task that is due when it is added may then be late by peek_every."`
	HintAdvertise    string        `key:"hint_advertise" doc:"host:port at which taskd reaches hint_addr. Default: the host's name and the port of hint_addr."`
	Grace            time.Duration `key:"grace" default:"10s" doc:"How long a stop may take to hand over shards."`
	ClaimShare       float64       `key:"claim_share" default:"1" doc:"The share of time that claims may take, summed over the databases: the trade-off between lateness and CPU. 2 claims twice as often where this is the limit; see the operations page."`
	ClaimAhead       time.Duration `key:"claim_ahead" default:"500ms" doc:"How long before they are due runs are claimed, up to 2s. Claimed runs wait in the delay queue, and a database is claimed from again after half of this time, or up to three quarters while claims are fast, so transactions are large and runs still on time. After a crash, runs in the delay queue are late by the take-over; a run may still arrive within this time after its task was cancelled. 0s: claim only what is due."`
	PublishAhead     time.Duration `key:"publish_ahead" default:"100ms" doc:"How long before they are due runs that were claimed ahead may be published, up to 500ms. Their listeners hold them until they are due, so requests to Kafka are few and runs do not wait for them. Only for tenants without publish_when_due. 0s: publish when due."`
	MinTick          time.Duration `key:"min_tick" default:"5ms" doc:"The least time between two claims from a database, unless the first one was full."`
	MaxTick          time.Duration `key:"max_tick" default:"100ms" doc:"The most time between two claims from a database that has due tasks."`
	PeekEvery        time.Duration `key:"peek_every" default:"250ms" doc:"How often to peek at a database that fired recently and has nothing known to be due, while no hints of its tasks arrive."`
	MaxSleep         time.Duration `key:"max_sleep" default:"1s" doc:"How often to peek at an idle database, and at one that fired recently while hints of its tasks arrive. After a minute without runs it is 5 s while hints arrive."`
	MaxRows          int           `key:"max_rows" default:"5000" doc:"The most rows of one claim."`
	ClaimConcurrency int           `key:"claim_concurrency" default:"4" doc:"How many databases are claimed from concurrently."`
	MaxRecords       int           `key:"max_records" default:"50000" doc:"The most records in memory, in the delay queue or not yet acknowledged by Kafka. At this limit claims stop."`
	MaxBytes         int           `key:"max_bytes" default:"67108864" doc:"The same limit in bytes."`
	PublishTimeout   time.Duration `key:"publish_timeout" default:"15s" doc:"Cancels a request to Kafka. Its records are sent again."`
	BreakerAfter     int           `key:"breaker_after" default:"5" doc:"How many requests in a row must fail for a tenant's topic before its circuit breaker opens and its runs are deferred."`
}

// Audit configures the audit log.
type Audit struct {
	File      string        `key:"file" doc:"Also append each event as a line of JSON to this file; - is standard output. Default: the table in Postgres only."`
	Rate      int           `key:"rate" default:"20" doc:"How many events per second each tenant may cause in each taskd, with bursts of 50 times as many. Further events are dropped and counted."`
	Retention time.Duration `key:"retention" default:"2160h" doc:"How long events are kept in Postgres; at least 24h. A database keeps at most 100,000 events of one tenant."`
}

// Chores configures the maintenance of the databases.
type Chores struct {
	Share         float64       `key:"share" default:"0.25" doc:"The share of one core that the chores of a process may take, above 0 and at most 1. Work that must be done before tasks become due may take more."`
	Concurrency   int           `key:"concurrency" default:"2" doc:"How many chores run concurrently; 1 to 16."`
	CompactEvery  time.Duration `key:"compact_every" default:"5m" doc:"How often packs of level 0 are compacted; at least 1s. Compaction runs at least twice in a horizon."`
	DemoteEvery   time.Duration `key:"demote_every" default:"1m" doc:"How often idle rows that are due beyond the horizon are demoted into packs; at least 1s."`
	PurgeEvery    time.Duration `key:"purge_every" default:"10s" doc:"How often expired rows are removed and counters are folded; at least 100ms."`
	ForecastEvery time.Duration `key:"forecast_every" default:"1m" doc:"How often the load calendar is counted; 1s to 1m. An answer is at most twice as old. A database with so many different periods that a count takes longer than 0.3 s is counted less often, for at most 1/200 of a core. After a take-over all tasks of a database are counted again, while the dispatcher is busy with a tenth of a core: some million tasks a minute."`
	HistoryDays   int           `key:"history_days" default:"7" doc:"How many days of run history are kept; at least 1."`
}
