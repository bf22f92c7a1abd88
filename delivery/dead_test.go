package delivery

import (
	"slices"
	"testing"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

func TestDeadRunsComeToTopicsOfTheirTenantsThatAreMadeOnDemand(t *testing.T) {
	tenants := names{1: "t-shop", 2: "t-bank"}
	c := broker(t, tenants)
	topics, err := NewTopics(Config{Brokers: c.ListenAddrs()}, TopicConfig{Prefix: "t-", Replication: 1})
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDeadLetters(Config{Brokers: c.ListenAddrs()}, topics, tenants)
	if err != nil {
		t.Fatal(err)
	}
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
