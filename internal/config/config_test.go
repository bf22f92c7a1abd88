package config

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

var write = flag.Bool("write", false, "write docs/configuration.md")

// load makes a configuration from a file's text, variables and flags.
func load(t *testing.T, file string, environ []string, args ...string) (*Loaded, error) {
	t.Helper()
	src := Sources{Environ: append([]string{"HOME=/"}, environ...), Flags: pflag.NewFlagSet("", pflag.ContinueOnError)}
	if file != "" {
		src.File = filepath.Join(t.TempDir(), "perceptor.yaml")
		if err := os.WriteFile(src.File, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Register(src.Flags)
	if err := src.Flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(src)
}

func TestDefaultsAreValidButForWhatMustBeGiven(t *testing.T) {
	l, err := load(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Validate(0); err != nil {
		t.Error(err)
	}
	l.Assignment = InZooKeeper
	err = l.Validate(NeedPostgres | NeedKafka | NeedAssignment)
	for _, key := range []string{"postgres.servers", "kafka.brokers", "zookeeper.servers"} {
		if err == nil || !strings.Contains(err.Error(), key+": is missing") {
			t.Errorf("%s: got %v", key, err)
		}
	}
	if l.Taskd.GRPCAddr != ":7070" || l.Taskd.Grace != 10*time.Second || l.Dispatcher.ClaimShare != 1 || l.Kafka.Partitions != 8 {
		t.Errorf("got %+v", l.Config)
	}
}

func TestPostgresIsWhereDispatchersAgreeUnlessZooKeeperIsGiven(t *testing.T) {
	for _, c := range []struct{ file, want, fault string }{
		{"", InPostgres, "postgres.servers: is missing"},
		{"postgres: {servers: [{dsn: x}]}", InPostgres, ""},
		{"zookeeper: {servers: ['127.0.0.1:1']}", InZooKeeper, ""},
		{"assignment: postgres\nzookeeper: {servers: ['127.0.0.1:1']}\npostgres: {servers: [{dsn: x}]}", InPostgres, ""},
		{"assignment: zookeeper", InZooKeeper, "zookeeper.servers: is missing"},
		{"assignment: etcd", "etcd", `assignment: "etcd"`},
		{"postgres: {servers: [{dsn: x}]}\nleases: {session_timeout: 10ms}", InPostgres, "leases.session_timeout: 10ms"},
	} {
		l, err := load(t, c.file, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Validate(NeedAssignment)
		if got := l.Coordinator(); got != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %s, %v", c.file, got, err)
		}
	}
}

func TestFlagsGoBeforeVariablesAndVariablesBeforeTheFile(t *testing.T) {
	file := "taskd: {grace: 1s, grpc_addr: ':1', http_addr: ':1'}\nkafka: {brokers: [a:1]}"
	l, err := load(t, file, []string{"PERCEPTOR_TASKD_GRACE=2s", "PERCEPTOR_TASKD_GRPC_ADDR=:2", "PERCEPTOR_KAFKA_BROKERS=b:1, c:2"}, "--taskd.grace=3s")
	if err != nil {
		t.Fatal(err)
	}
	if l.Taskd.Grace != 3*time.Second || l.Taskd.GRPCAddr != ":2" || l.Taskd.HTTPAddr != ":1" || l.Taskd.OpsAddr != "127.0.0.1:7072" {
		t.Errorf("got %+v", l.Taskd)
	}
	if diff := cmp.Diff([]string{"b:1", "c:2"}, l.Kafka.Brokers); diff != "" {
		t.Error(diff)
	}
}

func TestServersAreReadFromEverySource(t *testing.T) {
	want := []Server{{DSN: "postgres://a/x", Databases: []int{0, 1}}, {DSN: "postgres://b/x"}}
	list := "[{dsn: 'postgres://a/x', databases: [0, 1]}, {dsn: 'postgres://b/x'}]"
	for name, l := range map[string]func() (*Loaded, error){
		"file": func() (*Loaded, error) { return load(t, "postgres: {servers: "+list+"}", nil) },
		"env":  func() (*Loaded, error) { return load(t, "", []string{"PERCEPTOR_POSTGRES_SERVERS=" + list}) },
		"flag": func() (*Loaded, error) { return load(t, "", nil, "--postgres.servers", list) },
	} {
		got, err := l()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, got.Postgres.Servers); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	one, err := load(t, "", []string{"PERCEPTOR_POSTGRES_SERVERS=postgres://a/x?y=1,2"})
	if err != nil || len(one.Postgres.Servers) != 1 || one.Postgres.Servers[0].DSN != "postgres://a/x?y=1,2" {
		t.Errorf("one alone: got %+v, %v", one, err)
	}
}

func TestAFileThatWouldBeInForceInPartIsRefused(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"a second document", "log: {level: debug}\n---\nassignment: zookeeper\n", "line 2: a second document"},
		{"a key with two values", "kafka.timeout: 5s\nkafka: {timeout: 7s}\n", "kafka.timeout is given twice"},
		{"a key with two values, deeper", "kafka: {tls.enabled: false, tls: {enabled: true}}\n", "kafka.tls.enabled is given twice"},
	} {
		if _, err := load(t, c.file, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
	for _, file := range []string{"---\nlog: {level: debug}\n...\n", "log.level: debug\nlog: {format: text}\n", "log: {level: debug}\n---\n", "# nothing\n", ""} {
		if _, err := load(t, file, nil); err != nil {
			t.Errorf("%q: %v", file, err)
		}
	}
}

func TestWrongKeysAndTypesAreNamed(t *testing.T) {
	for _, c := range []struct {
		name, file, env, want string
	}{
		{"unknown key", "taskd: {grcp_addr: x}", "", "unknown key taskd.grcp_addr; did you mean taskd.grpc_addr?"},
		{"unknown section", "postgre: {max_connections: 1}", "", "unknown key postgre.max_connections; did you mean postgres.max_connections?"},
		{"unknown top key", "start_timout: 1s", "", "unknown key start_timout; did you mean start_timeout?"},
		{"empty unknown section", "kafak: {}", "", "unknown key kafak; did you mean kafka?"},
		{"unknown section that is a value", "taskd: {oidcc: 1}", "", "unknown key taskd.oidcc; did you mean taskd.oidc?"},
		{"nothing alike", "database: {dsn: x}", "", "unknown key database.dsn"},
		{"unknown server key", "postgres: {servers: [{dns: x}]}", "", "unknown key postgres.servers[0].dns; did you mean postgres.servers[0].dsn?"},
		{"unknown variable", "", "PERCEPTOR_TASKD_GRCP_ADDR=x", "unknown environment variable PERCEPTOR_TASKD_GRCP_ADDR; did you mean PERCEPTOR_TASKD_GRPC_ADDR?"},
		{"duration without unit", "taskd: {grace: 10}", "", `taskd.grace: "10" is not a duration, such as 1s or 250ms`},
		{"duration that is none", "", "PERCEPTOR_TASKD_GRACE=soon", `taskd.grace: "soon" is not a duration`},
		{"number that is none", "kafka: {partitions: many}", "", `kafka.partitions: "many" is not a whole number`},
		{"fraction", "kafka: {partitions: 1.5}", "", `kafka.partitions: "1.5" is not a whole number`},
		{"bool that is none", "", "PERCEPTOR_OPS_PPROF=perhaps", `ops.pprof: "perhaps" is not true or false`},
		{"list that is none", "kafka: {brokers: a:1}", "", `is not a list of texts`},
		{"text that is none", "log: {level: 3}", "", `log.level: "3" is not a text`},
		{"secret of the wrong type", "kafka: {sasl: {password: 12345}}", "", "kafka.sasl.password: the value is not a text"},
		{"section that is a value", "taskd: 3", "", "taskd: is a section: give the keys that it has, such as taskd.grpc_addr"},
		{"databases that are none", "postgres: {servers: [{databases: [x]}]}", "", "postgres.servers[0].databases: x is not a number"},
		{"storage that is none", "postgres: {servers: [{storage: much}]}", "", "postgres.servers[0].storage: much is not a size, such as 500GB or 1.5TiB"},
		{"storage of nothing", "postgres: {servers: [{storage: 0GB}]}", "", "postgres.servers[0].storage: 0GB is not a size"},
		{"servers with a comma between them", "", "PERCEPTOR_POSTGRES_SERVERS=postgres://u:12345@a/x,postgres://u:12345@b/x", "postgres.servers: several servers need a list, such as [{dsn: URL}, {dsn: URL}]"},
		{"not YAML", "a: [", "", "perceptor.yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var environ []string
			if c.env != "" {
				environ = []string{c.env}
			}
			_, err := load(t, c.file, environ)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
			if c.name == "nothing alike" && err != nil && strings.Contains(err.Error(), "did you mean") {
				t.Errorf("got %v, a wrong hint", err)
			}
			if err != nil && strings.Contains(err.Error(), "12345") {
				t.Errorf("a secret is shown: %v", err)
			}
		})
	}
}

func TestAllFaultsAreNamedAtOnce(t *testing.T) {
	_, err := load(t, "a: 1\ntaskd: {grace: 1}", []string{"PERCEPTOR_B=1"})
	for _, want := range []string{"unknown key a", "taskd.grace", "PERCEPTOR_B"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

func TestVariablesThatOthersSetAreLeftAlone(t *testing.T) {
	_, err := load(t, "", []string{
		"PERCEPTOR_PORT=tcp://10.0.0.1:7070", "PERCEPTOR_SERVICE_HOST=10.0.0.1", "PERCEPTOR_PORT_7070_TCP_ADDR=10.0.0.1",
		"PERCEPTOR_SERVICE_PORT_GRPC=7070", "PERCEPTOR_TOKEN=x", "PERCEPTOR_CONTEXT=prod", "PERCEPTOR_CONTEXTS=/x", "PERCEPTOR_TEST_KAFKA=x:1", "PERCEPTOR_TASKD_SERVICE_HOST=10.0.0.1",
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAMissingFileIsNamed(t *testing.T) {
	_, err := Load(Sources{File: "/no/such.yaml", Environ: []string{}})
	if err == nil || !strings.Contains(err.Error(), "/no/such.yaml does not exist") {
		t.Errorf("got %v", err)
	}
}

func TestListenAddressesAreApart(t *testing.T) {
	for _, c := range []struct{ addrs, want string }{
		{"grpc_addr: ':1', http_addr: ':2', ops_addr: '127.0.0.1:3'", ""},
		{"grpc_addr: ':0', http_addr: ':0', ops_addr: '127.0.0.1:0'", ""},
		{"grpc_addr: '127.0.0.1:1', http_addr: '127.0.0.2:1', ops_addr: ''", ""},
		{"grpc_addr: ':1', http_addr: ':1'", `taskd.http_addr: ":1" has the port of taskd.grpc_addr, which is ":1"`},
		{"grpc_addr: '[::]:1', ops_addr: '127.0.0.1:1'", `taskd.ops_addr: "127.0.0.1:1" has the port of taskd.grpc_addr, which is "[::]:1"`},
		{"http_addr: '127.0.0.1:1', ops_addr: '127.0.0.1:1'", `taskd.ops_addr: "127.0.0.1:1" has the port of taskd.http_addr, which is "127.0.0.1:1"`},
	} {
		l, err := load(t, "taskd: {"+c.addrs+"}", nil)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Validate(NeedPostgres)
		if refused := err != nil && strings.Contains(err.Error(), "has the port of"); refused != (c.want != "") || refused && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.addrs, err, c.want)
		}
	}
}

func TestBrokenRulesAreNamedWithKeyAndValue(t *testing.T) {
	l, err := load(t, `
start_timeout: -1s
log: {level: loud, format: xml}
postgres: {servers: [{databases: [16]}], max_connections: 0, statement_timeout: 1000h, lock_timeout: 1ms, idle_in_transaction_timeout: 25d}
tasks: {catch_up_interval: 0s, dead_retention: 30m}
kafka: {brokers: [nowhere], topic_prefix: "a b/", timeout: 1000h, partitions: 0, compression: rar, sasl: {username: me}, tls: {ca_file: x}, signing_secret: short, users: {mode: all, fetch_rate: 1}}
zookeeper: {root: perceptor, session_timeout: 10ms, password: p}
taskd: {grpc_addr: "", http_addr: "here", min_interval: 1ms, tls: {key_file: k}, console: {url: "perceptor/x", login: {client_id: c, token: refresh}}}
dispatcher: {claim_share: 0, claim_ahead: 3s, max_tick: 1ms, peek_every: 2ms, max_sleep: 1ms, hint_advertise: ":1"}
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = l.Validate(NeedPostgres)
	for _, want := range []string{
		"start_timeout: -1s is below 0s", `log.level: "loud" is not one of debug, info, warn, error`, `log.format: "xml"`,
		"postgres.servers[0].dsn: is missing", "postgres.servers[0].databases: 16 is not between 0 and 15",
		"tasks.catch_up_interval: 0s is not between 1ms and 1h0m0s", "tasks.dead_retention: 30m0s is not between 1h0m0s and 87600h0m0s",
		"postgres.max_connections: 0 is not between 1 and 100", `kafka.brokers: "nowhere" is not host:port`,
		"kafka.partitions: 0", `kafka.compression: "rar"`, "kafka.sasl.password: is missing: kafka.sasl.username is given",
		"kafka.signing_secret: has fewer than 16 bytes", `kafka.users.mode: "all" is not one of none, managed, manual`, "kafka.users.fetch_rate: 1 is not between",
		"kafka.tls.enabled: false", `zookeeper.root: "perceptor"`, "zookeeper.session_timeout: 10ms is below 1s",
		"zookeeper.user: is missing", "taskd.grpc_addr: is empty", `taskd.http_addr: "here"`, "taskd.min_interval: 1ms is below 10ms",
		"taskd.tls.cert_file: is missing", "dispatcher.claim_share: 0", "dispatcher.claim_ahead: 3s is not between 0s and 2s", "dispatcher.max_tick: 1ms is below dispatcher.min_tick, which is 5ms",
		"dispatcher.peek_every: 2ms is below dispatcher.min_tick, which is 5ms", "dispatcher.max_sleep: 1ms is below dispatcher.peek_every, which is 2ms",
		"postgres.statement_timeout: 1000h0m0s is not between 100ms and 24h0m0s", "postgres.lock_timeout: 1ms is not between", "postgres.idle_in_transaction_timeout: 600h0m0s is not between",
		`kafka.topic_prefix: "a b/" is not made of up to 100 letters`, "kafka.timeout: 1000h0m0s is not between 100ms and 1h0m0s",
		`dispatcher.hint_advertise: ":1" is not host:port`, `taskd.console.url: "perceptor/x" is not an address`,
		`taskd.console.login.token: "refresh" is neither id nor access`, "taskd.oidc.issuer: is missing: taskd.console.login.client_id is given",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestAnAddressOfTheConsoleIsRefusedAlsoWhereNobodyLogsInByIt(t *testing.T) {
	for file, want := range map[string]string{
		"taskd: {console: {url: perceptor.example.com}}":    `taskd.console.url: "perceptor.example.com" is not an address such as https://`,
		"taskd: {console: {login: {client_id: c}}}":         "taskd.console.url: is missing: taskd.console.login.client_id is given",
		"taskd: {console: {url: 'https://a.example.com/'}}": "",
	} {
		l, err := load(t, file, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Validate(0)
		if named := err != nil && strings.Contains(err.Error(), "taskd.console.url"); named != (want != "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}

func TestOpenLinksAreRefused(t *testing.T) {
	const near = "kafka: {brokers: ['127.0.0.1:1', 'localhost:1', '[::1]:1']}\nzookeeper: {servers: ['127.0.0.9:1']}\ntaskd: {grpc_addr: '127.0.0.1:1', http_addr: ''}\n"
	far := func(more string) string { return near + more }
	const serving, dispatching = NeedKafka | ListensTaskd, NeedKafka | NeedAssignment | ListensDispatcher
	for _, c := range []struct {
		name, file string
		needs      Need
		want       []string
	}{
		{"loopback", near, serving | dispatching, nil},
		{"defaults of taskd", "kafka: {brokers: ['127.0.0.1:1']}", serving, []string{
			`taskd.grpc_addr: ":7070" is not on loopback, and the link has no TLS: set taskd.tls.cert_file and taskd.tls.key_file; or set insecure: true`,
			`taskd.http_addr: ":7071" is not on loopback`,
		}},
		{"a program that does not listen", "", 0, nil},
		{"api with TLS", far("taskd: {grpc_addr: '0.0.0.0:1', tls: {cert_file: c, key_file: k}}"), serving, nil},
		{"a name is not loopback", far("taskd: {grpc_addr: 'api.localhost:1'}"), serving, []string{`taskd.grpc_addr: "api.localhost:1" is not on loopback`}},
		{"kafka", far("kafka: {brokers: ['127.0.0.1:1', 'k:2']}"), serving, []string{`kafka.brokers: "k:2" is not on loopback, and the link has no TLS: set kafka.tls.enabled: true`}},
		{"kafka with TLS", far("kafka: {brokers: ['k:2'], tls: {enabled: true}}"), serving, nil},
		{"zookeeper", far("zookeeper: {servers: ['z:1']}"), dispatching, []string{
			`zookeeper.servers: "z:1" is not on loopback, and the link has no TLS: set zookeeper.tls.enabled: true`,
			`zookeeper.servers: "z:1" is not on loopback, and anyone may change who owns which shard: set zookeeper.user and zookeeper.password`,
		}},
		{"zookeeper with TLS", far("zookeeper: {servers: ['z:1'], tls: {enabled: true}, user: u, password: p}"), dispatching, nil},
		{"ops of taskd", far("taskd: {ops_addr: ':1'}"), serving, []string{
			`taskd.ops_addr: ":1" is not on loopback, and the link has no TLS: set ops.tls.cert_file and ops.tls.key_file`,
			`taskd.ops_addr: ":1" is not on loopback, and anyone may read the names of tenants: set ops.token`,
		}},
		{"ops of a dispatcher", far("dispatcher: {ops_addr: ':1'}"), dispatching, []string{`dispatcher.ops_addr: ":1" is not on loopback`, "set ops.token"}},
		{"ops with TLS and token", far("dispatcher: {ops_addr: ':1'}\nops: {token: 0123456789abcdef, tls: {cert_file: c, key_file: k}}"), dispatching, nil},
		{"insecure", "insecure: true\nkafka: {brokers: ['k:1']}\nzookeeper: {servers: ['z:1']}", serving | dispatching, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := map[string]string{} // a later section replaces an earlier one
			for line := range strings.Lines(c.file) {
				top, _, _ := strings.Cut(line, ":")
				text[top] = strings.TrimSpace(line)
			}
			l, err := load(t, strings.Join(slices.Collect(maps.Values(text)), "\n"), nil)
			if err != nil {
				t.Fatal(err)
			}
			err = l.Validate(c.needs)
			if len(c.want) == 0 && err != nil {
				t.Errorf("got %v", err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
}

func TestHalfOfAPairIsRefused(t *testing.T) {
	for file, want := range map[string]string{
		"taskd: {tls: {cert_file: c}}":                                  "taskd.tls.key_file: is missing: taskd.tls.cert_file is given",
		"taskd: {tls: {key_file: k}}":                                   "taskd.tls.cert_file: is missing: taskd.tls.key_file is given",
		"taskd: {tls: {client_ca_file: c}}":                             "taskd.tls.client_ca_file",
		"ops: {tls: {cert_file: c}}":                                    "ops.tls.key_file: is missing",
		"ops: {tls: {key_file: k}}":                                     "ops.tls.cert_file: is missing",
		"ops: {token: short}":                                           "ops.token: has 5 characters",
		"zookeeper: {tls: {enabled: true, cert_file: c}}":               "zookeeper.tls.key_file: is missing",
		"zookeeper: {tls: {enabled: true, key_file: k}}":                "zookeeper.tls.cert_file: is missing",
		"zookeeper: {tls: {ca_file: c}}":                                "zookeeper.tls.enabled: false",
		"zookeeper: {user: u}":                                          "zookeeper.password: is missing",
		"kafka: {tls: {enabled: true, cert_file: c}}":                   "kafka.tls.key_file: is missing",
		"assignment: etcd":                                              `assignment: "etcd" is not one of postgres, zookeeper`,
		"taskd: {tls: {cert_file: c, key_file: k, client_certs: some}}": `taskd.tls.client_certs: "some" is not one of required, optional`,
	} {
		l, err := load(t, file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Validate(0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", file, err, want)
		}
	}
}

// TestASectionWhoseKeysAreCommentsIsLikeNone, but a key without a value is a mistake.
func TestASectionWhoseKeysAreCommentsIsLikeNone(t *testing.T) {
	t.Parallel()
	l, err := load(t, "taskd:\n  # grace: 1s\nkafka:\n  tls:\n    # enabled: true\nlog:\n  level: debug\n", nil)
	if err != nil || l.Log.Level != "debug" {
		t.Errorf("log.level = %q, %v", l.Log.Level, err)
	}
	for file, want := range map[string]string{"log:\n  level:\n": "log.level", "kafak:\n": "kafak"} {
		if _, err := load(t, file, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want a fault of %s", file, err, want)
		}
	}
}

func TestAFileWithoutKeysIsRefusedInWordsForPeople(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"- a", "[]", "pct_secret", "# a comment\n5"} {
		_, err := load(t, text, nil)
		if err == nil || !strings.Contains(err.Error(), "keys and their values are needed, such as log.level: info") || strings.Contains(err.Error(), "pct_") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "# nothing", "{}", "---\n"} {
		if _, err := load(t, text, nil); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestALoginToKafkaThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"sasl: {mechanism: PLAIN, username: u, password: p}":                                         "kafka.sasl.mechanism: PLAIN sends a secret: kafka.tls.enabled must be true",
		"sasl: {token_file: f}":                                                                      "kafka.sasl.mechanism: OAUTHBEARER sends a secret: kafka.tls.enabled must be true",
		"sasl: {mechanism: OAUTHBEARER}":                                                             "kafka.sasl.token_file: is missing: OAUTHBEARER needs one",
		"sasl: {mechanism: SCRAM-SHA-256}":                                                           "kafka.sasl.username: is missing: SCRAM-SHA-256 needs one",
		"sasl: {mechanism: GSSAPI}":                                                                  `kafka.sasl.mechanism: "GSSAPI" is not one of`,
		"sasl: {username: u, password: p, token_file: f}":                                            `kafka.sasl.token_file: "f" has no effect with SCRAM-SHA-512`,
		"tls: {enabled: true, cert_file: c}":                                                         "kafka.tls.key_file: is missing: kafka.tls.cert_file is given",
		"tls: {enabled: true}, sasl: {mechanism: PLAIN, username: u, password: p}":                   "",
		"tls: {enabled: true}, sasl: {token_file: f}":                                                "",
		"sasl: {username: u, password: p}, users: {mode: managed}, signing_secret: 0123456789abcdef": "",
	} {
		l, err := load(t, "kafka: {brokers: ['127.0.0.1:1'], "+text+"}", nil)
		if err != nil {
			t.Fatal(err)
		}
		switch err := l.Validate(NeedKafka); {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestPrintShowsOriginsAndNoSecrets(t *testing.T) {
	file := "postgres: {servers: [{dsn: 'postgres://me:hush1@h:1/db?sslpassword=hush2', databases: [3, 4]}, {dsn: 'host=h password=hush3 user=me'}]}\n" +
		"kafka: {sasl: {username: u, password: hush4}}"
	l, err := load(t, file, []string{"PERCEPTOR_TASKD_GRACE=2s"}, "--log.level=debug")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := l.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  grace: 2s  # env PERCEPTOR_TASKD_GRACE\n", "  level: \"debug\"  # flag --log.level\n", "start_timeout: 30s  # default\n",
		"  password: \"***\"  # file ", "    - dsn: \"postgres://me:***@h:1/db?sslpassword=***\"\n      databases: [3, 4]\n",
		"    - dsn: \"host=h password=*** user=me\"\n", "  tls:\n    enabled: false  # default\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "hush") {
		t.Errorf("a secret is shown:\n%s", out.String())
	}
	again, err := load(t, out.String(), nil)
	if err != nil {
		t.Fatalf("the printed configuration cannot be loaded: %v", err)
	}
	if !reflect.DeepEqual(again.Taskd, l.Taskd) || again.Log != l.Log || again.Dispatcher != l.Dispatcher {
		t.Error("the printed configuration differs after loading")
	}
}

func TestMaskDSNHidesEveryPassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u:p@h/d":               "postgres://u:***@h/d",
		"postgres://u@h/d":                 "postgres://u@h/d",
		"postgres://h/d?password=p&x=1":    "postgres://h/d?password=***&x=1",
		"host=h password='p q' user=u":     "host=h password=*** user=u",
		"host=h PASSWORD = p user=u":       "host=h PASSWORD = *** user=u",
		"postgres://u:p@h:notaport/d?a=%z": "***",
	} {
		if got := MaskDSN(dsn); got != want {
			t.Errorf("%s: got %s, want %s", dsn, got, want)
		}
	}
}

func TestKeysHaveDistinctNamesAndWords(t *testing.T) {
	for _, f := range []func(Key) string{func(k Key) string { return k.Name }, Key.Env, Key.Flag} {
		all := names(keys, f)
		slices.Sort(all)
		if n := len(slices.Compact(slices.Clone(all))); n != len(keys) {
			t.Errorf("%d keys have %d names", len(keys), n)
		}
	}
	for _, k := range Keys() {
		if k.Doc == "" {
			t.Errorf("%s has no documentation", k.Name)
		}
		if injected.MatchString(k.Env()) || otherVariables[k.Env()] {
			t.Errorf("%s would be ignored as a variable of another program", k.Env())
		}
	}
}

func TestReferencePageIsCurrent(t *testing.T) {
	const page = "../../docs/configuration.md"
	var want bytes.Buffer
	if err := Reference(&want); err != nil {
		t.Fatal(err)
	}
	if *write {
		if err := os.WriteFile(page, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not current: run go generate ./internal/config", page)
	}
}

func TestDocumentsNameKeysThatExist(t *testing.T) {
	top := map[string]bool{}
	for _, s := range sections {
		first, _, _ := strings.Cut(s.name, ".")
		top[first] = true
	}
	named := regexp.MustCompile("`(--)?([a-z]+\\.[a-z_.-]+)")
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			name := strings.ReplaceAll(strings.TrimRight(m[2], "."), "-", "_")
			if first, _, _ := strings.Cut(name, "."); !top[first] || strings.HasSuffix(name, ".go") {
				continue
			}
			if _, ok := keyByName[name]; !ok && !slices.ContainsFunc(sections, func(s section) bool { return s.name == name }) {
				t.Errorf("%s names the key %s, which does not exist", filepath.Base(page), m[2])
			}
		}
	}
}
