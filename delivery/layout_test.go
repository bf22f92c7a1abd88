package delivery

import (
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/perceptor/perceptor/task"
)

// asked counts the topics that clients ask a broker about. All topics count as -1.
type asked struct {
	mu     sync.Mutex
	topics map[string]int
	all    int
}

func watchMetadata(c *kfake.Cluster) *asked {
	a := &asked{topics: map[string]int{}}
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		a.mu.Lock()
		defer a.mu.Unlock()
		req := r.(*kmsg.MetadataRequest)
		if req.Topics == nil {
			a.all++
		}
		for _, t := range req.Topics {
			a.topics[*t.Topic]++
		}
		return nil, nil, false
	})
	return a
}

// TestOnlyTopicsInUseAreAskedAbout runs every client of Kafka beside topics that nothing uses,
// for many times MetadataTTL.
func TestOnlyTopicsInUseAreAskedAbout(t *testing.T) {
	tenants := tenantsOf("", 100)
	c := broker(t, tenants)
	a := watchMetadata(c)
	conn := Config{Brokers: c.ListenAddrs(), MetadataTTL: 20 * time.Millisecond}
	p := publisher(t, c.ListenAddrs(), tenants, func(c *Config) { c.MetadataTTL = conn.MetadataTTL })
	topics, err := NewTopics(conn, TopicConfig{Prefix: "t-", Replication: 1})
	if err != nil {
		t.Fatal(err)
	}
	letters, err := NewDeadLetters(conn, topics, tenants)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		publishAll(t, p, append(deliveries(1, 10, 10), deliveries(2, 10, 10)...))
		dead := task.DeadLetter{DeadRun: task.DeadRun{Tenant: 3, Type: task.OneShot, RunID: task.RunID{Task: task.NewID(1, 0), Seq: 1}, Kind: "mail"}}
		if _, err := letters.Publish(t.Context(), []*task.DeadLetter{&dead}); err != nil {
			t.Fatal(err)
		}
		if _, err := topics.Check(t.Context(), []string{"t-4"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * conn.MetadataTTL)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all != 0 {
		t.Errorf("%d requests asked about all topics", a.all)
	}
	if n := a.topics["t-1"]; n != 1 {
		t.Errorf("%d requests asked about the topic in use, want 1", n)
	}
	for topic := range a.topics {
		switch topic {
		case "t-1", "t-2", "t-3", "t-3.dead", "t-4":
		default:
			t.Errorf("topic %s was asked about although nothing uses it", topic)
		}
	}
}

func TestLayoutIsReadAgainOnlyWithReason(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		name   string
		layout topicLayout
		age    time.Duration
		want   bool
	}{
		{"new", topicLayout{}, 0, false},
		{"in use", topicLayout{}, 30 * time.Second, false},
		{"aged", topicLayout{}, layoutAge, true},
		{"outdated", topicLayout{outdated: true}, refreshEvery, true},
		{"outdated and just read", topicLayout{outdated: true}, refreshEvery / 2, false},
		{"missing", topicLayout{err: errNoAnswer}, refreshEvery, true},
		{"missing and just read", topicLayout{err: errNoAnswer}, refreshEvery / 2, false},
	} {
		tt.layout.readAt = now.Add(-tt.age)
		if got := tt.layout.old(now); got != tt.want {
			t.Errorf("%s: old = %v, want %v", tt.name, got, tt.want)
		}
	}
}
