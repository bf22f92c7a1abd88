package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
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

// Finding is what [Examine] says of one part.
type Finding struct {
	State State  `json:"state"`
	Part  string `json:"part"`
	What  string `json:"what"`
}

// Examine looks at every configured part of an installation and changes nothing.
func Examine(ctx context.Context, c *config.Config) []Finding {
	e := &examination{config: c}
	cluster, err := OpenCluster(ctx, c, "perceptor-doctor")
	if err != nil {
		return []Finding{{Failed, "postgres", err.Error()}}
	}
	defer cluster.Close()
	e.postgres(ctx, cluster)
	if len(c.Kafka.Brokers) > 0 {
		e.kafka(ctx, control.New(cluster, nil))
	} else {
		e.say(Warning, "kafka", "not looked at: kafka.brokers is not configured")
	}
	if len(c.ZooKeeper.Servers) > 0 {
		e.zookeeper(ctx)
	} else {
		e.say(Warning, "zookeeper", "not looked at: zookeeper.servers is not configured")
	}
	return e.findings
}

type examination struct {
	config   *config.Config
	findings []Finding
}

func (e *examination) say(state State, part, format string, args ...any) {
	e.findings = append(e.findings, Finding{state, part, fmt.Sprintf(format, args...)})
}

func (e *examination) postgres(ctx context.Context, cluster *store.Cluster) {
	away, err := awayDatabases(ctx, cluster)
	if len(away) > 0 {
		e.say(Failed, "postgres", "%d of %d databases do not answer %v: %s", len(away), task.Databases, away, oneLine(err))
		return
	}
	e.say(OK, "postgres", "all %d databases answer", task.Databases)
	if err := checkDatabases(ctx, cluster); err != nil {
		e.say(Failed, "schema", "%s", oneLine(err))
		return
	}
	e.say(OK, "schema", "every database is up to date")
	if err := checkClock(ctx, cluster); err != nil {
		e.say(Failed, "clock", "%s", oneLine(err))
	}
	e.owners(ctx, cluster)
	e.outbox(ctx, cluster)
	e.far(ctx, cluster)
}

// owners finds shards that nobody fires.
func (e *examination) owners(ctx context.Context, cluster *store.Cluster) {
	s := shards.New(cluster, shards.Config{})
	all, err := owners{s.Owners}.Owners(ctx)
	if err != nil {
		e.say(Failed, "shards", "%s", oneLine(err))
		return
	}
	names := map[string]bool{}
	for _, o := range all {
		names[o.Name] = true
	}
	if free := task.Shards - len(all); free > 0 {
		e.say(Failed, "shards", "%d of %d have no owner: nothing is fired there; is a dispatcher running?", free, task.Shards)
		return
	}
	e.say(OK, "shards", "all %d have an owner, out of %d dispatchers", task.Shards, len(names))
}

// oldOutbox is an age that only a dispatcher in trouble leaves.
const oldOutbox = 60_000

func (e *examination) outbox(ctx context.Context, cluster *store.Cluster) {
	s := shards.New(cluster, shards.Config{})
	rows := 0
	var old []string
	for d := range task.Databases {
		n, oldest, now, err := s.OutboxStats(ctx, d)
		if err != nil {
			e.say(Failed, "outbox", "database %d: %s", d, oneLine(err))
			return
		}
		rows += n
		if n > 0 && now-oldest > oldOutbox {
			old = append(old, fmt.Sprintf("database %d: %s", d, now.Sub(oldest)))
		}
	}
	if len(old) > 0 {
		e.say(Warning, "outbox", "runs wait for Kafka for long: %s", strings.Join(old, ", "))
		return
	}
	e.say(OK, "outbox", "%d rows wait for Kafka's acknowledgement", rows)
}

// far looks at what the chores must not leave undone.
func (e *examination) far(ctx context.Context, cluster *store.Cluster) {
	s := shards.New(cluster, shards.Config{})
	var sum task.FarStats
	for d := range task.Databases {
		f, err := s.FarStats(ctx, d)
		if err != nil {
			e.say(Failed, "far tier", "database %d: %s", d, oneLine(err))
			return
		}
		sum.Packs, sum.Damaged = sum.Packs+f.Packs+f.Arrivals, sum.Damaged+f.Damaged
		sum.PackedTasks += f.PackedTasks + f.ArrivedTasks
		sum.Oldest, sum.Behind = max(sum.Oldest, f.Oldest), max(sum.Behind, f.Behind)
	}
	switch {
	case sum.Damaged > 0:
		e.say(Failed, "far tier", "%d packs are damaged and were set aside: their tasks do not fire", sum.Damaged)
	case sum.Behind > lateBucket:
		e.say(Failed, "far tier", "tasks that were due %s ago are still packed: does a dispatcher own the chores?", sum.Behind)
	default:
		e.say(OK, "far tier", "%d tasks wait in %d packs", sum.PackedTasks, sum.Packs)
	}
}

// lateBucket is how long a bucket may have begun before somebody should look: a
// promotion is due long before that.
const lateBucket = time.Minute

func (e *examination) kafka(ctx context.Context, tenants *control.Store) {
	conf, err := kafkaConfig(e.config, "perceptor-doctor")
	if err == nil {
		err = e.topics(ctx, conf, tenants)
	}
	if err != nil {
		e.say(Failed, "kafka", "at %v: %s", e.config.Kafka.Brokers, oneLine(err))
	}
}

func (e *examination) topics(ctx context.Context, conf delivery.Config, tenants *control.Store) error {
	publisher, err := delivery.NewPublisher(conf, newNames(tenants, e.config.Kafka.TopicPrefix))
	if err != nil {
		return err
	}
	defer publisher.Close()
	ping, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := publisher.Ping(ping); err != nil {
		return err
	}
	e.say(OK, "kafka", "a broker answers")
	topics, err := newTopics(e.config, conf)
	if err != nil {
		return err
	}
	defer topics.Close()
	page, err := tenants.Tenants(ctx, "", topicsPage)
	if err != nil {
		return errors.New("the tenants cannot be read, so their topics were not looked at")
	}
	names := make([]string, len(page))
	for i, t := range page {
		names[i] = topics.Name(t.Name)
	}
	findings, err := topics.Check(ctx, names)
	for _, f := range findings {
		state := Warning
		if f.Fatal {
			state = Failed
		}
		e.say(state, "topics", "%s", f)
	}
	if err == nil && len(findings) == 0 {
		e.say(OK, "topics", "%d looked at", len(names))
	}
	return err
}

func (e *examination) zookeeper(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := reachAny(ctx, e.config.ZooKeeper.Servers); err != nil {
		e.say(Failed, "zookeeper", "none of %v answers: %s", e.config.ZooKeeper.Servers, oneLine(err))
		return
	}
	e.say(OK, "zookeeper", "a server answers")
}
