// Package config is the one configuration of all programs: a YAML file, then
// environment variables, then flags, each over the one before. The struct
// [Config] is the list of keys; its tags are their defaults and their
// documentation, from which docs/configuration.md is written.
//
// Nothing is passed over in silence: an unknown key, a value of the wrong type
// and a value that breaks a rule are refused, all at once, each with its key, its
// value and where it came from. Values of secret keys are never shown.
//
// A key such as taskd.grpc_addr is the environment variable
// PERCEPTOR_TASKD_GRPC_ADDR and the flag --taskd.grpc-addr. Lists of texts are
// separated by commas there.
package config

import "time"

// Config holds the effective value of every key.
type Config struct {
	StartTimeout time.Duration `key:"start_timeout" default:"30s" doc:"How long a program tries to reach its servers at start before it ends with an error."`
	Log          Log           `key:"log" doc:"What the programs write to standard error."`
	Ops          Ops           `key:"ops" doc:"The HTTP side for operators: /healthz, /readyz, /metrics."`
	Postgres     Postgres      `key:"postgres" doc:"The servers of the 16 logical databases."`
	Tasks        Tasks         `key:"tasks" doc:"What holds for tasks of all tenants. taskd and dispatchers should agree."`
	Far          Far           `key:"far" doc:"Tasks that wait long. taskd and dispatchers should agree."`
	Kafka        Kafka         `key:"kafka" doc:"Where runs are published."`
	ZooKeeper    ZooKeeper     `key:"zookeeper" doc:"Where dispatchers agree on who owns which shard."`
	Taskd        Taskd         `key:"taskd" doc:"The API."`
	Dispatcher   Dispatcher    `key:"dispatcher" doc:"The dispatcher. Ticks and bounds rarely need another value."`
	Chores       Chores        `key:"chores" doc:"What dispatchers do beside firing: tasks are moved between the tiers, what has expired is purged, counters are folded."`
}

// Log says what is logged and how.
type Log struct {
	Level  string `key:"level" default:"info" doc:"The lowest level that is logged: debug, info, warn or error."`
	Format string `key:"format" default:"json" doc:"json or text."`
}

// Ops is about the HTTP side for operators.
type Ops struct {
	Pprof bool `key:"pprof" default:"false" doc:"Also serve profiles under /debug/pprof/. They show the inside of the process: keep the address private."`
}

// Postgres says where the databases are.
type Postgres struct {
	Servers           []Server      `key:"servers" doc:"1 to 16 servers, each with dsn (a connection string or URL) and databases (numbers from 0 to 15). Where no server names databases they are spread evenly, in order. In the environment and in flags: a YAML list, or one dsn alone."`
	MaxConnections    int           `key:"max_connections" default:"4" doc:"The most connections of one process to one logical database; 1 to 100."`
	StatementTimeout  time.Duration `key:"statement_timeout" default:"5s" doc:"Ends a statement that takes longer."`
	LockTimeout       time.Duration `key:"lock_timeout" default:"200ms" doc:"Ends a wait for a row."`
	IdleInTransaction time.Duration `key:"idle_in_transaction_timeout" default:"2s" doc:"Ends a session that stops in the middle of a transaction."`
}

// Server is one PostgreSQL server.
type Server struct {
	DSN       string
	Databases []int
}

// Tasks is about what holds for all tasks.
type Tasks struct {
	CatchUpPace   time.Duration `key:"catch_up_pace" default:"100ms" doc:"FIRE_ALL: how far apart missed instants of a task fire at least; 1ms to 1h."`
	DeadRetention time.Duration `key:"dead_retention" default:"720h" doc:"How long dead runs are kept, however short the retention of their task; 1h to 87600h."`
}

// Far is about the far tier.
type Far struct {
	Horizon string `key:"horizon" default:"10m" doc:"Tasks due later than this from now are kept packed, many in one row; a duration of at least 1m, or off: every task is a row of its own. Packs that exist are read, and emptied in time, in either case."`
}

// HorizonOff is what [Far.Within] returns for off.
const HorizonOff time.Duration = -1

// Within returns the horizon, or [HorizonOff]. The value must be valid.
func (f *Far) Within() time.Duration {
	if f.Horizon == "off" {
		return HorizonOff
	}
	d, _ := time.ParseDuration(f.Horizon)
	return d
}

// Kafka says where and how runs are published.
type Kafka struct {
	Brokers           []string      `key:"brokers" doc:"Addresses, host:port, of which one must answer."`
	AdvertisedBrokers []string      `key:"advertised_brokers" doc:"Addresses as listeners shall use them. Default: those of brokers."`
	TopicPrefix       string        `key:"topic_prefix" default:"perceptor." doc:"Precedes the tenant's name in the names of its topic and its consumer group."`
	Partitions        int           `key:"partitions" default:"8" doc:"Partitions of a new topic: how many listeners can share a tenant's runs. Few cost the brokers least."`
	ReplicationFactor int           `key:"replication_factor" default:"0" doc:"Replicas of a new topic. 0: as the brokers are set up. With 3 or more, min.insync.replicas is 2."`
	Retention         time.Duration `key:"retention" default:"72h" doc:"How long a new topic keeps records. At least the longest give_up_after of tasks, since a run in flight may have no other home."`
	Compression       string        `key:"compression" default:"none" doc:"none, lz4, zstd, snappy or gzip."`
	Timeout           time.Duration `key:"timeout" default:"10s" doc:"How long a broker may wait for its replicas."`
	TLS               KafkaTLS      `key:"tls" doc:"Encrypted connections to the brokers."`
	Username          string        `key:"username" doc:"Login by SASL PLAIN. Default: none."`
	Password          string        `key:"password" secret:"true" doc:"Goes with username."`
}

// KafkaTLS says how connections to the brokers are encrypted.
type KafkaTLS struct {
	Enabled  bool   `key:"enabled" default:"false" doc:"Whether they are."`
	CAFile   string `key:"ca_file" doc:"Certificates that the brokers' are signed by. Default: the system's."`
	CertFile string `key:"cert_file" doc:"This program's certificate, if the brokers ask for one."`
	KeyFile  string `key:"key_file" doc:"Its key."`
}

// ZooKeeper says where dispatchers meet.
type ZooKeeper struct {
	Servers        []string      `key:"servers" doc:"Addresses, host:port."`
	Root           string        `key:"root" default:"/perceptor" doc:"The path under which everything lives."`
	Environment    string        `key:"environment" default:"BASE" doc:"Separates clusters that share a root."`
	SessionTimeout time.Duration `key:"session_timeout" default:"10s" doc:"After this long without contact a dispatcher counts as dead. At least 1s; the server may set another."`
	TakeoverAfter  time.Duration `key:"takeover_after" default:"5s" doc:"How long a live but stuck owner is waited for before its shards are taken over."`
	User           string        `key:"user" doc:"Digest credentials. Default: none."`
	Password       string        `key:"password" secret:"true" doc:"Goes with user."`
}

// Taskd is about the API.
type Taskd struct {
	GRPCAddr        string        `key:"grpc_addr" default:":7070" doc:"Address of the gRPC side."`
	HTTPAddr        string        `key:"http_addr" default:":7071" doc:"Address of the HTTP/JSON side. Empty: there is none."`
	OpsAddr         string        `key:"ops_addr" default:":7072" doc:"Address of the side for operators. Empty: there is none."`
	Grace           time.Duration `key:"grace" default:"10s" doc:"How long calls under way are waited for at a stop."`
	DrainDelay      time.Duration `key:"drain_delay" default:"0s" doc:"How long taskd goes on serving at a stop, reported as not ready, so that load balancers notice."`
	MinInterval     time.Duration `key:"min_interval" default:"1s" doc:"The shortest interval of a task; at least 10ms."`
	MinAckTimeout   time.Duration `key:"min_ack_timeout" default:"1s" doc:"The shortest ack_timeout of a task; at least 10ms."`
	MaxCalls        int           `key:"max_calls" default:"4096" doc:"How many calls may be under way; more are told to try again."`
	MaxRequestBytes int           `key:"max_request_bytes" default:"8388608" doc:"The largest request, in bytes."`
	MaxListScan     int           `key:"max_list_scan" default:"1000000" doc:"How many of a tenant's tasks a listing by kind, type or tags may have to look at, ten times as many with a range of due times; one of more is refused."`
	CallTimeout     time.Duration `key:"call_timeout" default:"30s" doc:"Ends a call that takes longer."`
	TLS             ServerTLS     `key:"tls" doc:"Encrypted connections to the API, both sides. The certificate is read again when its files change."`
}

// ServerTLS says how the API proves itself and whom it lets in.
type ServerTLS struct {
	CertFile     string `key:"cert_file" doc:"The certificate, with its chain. Default: no TLS."`
	KeyFile      string `key:"key_file" doc:"Its key."`
	ClientCAFile string `key:"client_ca_file" doc:"If set, callers must show a certificate signed by one of these, besides their token."`
}

// Dispatcher is about the process that fires what is due.
type Dispatcher struct {
	Name             string        `key:"name" doc:"What people see as the owner of shards. Default: the host's name and the process id."`
	OpsAddr          string        `key:"ops_addr" default:":7073" doc:"Address of the side for operators. Empty: there is none."`
	HintAddr         string        `key:"hint_addr" default:":7074" doc:"UDP address for hints from taskd about what has just become due. Empty: none, runs due at once are up to look_every late."`
	HintAdvertise    string        `key:"hint_advertise" doc:"host:port at which taskd reaches hint_addr. Default: the host's name, with the port of hint_addr."`
	Grace            time.Duration `key:"grace" default:"10s" doc:"How long the hand-over of shards may take at a stop."`
	ClaimShare       float64       `key:"claim_share" default:"1" doc:"The knob between lateness and CPU: how much of the time claims may take, added up over the databases. 2 claims twice as often while it is that what limits them; see the operations page."`
	ClaimAhead       time.Duration `key:"claim_ahead" default:"500ms" doc:"How far ahead of the clock runs are claimed, up to 2s. They are held in memory until they are due, and a database is claimed from when half of this has passed: large transactions, and still on time. A crash makes what was held late by the take-over, and a cancel within this time may be followed by the call. 0s: only what is due is claimed."`
	MinTick          time.Duration `key:"min_tick" default:"5ms" doc:"The shortest distance of two claims of a database that were not full."`
	MaxTick          time.Duration `key:"max_tick" default:"100ms" doc:"The longest, while something is due."`
	LookEvery        time.Duration `key:"look_every" default:"250ms" doc:"How often a database that has fired lately is looked at when nothing is known to be due."`
	MaxSleep         time.Duration `key:"max_sleep" default:"1s" doc:"The same for an idle one."`
	MaxRows          int           `key:"max_rows" default:"5000" doc:"The most rows of one claim."`
	ClaimConcurrency int           `key:"claim_concurrency" default:"4" doc:"How many databases are claimed from at once."`
	MaxRecords       int           `key:"max_records" default:"50000" doc:"The most records that are held or wait for Kafka's acknowledgement; then claims stop."`
	MaxBytes         int           `key:"max_bytes" default:"67108864" doc:"The same in bytes."`
	PublishTimeout   time.Duration `key:"publish_timeout" default:"15s" doc:"Ends a call to Kafka; its records are tried again."`
	BreakerAfter     int           `key:"breaker_after" default:"5" doc:"How many calls in a row must fail for a tenant before its runs are put off."`
}

// Chores is about what dispatchers do beside firing.
type Chores struct {
	Share       float64       `key:"share" default:"0.25" doc:"How much of the time of one core the chores of a process may take, above 0 and at most 1. What must be done before something is due takes more if it has to."`
	Concurrency int           `key:"concurrency" default:"2" doc:"How many of them are done at once; 1 to 16."`
	RecutEvery  time.Duration `key:"recut_every" default:"5m" doc:"How often far tasks that have been added are sorted into packs; at least 1s, and never less often than twice a horizon."`
	DemoteEvery time.Duration `key:"demote_every" default:"1m" doc:"How often rows that are not due for long are packed; at least 1s."`
	PurgeEvery  time.Duration `key:"purge_every" default:"10s" doc:"How often what has expired is removed and counters are folded; at least 100ms."`
	HistoryDays int           `key:"history_days" default:"7" doc:"How many days of run history are kept; at least 1."`
}
