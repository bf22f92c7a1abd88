package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// estate is what a later tenant of the same name could inherit, beside tasks.
type estate struct {
	settings *perceptorv1.Tenant
	delivery *perceptorv1.Delivery
	audit    []*perceptorv1.AuditEvent
}

// pausedKind is a kind that only the deleted tenant has paused.
const pausedKind = "paused-by-the-predecessor"

// configure gives the tenant settings, which are also events of its audit log.
func (c *deletedTenant) configure() {
	c.t.Helper()
	if _, err := c.PauseKind(c.t.Context(), pausedKind); err != nil {
		c.t.Fatal(err)
	}
	change := &perceptorv1.Tenant{Name: c.name, Weight: 7, MaxParamsBytes: 1234, KindCaps: map[string]int32{"capped": 3}, AddRate: 100_000}
	if err := c.stack.UpdateTenant(c.t.Context(), change, "weight", "max_params_bytes", "kind_caps", "add_rate"); err != nil {
		c.t.Fatal(err)
	}
	await(c.t, "both changes are in the audit log", func() bool { return len(c.estate().audit) >= 2 })
}

// estate returns what the tenant has now.
func (g *guest) estate() (e estate) {
	g.t.Helper()
	err := g.stack.As(g.t.Context(), g.token, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		if e.delivery, err = perceptorv1.NewRunServiceClient(conn).GetDelivery(ctx, &perceptorv1.GetDeliveryRequest{HoldsRuns: true}); err != nil {
			return err
		}
		log, err := perceptorv1.NewAuditServiceClient(conn).ListTenantAuditEvents(ctx, &perceptorv1.ListTenantAuditEventsRequest{})
		e.audit = log.GetEvents()
		return err
	})
	if err == nil {
		e.settings, err = g.stack.Tenant(g.t.Context(), g.name)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return e
}

// checkNothingInherited compares a new tenant of the same name with the deleted one, and with
// a tenant of another name.
func (c *deletedTenant) checkNothingInherited(heir *guest) {
	c.t.Helper()
	was, is, other := c.left, heir.estate(), newGuest(c.t, c.stack, "other").estate()
	if !c.refused() {
		c.t.Error("a token of the deleted tenant is one of the new tenant")
	}
	if got := heir.dead(client.DeadFilter{}); len(got) != 0 {
		c.t.Errorf("the new tenant has dead runs: %+v", got)
	}
	checkSettings(c.t, is.settings, other.settings)
	if is.delivery.GetTopic() == was.delivery.GetTopic() || is.delivery.GetGroup() == was.delivery.GetGroup() {
		c.t.Errorf("the new tenant reads the topic %s of its predecessor", is.delivery.GetTopic())
	}
	if a, b := is.delivery.GetLogin().GetPassword(), was.delivery.GetLogin().GetPassword(); a != "" && a == b {
		c.t.Error("the new tenant has the Kafka password of its predecessor")
	}
	for _, k := range is.delivery.GetRecordKeys() {
		if slices.ContainsFunc(was.delivery.GetRecordKeys(), func(old *perceptorv1.RecordKey) bool { return slices.Equal(old.GetSecret(), k.GetSecret()) }) {
			c.t.Error("the new tenant has a key of its predecessor")
		}
	}
	for _, e := range is.audit {
		if e.GetEventTime().AsTime().Before(is.settings.GetCreateTime().AsTime().Add(-time.Second)) {
			c.t.Errorf("the new tenant sees an event of its predecessor: %v", e)
		}
	}
}

// checkSettings compares the settings of a tenant with those of one that has none of its own.
func checkSettings(t *testing.T, got, defaults *perceptorv1.Tenant) {
	t.Helper()
	if len(got.GetPausedKinds()) != 0 || len(got.GetKindCaps()) != 0 || got.GetWeight() != defaults.GetWeight() ||
		got.GetMaxParamsBytes() != defaults.GetMaxParamsBytes() || got.GetAddRate() != defaults.GetAddRate() {
		t.Errorf("the new tenant has settings of its predecessor: %v, want those of %v", got, defaults)
	}
}
