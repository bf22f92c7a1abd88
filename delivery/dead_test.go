package delivery

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

func TestDeadRunsComeToTopicsOfTheirTenantsThatAreMadeOnDemand(t *testing.T) {
	d, topics, c := deadLetters(t, names{1: "t-shop", 2: "t-bank"})
	var runs []*task.DeadLetter
	for i := range 6 {
		runs = append(runs, &task.DeadLetter{DeadRun: task.DeadRun{
			Tenant: int32(1 + i%2), Type: task.OneShot, RunID: task.RunID{Task: task.NewID(int64(i+1), 0), Seq: 1}, Attempt: 1, Kind: "mail", Reason: task.Silent,
		}})
	}
	if done, err := d.Publish(t.Context(), []*task.DeadLetter{{DeadRun: task.DeadRun{Tenant: 3}}}); err == nil || len(done) != 0 {
		t.Errorf("Publish = %v, %v for a tenant that is not found, want an error", done, err)
	}
	if done, err := d.Publish(t.Context(), []*task.DeadLetter{{DeadRun: task.DeadRun{Tenant: deletedTenant}}}); err != nil || len(done) != 1 {
		t.Errorf("Publish = %v, %v for a deleted tenant, want it done", done, err)
	}
	done, err := d.Publish(t.Context(), runs)
	if slices.Sort(done); err != nil || !slices.Equal(done, []int{0, 1, 2, 3, 4, 5}) {
		t.Fatalf("Publish = %v, %v, want all indexes", done, err)
	}
	for _, r := range stored(t, c.ListenAddrs(), 6, "t-shop.dead", "t-bank.dead") {
		for _, h := range r.Headers {
			if h.Key == record.HeaderReason && string(h.Value) != task.Silent.String() {
				t.Errorf("reason header = %s, want %s", h.Value, task.Silent)
			}
		}
	}
	for range 2 { // missing topics are not an error
		if err := topics.Remove(t.Context(), "t-shop"); err != nil {
			t.Error(err)
		}
	}
}

// deadLetters returns what publishes dead runs of tenants, and the broker.
func deadLetters(t *testing.T, tenants names, opts ...kfake.Opt) (*DeadLetters, *Topics, *kfake.Cluster) {
	t.Helper()
	c := broker(t, tenants, opts...)
	topics, err := NewTopics(Config{Brokers: c.ListenAddrs()}, TopicConfig{Prefix: "t-", Replication: 1})
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDeadLetters(Config{Brokers: c.ListenAddrs()}, topics, tenants)
	if err != nil {
		t.Fatal(err)
	}
	return d, topics, c
}

// deadRuns returns dead runs of one task, and so of one partition, with params of the given sizes, and what publishes them.
func deadRuns(t *testing.T, sizes []int, opts ...kfake.Opt) ([]*task.DeadLetter, *DeadLetters, *kfake.Cluster) {
	t.Helper()
	d, _, c := deadLetters(t, names{1: "t-shop"}, opts...)
	var runs []*task.DeadLetter
	for i, bytes := range sizes {
		runs = append(runs, &task.DeadLetter{Params: paramsOf(bytes), Terms: task.Terms{AckTimeout: time.Minute}, DeadRun: task.DeadRun{
			Tenant: 1, Type: task.OneShot, RunID: task.RunID{Task: task.NewID(1, 0), Seq: int64(i + 1)}, Attempt: 1, Kind: "mail",
			Reason: task.Unpublishable, Error: "cannot be published",
		}})
	}
	return runs, d, c
}

func TestManyDeadRunsWithLargeParamsArePublished(t *testing.T) {
	runs, d, _ := deadRuns(t, slices.Repeat([]int{16_000}, 200))
	if done, err := d.Publish(t.Context(), runs); err != nil || len(done) != len(runs) {
		t.Errorf("Publish = %d, %v, want all %d", len(done), err, len(runs))
	}
}

func TestADeadRunThatIsTooLargeIsPublishedWithoutParamsAndHoldsUpNoOther(t *testing.T) {
	sizes := []int{100, 5000, 1000, 1500, 1000} // all but the second one together exceed the limit, too
	runs, d, c := deadRuns(t, sizes, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "4000"}))
	done, err := d.Publish(t.Context(), runs)
	if slices.Sort(done); err != nil || !slices.Equal(done, []int{0, 1, 2, 3, 4}) {
		t.Fatalf("Publish = %v, %v, want all indexes", done, err)
	}
	for _, r := range stored(t, c.ListenAddrs(), len(runs), "t-shop.dead") {
		p, err := record.Decode(r.Value)
		if err != nil {
			t.Fatal(err)
		}
		want, omitted := "cannot be published", p.Seq == 2
		if omitted {
			want += paramsOmitted
		}
		at := slices.IndexFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == record.HeaderError })
		if got := string(r.Headers[at].Value); got != want || omitted != (len(p.Params) == 0) {
			t.Errorf("run %d has %d bytes of params and the error %q, want %q", p.Seq, len(p.Params), got, want)
		}
	}
}
