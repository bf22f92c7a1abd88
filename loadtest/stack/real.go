package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/internal/testenv"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// RealOptions describe a real stack.
type RealOptions struct {
	// Taskds and Dispatchers are the numbers of processes, at least 1.
	Taskds, Dispatchers int
	// PostgresServers is the number of PostgreSQL servers of [Real]; 0 means one. The
	// databases are distributed evenly over them. The parts are named postgres, postgres-2,
	// and so on.
	PostgresServers int
	// Standby gives each server a synchronous standby. The programs have both in one connection string.
	Standby bool
	// History is the level of the tenant's history in lower case; "": the default.
	History string
	// Assignment is where dispatchers agree on owners: [InZooKeeper], the default, or [InPostgres].
	Assignment string
	// Session is the session timeout of dispatchers: the time until a dispatcher that vanished
	// loses its shards. 1 to 10 s.
	Session time.Duration
	// Settings change the programs' configuration: keys such as
	// dispatcher.max_tick, values as in the environment.
	Settings map[string]string
	// Postgres changes settings of postgresql.conf.
	Postgres map[string]string
	// Kafka changes settings of server.properties.
	Kafka map[string]string
	// Programs is the folder of the programs taskd and dispatcher. Empty: they are built
	// from this tree.
	Programs string
	// Migrate creates the tables of a server. nil: those of this tree.
	Migrate func(ctx context.Context, dsn string) error
	// Configure, if set, changes the sections of the configuration that all programs share. The servers
	// run already.
	Configure func(s *Stack, sections map[string]map[string]any) error
	// Secure says that every link is closed by TLS and logins, as for several machines.
	Secure bool
	// Open says that its links are open even where those of tests are to be closed, because servers of
	// others are added to it.
	Open bool
	// Keep says that the data directory is not removed.
	Keep bool
	// Progress is called with a message before each slow step.
	Progress func(string)
}

// Values of [RealOptions].Assignment.
const (
	InZooKeeper = "zookeeper"
	InPostgres  = "postgres"
)

const (
	ownAll = 60 * time.Second
	// Versions of the servers that package testenv starts.
	kafkaVersion     = "4.1.0"
	zookeeperVersion = "3.9.4"
)

// Real starts a stack of real parts. If it fails, it stops the parts that it has started.
func Real(ctx context.Context, o RealOptions) (*Stack, error) {
	return launch(ctx, o, func(s *Stack, dir string) error {
		r := &realStack{Stack: s, o: o, dir: dir}
		return r.start(ctx, r.startServers)
	})
}

// PostgresOnly starts a stack whose only part is a PostgreSQL server without Perceptor's
// tables. It uses only the options Postgres, Keep and Progress.
func PostgresOnly(ctx context.Context, o RealOptions) (*Stack, error) {
	return launch(ctx, o, func(s *Stack, dir string) error {
		o.Progress("starting PostgreSQL")
		return s.addPostgres(ctx, dir, o)
	})
}

// addPostgres starts a PostgreSQL server without Perceptor's tables.
func (s *Stack) addPostgres(ctx context.Context, dir string, o RealOptions) error {
	server, err := startPostgres(ctx, dir, o)
	if err != nil {
		return err
	}
	s.add("postgres", server)
	s.postgresDSN = server.DSN()
	s.Versions["postgres"], err = postgresVersion(ctx, s.postgresDSN)
	return err
}

// ServersOnly starts a stack of a PostgreSQL server without Perceptor's tables and a Kafka broker. It uses only
// the options Postgres, Kafka, Keep and Progress.
func ServersOnly(ctx context.Context, o RealOptions) (*Stack, error) {
	return launch(ctx, o, func(s *Stack, dir string) error {
		o.Progress("starting PostgreSQL and Kafka")
		if err := s.addPostgres(ctx, dir, o); err != nil {
			return err
		}
		kafka, err := testenv.StartKafkaWith(ctx, filepath.Join(dir, "kafka"), o.Kafka)
		if err != nil {
			return err
		}
		s.add("kafka", kafka)
		s.kafkaAddr, s.Versions["kafka"] = kafka.Addr(), kafkaVersion
		return nil
	})
}

// launch starts a stack in a directory that holds all its data. If start fails, launch
// stops the parts that it has started.
func launch(ctx context.Context, o RealOptions, start func(s *Stack, dir string) error) (*Stack, error) {
	dir, err := tempdir.New("perceptor-load-", o.Keep)
	if err != nil {
		return nil, err
	}
	if o.Keep {
		o.Progress("data and logs will be kept in " + dir.Path)
	}
	s := &Stack{Versions: map[string]string{}}
	s.onClose(dir.Close)
	if err := start(s, dir.Path); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

type realStack struct {
	*Stack
	o   RealOptions
	dir string

	// postgres has the connection string of each server, brokers and zookeepers the
	// addresses, as the programs use them.
	postgres, brokers, zookeepers []string
	// security closes the links; nil leaves them open.
	security *security
	// link returns the address through which others reach the server of a part that
	// listens at addr. nil means addr.
	link func(part, addr string) (string, error)
}

// start starts the servers and the programs.
func (r *realStack) start(ctx context.Context, startServers func(context.Context) error) error {
	r.Session = r.o.Session
	// Programs that are given may be of a release without these keys.
	if r.o.Secure || testenv.Secured() && r.o.Programs == "" && r.link == nil && !r.o.Open {
		if err := r.secure(); err != nil {
			return err
		}
	}
	r.o.Progress("starting PostgreSQL, Kafka and perhaps ZooKeeper, building taskd and dispatcher")
	build := r.o.Programs == ""
	if build {
		r.o.Programs = filepath.Join(r.dir, "bin")
	}
	programs := r.o.Programs
	var all errgroup.Group
	all.Go(func() error { return startServers(ctx) })
	all.Go(func() error {
		if !build {
			return nil
		}
		return buildPrograms(ctx, programs, "taskd", "dispatcher")
	})
	if err := all.Wait(); err != nil {
		return err
	}
	if err := r.trust(); err != nil {
		return err
	}
	admin, err := r.prepare(ctx)
	if err != nil {
		return err
	}
	r.o.Progress("starting taskd and dispatcher")
	if err := r.startPrograms(ctx); err != nil {
		return err
	}
	r.admin = admin
	if r.Token, err = r.CreateTenant(ctx, tenantName); err != nil {
		return err
	}
	if level := perceptorv1.Tenant_History_value[strings.ToUpper(r.o.History)]; level != 0 {
		t := &perceptorv1.Tenant{Name: tenantName, History: perceptorv1.Tenant_History(level)}
		if err := r.UpdateTenant(ctx, t, "history"); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, ownAll)
	defer cancel()
	return r.owners.AwaitAll(ctx, r.dispatcherNames())
}

// startServers starts one server of each kind.
func (r *realStack) startServers(ctx context.Context) error {
	var (
		all       errgroup.Group
		postgres  = make([]database, max(1, r.o.PostgresServers))
		kafka     *testenv.KafkaServer
		zookeeper *testenv.ZooKeeperServer
	)
	for i := range postgres {
		all.Go(func() (err error) {
			postgres[i], err = r.startDatabase(ctx, filepath.Join(r.dir, strconv.Itoa(i)))
			return err
		})
	}
	all.Go(func() (err error) {
		if r.o.Assignment == InPostgres {
			return nil
		}
		zookeeper, err = testenv.StartZooKeeper(ctx, filepath.Join(r.dir, "zookeeper"), r.security.zookeeperOptions()...)
		return err
	})
	all.Go(func() (err error) {
		kafka, err = r.security.startKafka(ctx, filepath.Join(r.dir, "kafka"), r.o.Kafka)
		return err
	})
	err := all.Wait()
	for i, server := range postgres {
		if server == nil {
			continue
		}
		name := "postgres"
		if i > 0 {
			name = fmt.Sprintf("postgres-%d", i+1)
		}
		r.add(name, server)
		r.postgres = append(r.postgres, server.DSN())
	}
	if zookeeper != nil {
		r.add("zookeeper", zookeeper)
		r.zookeepers, r.zookeeper = []string{zookeeper.Addr()}, zookeeper.Addr()
	}
	if kafka != nil {
		r.add("kafka", kafka)
		r.brokers, r.kafkaAddr = []string{kafka.Addr()}, kafka.Addr()
	}
	return err
}

// database is a PostgreSQL server, perhaps with a standby.
type database interface {
	Server
	DSN() string
}

// startDatabase starts a server, and its standby if it is to have one. What it returns was started, also
// beside an error.
func (r *realStack) startDatabase(ctx context.Context, dir string) (database, error) {
	tables, err := r.tables(ctx)
	if err != nil {
		return nil, err
	}
	options := append(r.security.postgresOptions(), tables)
	if !r.o.Standby {
		server, err := startPostgres(ctx, dir, r.o, options...)
		if server == nil {
			return nil, err
		}
		return server, err
	}
	pair := &Replicas{name: "postgres", dir: dir, syncOnly: true, options: options}
	if err := pair.start(ctx, r.o, false); err != nil {
		return nil, err
	}
	return pair, pair.Follow(ctx)
}

// secure makes the stack close its links.
func (r *realStack) secure() (err error) {
	dir := filepath.Join(r.dir, "certificates")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r.security, err = newSecurity(dir)
	return err
}

// trust makes clients of a secure stack trust its servers, once they are started.
func (r *realStack) trust() (err error) {
	if r.security == nil {
		return nil
	}
	r.CAFile, r.OpsToken, r.kafka = filepath.Join(r.dir, "trusted.pem"), r.security.opsToken, r.security.kafka
	if err := r.security.bundle(r.CAFile); err != nil {
		return err
	}
	r.TLS, err = testenv.Trust(r.CAFile)
	return err
}

// prepare creates the tables and returns the secret of an admin token.
func (r *realStack) prepare(ctx context.Context) (admin string, err error) {
	servers := make([]store.Server, len(r.postgres))
	for i, dsn := range r.postgres {
		servers[i].DSN = dsn
	}
	cluster, err := store.Open(ctx, store.Config{Servers: servers, Application: "loadtest"})
	if err != nil {
		return "", err
	}
	defer cluster.Close()
	if err := r.migrate(ctx, cluster); err != nil {
		return "", fmt.Errorf("migrate: %w", err)
	}
	_, admin, err = control.New(cluster, slog.New(slog.DiscardHandler)).CreateToken(ctx,
		control.Token{Scopes: control.AdminScope, Description: "load test", ExpiresAt: task.Never})
	if err != nil {
		return "", fmt.Errorf("create admin token: %w", err)
	}
	r.owners, r.postgresDSN = newOwners(r.postgres...), r.postgres[0]
	r.Versions["zookeeper"], r.Versions["kafka"] = zookeeperVersion, kafkaVersion
	r.Versions["postgres"], err = postgresVersion(ctx, r.postgresDSN)
	return admin, err
}

func (r *realStack) migrate(ctx context.Context, cluster *store.Cluster) error {
	if r.o.Migrate == nil {
		return cluster.Migrate(ctx, nil)
	}
	for _, dsn := range r.postgres {
		if err := r.o.Migrate(ctx, dsn); err != nil {
			return err
		}
	}
	return nil
}

// tables makes the only server of a stack begin with the tables of this tree, where tests have them ready.
func (r *realStack) tables(ctx context.Context) (testenv.PostgresOption, error) {
	if r.o.Migrate != nil || r.o.PostgresServers > 1 {
		return testenv.StartsWith(""), nil
	}
	dir, err := testenv.InitialData(ctx, storetest.Template())
	return testenv.StartsWith(dir), err
}

func startPostgres(ctx context.Context, dir string, o RealOptions, settings ...testenv.PostgresOption) (*testenv.PostgresServer, error) {
	for name, value := range o.Postgres {
		settings = append(settings, testenv.Setting(name, value))
	}
	return testenv.StartPostgres(ctx, filepath.Join(dir, "postgresql"), settings...)
}

func postgresVersion(ctx context.Context, dsn string) (version string, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the connection is not used again
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", fmt.Errorf("read PostgreSQL's version: %w", err)
	}
	return version, nil
}

func (r *realStack) startPrograms(ctx context.Context) error {
	config := filepath.Join(r.dir, "perceptor.yaml")
	if err := r.writeConfig(config); err != nil {
		return err
	}
	scheme, _ := r.security.opsClient()
	var addresses []string
	for i := range r.o.Taskds {
		a, err := freeAddresses(3)
		if err != nil {
			return err
		}
		name, address := fmt.Sprintf("taskd-%d", i+1), a[0]
		keys := map[string]string{"taskd.grpc_addr": a[0], "taskd.http_addr": a[1], "taskd.ops_addr": a[2]}
		if err := r.startProgram(ctx, config, name, a[2], keys); err != nil {
			return err
		}
		if r.HTTP == "" {
			r.HTTP = scheme + "://" + a[1]
		}
		if r.link != nil {
			if address, err = r.link(name, address); err != nil {
				return err
			}
		}
		addresses = append(addresses, address)
	}
	r.Address = strings.Join(addresses, ",")
	for _, name := range r.dispatcherNames() {
		a, err := freeAddresses(2)
		if err != nil {
			return err
		}
		keys := map[string]string{
			"dispatcher.name": name, "dispatcher.ops_addr": a[0], "dispatcher.hint_addr": a[1], "dispatcher.hint_advertise": a[1],
		}
		if err := r.startProgram(ctx, config, name, a[0], keys); err != nil {
			return err
		}
	}
	return nil
}

func (r *realStack) dispatcherNames() []string {
	names := make([]string, r.o.Dispatchers)
	for i := range names {
		names[i] = fmt.Sprintf("dispatcher-%d", i+1)
	}
	return names
}

func freeAddresses(n int) ([]string, error) {
	addrs := make([]string, n)
	for i := range addrs {
		port, err := subprocess.FreePort()
		if err != nil {
			return nil, err
		}
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return addrs, nil
}

// writeConfig writes the configuration that all programs share.
func (r *realStack) writeConfig(path string) error {
	r.sections, r.config = r.shared(), path
	if r.o.Configure != nil {
		if err := r.o.Configure(r.Stack, r.sections); err != nil {
			return err
		}
	}
	return r.Reconfigure(func(map[string]map[string]any) {})
}

// Reconfigure changes the configuration that all programs share, for those that start from now on.
func (s *Stack) Reconfigure(change func(sections map[string]map[string]any)) error {
	change(s.sections)
	text, err := yaml.Marshal(s.sections)
	if s.assignment != "" {
		text = append(text, "assignment: "+s.assignment+"\n"...)
	}
	if err == nil {
		err = os.WriteFile(s.config, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// shared returns the sections of the configuration.
func (r *realStack) shared() map[string]map[string]any {
	servers := make([]map[string]string, len(r.postgres))
	for i, dsn := range r.postgres {
		servers[i] = map[string]string{"dsn": dsn}
	}
	sections := map[string]map[string]any{
		"postgres": {"servers": servers},
		"kafka":    {"brokers": r.brokers},
	}
	if session := map[string]any{"session_timeout": r.o.Session.String()}; r.o.Assignment == InPostgres {
		sections["leases"], r.assignment = session, InPostgres
	} else {
		session["servers"] = r.zookeepers
		sections["zookeeper"] = session
	}
	r.security.configure(sections)
	return sections
}

// startProgram starts taskd or dispatcher. keys are the configuration keys of this process alone.
func (r *realStack) startProgram(ctx context.Context, config, name, opsAddr string, keys map[string]string) error {
	binary, _, _ := strings.Cut(name, "-")
	scheme, asks := r.security.opsClient()
	p := &program{
		name: name, asks: asks, path: filepath.Join(r.o.Programs, binary), logPath: filepath.Join(r.dir, name+".log"),
		readyURL: scheme + "://" + opsAddr + "/readyz", env: []string{"PERCEPTOR_CONFIG=" + config},
	}
	for _, settings := range []map[string]string{keys, r.o.Settings} {
		for key, value := range settings {
			p.env = append(p.env, "PERCEPTOR_"+strings.ToUpper(strings.ReplaceAll(key, ".", "_"))+"="+value)
		}
	}
	r.add(name, p)
	return p.start(ctx)
}
