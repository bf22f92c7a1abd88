package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// In a topic of two installations, listeners of each would skip the runs of the other as forged, and whoever
// deletes the tenant would delete the runs of both.
func TestInstallationsWithOnePrefixHaveNoTopicInCommon(t *testing.T) {
	prefix := testenv.TopicPrefix(t)
	conn := delivery.Config{Brokers: []string{testenv.Kafka(t).Addr()}}
	topics, err := delivery.NewTopics(conn, delivery.TopicConfig{Prefix: prefix, Replication: 1, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	install := func(users *delivery.Users) *control.Store {
		s := control.New(storetest.OpenDSN(t, storetest.DSN(t)), quiet)
		s.SetProvisioner(&tenancy{topics: topics, users: users, mechanism: "SCRAM-SHA-512"})
		return s
	}
	want := control.Tenant{Name: "acme", ParamsBytes: 1000, Retention: time.Hour}
	first, err := install(nil).CreateTenant(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	other := install(nil)
	second, err := other.CreateTenant(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if first.ID != 1 || second.ID != 2 {
		t.Errorf("the tenants have the numbers %d and %d, want 1 and 2: their topics are the same", first.ID, second.ID)
	}
	users, err := delivery.NewUsers(delivery.Config{Brokers: conn.Brokers, Timeout: time.Second}, delivery.UserConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := install(users).CreateTenant(t.Context(), want); err == nil {
		t.Error("a tenant without users was created, and the brokers have no authorizer")
	}
	for id, exists := range map[int32]bool{1: true, 2: true, 3: false} {
		found, err := topics.Check(t.Context(), []string{topics.Name(id, "acme")})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(found) == 0 || !found[0].Fatal; got != exists {
			t.Errorf("topic of number %d: %v, want that it exists: %t", id, found, exists)
		}
	}
}

// A key needs a broker only if the installation makes the users: the topic of the tenant has nothing to do with it.
func TestAKeyIsRotatedWithoutBrokersUnlessItNeedsAUser(t *testing.T) {
	prefix := testenv.TopicPrefix(t)
	topics, err := delivery.NewTopics(delivery.Config{Brokers: []string{testenv.Kafka(t).Addr()}}, delivery.TopicConfig{Prefix: prefix, Replication: 1, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := control.New(storetest.OpenDSN(t, storetest.DSN(t)), quiet)
	s.SetProvisioner(&tenancy{topics: topics})
	if _, err := s.CreateTenant(t.Context(), control.Tenant{Name: "acme", ParamsBytes: 1000, Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	nobody := delivery.Config{Brokers: []string{"127.0.0.1:1"}, Timeout: 300 * time.Millisecond}
	gone := &tenancy{mechanism: "SCRAM-SHA-512"}
	if gone.topics, err = delivery.NewTopics(nobody, delivery.TopicConfig{Prefix: prefix, Replication: 1, Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	s.SetProvisioner(gone)
	if rotated, err := s.RotateKey(t.Context(), "acme", time.Hour); err != nil || len(rotated.Keys) != 2 {
		t.Errorf("without users: %d keys, %v", len(rotated.Keys), err)
	}
	if gone.users, err = delivery.NewUsers(nobody, delivery.UserConfig{}); err != nil {
		t.Fatal(err)
	}
	_, err = s.RotateKey(t.Context(), "acme", time.Hour)
	var refused *task.Error
	if !errors.As(err, &refused) || refused.Reason != task.ReasonKafkaUnavailable || !strings.Contains(err.Error(), "the key was not rotated") || strings.Contains(err.Error(), "topic could not") {
		t.Errorf("with users: %v", err)
	}
}
