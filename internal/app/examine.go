package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/identity"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// State is the result of a check.
type State string

// The states of a [Finding].
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
)

// Finding is the result of one check of [Examine].
type Finding struct {
	State State  `json:"state"`
	Part  string `json:"part"`
	What  string `json:"what"`
	// Cure says what to do.
	Cure string `json:"cure,omitempty"`
}

// Examine checks every configured part of an installation. It changes nothing, except that
// its connections adopt databases that have failed over.
func Examine(ctx context.Context, c *config.Config) []Finding {
	e := &examination{config: c}
	e.certificates()
	if len(c.Postgres.Servers) == 0 {
		e.add(Warning, "postgres", "not checked: postgres.servers is not configured")
		e.brokers(ctx, nil)
		return e.findings
	}
	cluster, err := OpenTool(ctx, c, "perceptor-doctor")
	if err != nil {
		return append(e.findings, Finding{State: Failed, Part: "postgres", What: err.Error()})
	}
	defer cluster.Close()
	e.all(ctx, cluster)
	return e.findings
}

// all examines everything over the connections of a cluster.
func (e *examination) all(ctx context.Context, cluster *store.Cluster) {
	e.postgres(ctx, cluster)
	e.brokers(ctx, control.New(cluster, nil))
	if !e.single {
		e.assignment(ctx, cluster)
	}
}

// brokers examines Kafka, with the topics of the tenants if they can be read.
func (e *examination) brokers(ctx context.Context, tenants *control.Store) {
	if len(e.config.Kafka.Brokers) == 0 {
		e.add(Warning, "kafka", "not checked: kafka.brokers is not configured")
		return
	}
	e.kafka(ctx, tenants)
}

type examination struct {
	config *config.Config
	// virtual says that the databases have a virtual clock on purpose, single that one process
	// owns all shards.
	virtual, single bool
	// owner is the only owner of all shards, if there is one. owned says that all have one.
	owner string
	owned bool
	// itself says that a process that runs examines itself: its sessions were checked at its start, its secret is that of all,
	// and it examines the newest figures more often than everything else.
	itself   bool
	findings []Finding
}

func (e *examination) add(state State, part, format string, args ...any) {
	e.findings = append(e.findings, Finding{State: state, Part: part, What: fmt.Sprintf(format, args...)})
}

// fail adds an error, with what to do about it.
func (e *examination) fail(part string, err error) {
	e.findings = append(e.findings, Finding{State: Failed, Part: part, What: oneLine(err), Cure: store.Cure(err)})
}

// cure adds what to do about the last finding.
func (e *examination) cure(text string) { e.findings[len(e.findings)-1].Cure = text }

func (e *examination) postgres(ctx context.Context, cluster *store.Cluster) {
	if !e.itself && !e.sessions(ctx, cluster) { // a process that runs has checked them at its start
		return
	}
	away, err := awayDatabases(ctx, cluster)
	if len(away) > 0 {
		e.fail("postgres", fmt.Errorf("%d of %d databases do not answer %v: %w", len(away), task.Databases, away, err))
		return
	}
	e.add(OK, "postgres", "all %d databases answer", task.Databases)
	e.connections(ctx, cluster)
	e.disks(ctx, cluster)
	versions, err := checkDatabases(ctx, cluster)
	if err != nil {
		e.fail("schema", err)
		return
	}
	if versions.Current() {
		e.add(OK, "schema", "every database is up to date")
		e.schema(ctx, cluster)
	} else {
		e.add(Warning, "schema", "%s", versions)
		e.cure("finish the upgrade: run perceptorctl migrate up of the newest release, and exchange the programs")
	}
	if err := checkClock(ctx, cluster); err != nil && !e.virtual {
		e.add(Failed, "clock", "%s", oneLine(err))
	}
	e.clocks(ctx, cluster)
	e.adoptions(ctx, cluster)
	e.places(ctx, cluster)
	e.tenants(ctx, control.New(cluster, nil))
	e.owners(ctx, cluster)
	e.outbox(ctx, cluster)
	e.rows(ctx, cluster)
	e.far(ctx, cluster)
	if !e.itself {
		e.figures(ctx, cluster)
	}
}

// disks finds servers without room. Their databases answer, and what needs no room goes on.
func (e *examination) disks(ctx context.Context, cluster *store.Cluster) {
	var roomy []string
	for _, d := range cluster.FirstOfServers() {
		if err := cluster.Room(ctx, d); err != nil {
			e.fail("disk", fmt.Errorf("%s: %w", cluster.ServerAddress(d), err))
			continue
		}
		roomy = append(roomy, cluster.ServerAddress(d))
	}
	if len(roomy) > 0 {
		e.add(OK, "disk", "there is room on %s", strings.Join(roomy, ", "))
	}
}

// schema finds tables and indexes that somebody has dropped, and indexes of which a part was not made.
func (e *examination) schema(ctx context.Context, cluster *store.Cluster) {
	missing, err := cluster.Missing(ctx)
	if err != nil {
		e.fail("indexes", err)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(missing.Tables)) {
		e.add(Failed, "tables", "%s is missing in databases %v: every call there that needs it fails", name, missing.Tables[name])
		e.cure("restore the database from its backup: what the table had is not stored elsewhere")
	}
	for _, name := range slices.Sorted(maps.Keys(missing.Indexes)) {
		e.add(Failed, "indexes", "%s is missing or not valid in databases %v: statements there become slow, and fail when they take longer than postgres.statement_timeout", name, missing.Indexes[name])
		e.cure(`make it as the other databases have it: \d of psql shows how`)
	}
}

// rows finds damaged rows of tasks.
func (e *examination) rows(ctx context.Context, cluster *store.Cluster) {
	s, sum := shards.New(cluster, shards.Config{}), 0
	for d := range task.Databases {
		n, err := s.QuarantinedRows(ctx, d)
		if err != nil {
			e.fail("tasks", fmt.Errorf("database %d: %w", d, err))
			return
		}
		sum += n
	}
	if sum > 0 {
		e.add(Failed, "tasks", "%d rows cannot be read or claimed and are deferred again and again; the tables quarantined_row have the reasons", sum)
		e.cure("finish an upgrade if one is going on; otherwise report it")
	}
}

// adoptions says which databases may have lost commits.
func (e *examination) adoptions(ctx context.Context, cluster *store.Cluster) {
	var last []string
	for d := range task.Databases {
		a, err := identity.Last(ctx, cluster.Pool(d), d)
		if err != nil {
			e.fail("adoptions", fmt.Errorf("database %d: %w", d, err))
			return
		}
		if a.Reason != "" {
			last = append(last, fmt.Sprintf("database %d at %s, because %s", d, a.At().Format(time.RFC3339), a.Reason))
		}
	}
	if len(last) == 0 {
		e.add(OK, "adoptions", "no database has failed over or was restored")
		return
	}
	e.add(OK, "adoptions", "the last, which need nothing more: %s", strings.Join(last, "; "))
}

// tenants compares the copies of tenants and tokens.
func (e *examination) tenants(ctx context.Context, tenants *control.Store) {
	differ, err := tenants.Compare(ctx)
	switch {
	case err != nil:
		e.add(Failed, "tenants", "the databases disagree: %s", oneLine(err))
		e.cure("wait: a taskd settles it within 30 s; is one running?")
	case differ:
		e.add(Warning, "tenants", "some databases lack changes")
		e.cure("wait: a taskd completes them within 30 s; is one running?")
	default:
		e.add(OK, "tenants", "all databases have the same")
	}
}

// owners finds shards without an owner.
func (e *examination) owners(ctx context.Context, cluster *store.Cluster) {
	s := shards.New(cluster, shards.Config{})
	all, err := owners{of: s.Owners}.Owners(ctx)
	if err != nil {
		e.fail("shards", err)
		return
	}
	names := map[string]bool{}
	for _, o := range all {
		names[o.Name] = true
	}
	if free := task.Shards - len(all); free > 0 {
		e.add(Failed, "shards", "%d of %d have no owner, so their tasks do not fire", free, task.Shards)
		e.cure("start a dispatcher; if one runs, its log and perceptorctl assign items say why it owns nothing")
		return
	}
	if e.owned = true; len(names) == 1 {
		e.owner = all[0].Name
	}
	e.add(OK, "shards", "all %d have an owner; dispatchers: %d", task.Shards, len(names))
}

// oldOutbox is an age, in ms, that the outbox reaches only if publication fails.
const oldOutbox = 60_000

func (e *examination) outbox(ctx context.Context, cluster *store.Cluster) {
	s := shards.New(cluster, shards.Config{})
	var sum task.OutboxStats
	var old []string
	for d := range task.Databases {
		o, err := s.OutboxStats(ctx, d)
		if err != nil {
			e.fail("outbox", fmt.Errorf("database %d: %w", d, err))
			return
		}
		sum.Rows, sum.Waiting, sum.Quarantined = sum.Rows+o.Rows, sum.Waiting+o.Waiting, sum.Quarantined+o.Quarantined
		if o.Rows > 0 && o.Now-o.Oldest > oldOutbox {
			old = append(old, fmt.Sprintf("database %d: %s", d, o.Now.Sub(o.Oldest)))
		}
	}
	if sum.Quarantined > 0 {
		e.add(Warning, "outbox", "%d damaged rows are quarantined; the open runs of their shards were published again", sum.Quarantined)
		e.cure("report the rows, then delete them")
	}
	if sum.Waiting > 0 {
		e.add(Warning, "outbox", "%d rows were written by a newer program; they wait until dispatchers of its version own their shards", sum.Waiting)
		e.cure("finish the upgrade")
	}
	if len(old) > 0 {
		e.add(Warning, "outbox", "old claims are not published: %s", strings.Join(old, ", "))
		e.cure("do the brokers answer, and do all shards have an owner?")
		return
	}
	e.add(OK, "outbox", "%d rows wait for Kafka's acknowledgement", sum.Rows)
}

// far checks that the chores keep up.
func (e *examination) far(ctx context.Context, cluster *store.Cluster) {
	s := shards.New(cluster, shards.Config{})
	var sum task.FarStats
	for d := range task.Databases {
		f, err := s.FarStats(ctx, d)
		var void int64
		if err == nil {
			void, err = s.FarVoid(ctx, d)
		}
		if err != nil {
			e.fail("far tier", fmt.Errorf("database %d: %w", d, err))
			return
		}
		sum.Packs, sum.Damaged = sum.Packs+f.Packs+f.Level0, sum.Damaged+f.Damaged
		sum.Waiting += f.Waiting
		sum.PackedTasks += f.PackedTasks + f.Level0Tasks - void
		sum.Oldest, sum.Behind = max(sum.Oldest, f.Oldest), max(sum.Behind, f.Behind)
	}
	switch {
	case sum.Damaged > 0:
		e.add(Failed, "far tier", "%d packs are damaged and quarantined; their tasks do not fire", sum.Damaged)
		e.cure("perceptorctl pack list shows them and why: report it; pack restore ends the quarantine of those that can be read after all")
	case sum.Waiting > 0:
		e.add(Failed, "far tier", "%d packs were written by a newer program; their tasks wait until dispatchers of its version do the chores", sum.Waiting)
		e.cure("finish the upgrade")
	case sum.Behind > lateBucket:
		e.add(Failed, "far tier", "tasks that were due %s ago are still packed", sum.Behind)
		e.cure("does a dispatcher own the chores? If so, raise chores.share or give the database more I/O")
	default:
		e.add(OK, "far tier", "%d tasks wait in %d packs", sum.PackedTasks, sum.Packs)
	}
}

// lateBucket is how long ago a bucket may have begun. A promotion is due long before
// that.
const lateBucket = time.Minute

func (e *examination) kafka(ctx context.Context, tenants *control.Store) {
	link, err := newKafkaLink(e.config, "perceptor-doctor", slog.New(slog.DiscardHandler))
	if err == nil {
		err = e.topics(ctx, link.Config, tenants)
	}
	if err != nil {
		e.add(Failed, "kafka", "at %v: %s", e.config.Kafka.Brokers, oneLine(err))
		e.cure("do the brokers run, are these their addresses for this machine, and are kafka.tls and kafka.sasl what they ask for?")
	}
}

func (e *examination) topics(ctx context.Context, conf delivery.Config, tenants *control.Store) error {
	publisher, err := delivery.NewPublisher(conf, newNames(tenants, e.config.Kafka.TopicPrefix, e.config.Kafka.SigningSecret))
	if err != nil {
		return err
	}
	defer publisher.Close()
	ping, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := publisher.Ping(ping); err != nil {
		return err
	}
	e.add(OK, "kafka", "a broker answers")
	topics, err := newTopics(e.config, conf)
	if err != nil {
		return err
	}
	if tenants == nil {
		return nil
	}
	names, err := topicNames(ctx, tenants, topics)
	if err != nil {
		e.add(Warning, "topics", "not checked: the databases do not say which tenants there are") // and another finding says why
		return nil
	}
	findings, err := checkTopics(ctx, topics, names)
	for _, f := range findings {
		state := Warning
		if f.Fatal {
			state = Failed
		}
		e.add(state, "topics", "%s", f)
	}
	if err == nil && len(findings) == 0 {
		e.add(OK, "topics", "%d checked", len(names))
	}
	if err == nil {
		e.topicAccess(ctx, conf, names)
	}
	return err
}

// topicAccess says plainly when any client may read the records of tenants.
func (e *examination) topicAccess(ctx context.Context, conf delivery.Config, topics []string) {
	users, err := delivery.NewUsers(conf, userLimits(&e.config.Kafka))
	if err != nil {
		e.add(Failed, "topic access", "%s", oneLine(err))
		e.cure("are kafka.tls and kafka.sasl what the brokers ask for?")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout) // the other parts are checked also if the brokers do not answer
	defer cancel()
	open, err := users.CheckAccess(ctx, topics)
	for _, f := range open {
		e.add(Warning, "topic access", "%s", f)
	}
	switch {
	case err != nil:
		e.add(Warning, "topic access", "not checked: %s", oneLine(err))
	case len(open) == 0 && e.config.Kafka.Users.Mode == config.UsersNone:
		e.add(Warning, "topic access", "the brokers have an authorizer, and kafka.users.mode is none: who may read which topic is up to the access lists that others have written")
	case len(open) == 0:
		e.add(OK, "topic access", "no access list lets every client read a tenant's topic")
	}
}

// assignment checks where dispatchers agree on the owners of shards.
func (e *examination) assignment(ctx context.Context, cluster *store.Cluster) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	a := NewAssignment(e.config, cluster, pingTimeout)
	place, err := a.Place(ctx)
	if err != nil {
		e.fail("assignment", fmt.Errorf("database %d does not say where dispatchers agree: %w", homeDatabase, err))
		return
	}
	if configured := e.config.Coordinator(); place != configured {
		e.add(Warning, "assignment", "dispatchers agree in %s since they were moved there, and the configuration says %s", place, configured)
		e.cure("set assignment: " + place)
	}
	admin, err := a.in(place)
	if err != nil {
		e.fail("assignment", err)
		return
	}
	if place == config.InPostgres || e.zookeeper(ctx, admin) {
		e.members(ctx, admin, place)
	}
}

// members checks that dispatchers run. The owners in the databases do not tell: a dispatcher that
// was killed remains the owner until another one takes over.
func (e *examination) members(ctx context.Context, admin *assign.Admin, place string) {
	where := "in ZooKeeper"
	if place == config.InPostgres {
		where = fmt.Sprintf("in database %d", homeDatabase)
	}
	o, err := admin.Overview(ctx)
	none := errors.Is(err, assign.ErrNotFound)
	switch {
	case none && e.owner != "" && place == config.InPostgres:
		e.add(OK, "assignment", "%s owns all shards by itself and agrees with nobody, as taskd dev does", e.owner)
	case none && !e.owned:
		e.add(OK, "assignment", "%s; no dispatcher has run yet", where)
	case err != nil && !none:
		e.fail("assignment", fmt.Errorf("what dispatchers have written %s cannot be read: %w", where, err))
	case len(o.Faults) > 0:
		e.add(Failed, "assignment", "%s: %s", where, strings.Join(o.Faults, "; "))
		e.cure("perceptorctl assign strategy shows the text, assign reset removes it")
	case len(o.Members) == 0:
		e.add(Failed, "assignment", "%s; no dispatcher is a member, so no task fires", where)
		e.cure("start a dispatcher; if one runs, its log says why it is none")
	case len(sameNames(o.Members)) > 0:
		e.add(Warning, "assignment", "%s; members: %d, of which some have the same name: %s", where, len(o.Members), strings.Join(sameNames(o.Members), ", "))
		e.cure("give each dispatcher a dispatcher.name of its own; one that was killed and started again has two entries for some seconds")
	default:
		e.add(OK, "assignment", "%s; members: %d", where, len(o.Members))
	}
	if err == nil {
		e.signing(o.Members)
	}
}

// sameNames returns the names that two or more members have. The assignment tells such members apart, but people do not.
func sameNames(members []assign.MemberState) (names []string) {
	count := map[string]int{}
	for _, m := range members {
		if count[m.Info.Name]++; count[m.Info.Name] == 2 {
			names = append(names, m.Info.Name)
		}
	}
	slices.Sort(names)
	return names
}

// zookeeper checks the servers, and reports whether the assignment can be read there.
func (e *examination) zookeeper(ctx context.Context, admin *assign.Admin) bool {
	if err := reachZooKeeper(ctx, &e.config.ZooKeeper); err != nil {
		e.add(Failed, "zookeeper", "none of %v answers: %s", e.config.ZooKeeper.Servers, oneLine(err))
		e.cure("do the servers run, and are zookeeper.servers and zookeeper.tls what they listen with?")
		return false
	}
	e.add(OK, "zookeeper", "a server answers")
	return e.access(ctx, admin)
}

// access says whether anyone may change who owns which shard, and reports whether this program may read it.
func (e *examination) access(ctx context.Context, admin *assign.Admin) bool {
	open, err := admin.Open(ctx)
	switch {
	case errors.Is(err, assign.ErrNotFound): // no dispatcher has run yet
	case err != nil:
		e.add(Failed, "zookeeper", "the nodes cannot be read: %s", oneLine(err))
		e.cure("are zookeeper.user and zookeeper.password those that the nodes belong to?")
		return false
	case len(open) > 0 && e.config.ZooKeeper.User == "":
		e.add(Warning, "zookeeper", "anyone who reaches ZooKeeper may change who owns which shard")
		e.cure("set zookeeper.user and zookeeper.password in all programs, then restart them one after the other")
	case len(open) > 0:
		e.add(Warning, "zookeeper", "%d nodes are still open to everybody", len(open))
		e.cure("set zookeeper.user in the dispatchers that lack it")
	default:
		e.add(OK, "zookeeper", "only zookeeper.user may read and change the assignment")
	}
	return true
}
