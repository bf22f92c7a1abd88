package delivery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// BenchmarkPublish compares the publisher with the library's writer, which
// sends a request for each partition. One operation is one record.
func BenchmarkPublish(b *testing.B) {
	for _, shape := range []struct{ tenants, records int }{{1, 30}, {1, 2000}, {20, 400}, {20, 2000}} {
		b.Run(fmt.Sprintf("tenants=%d/records=%d", shape.tenants, shape.records), func(b *testing.B) {
			tenants := tenantsOf(testenv.TopicPrefix(b), shape.tenants)
			addr := testenv.Kafka(b).Addr()
			topics, err := NewTopics(Config{Brokers: []string{addr}}, TopicConfig{})
			if err != nil {
				b.Fatal(err)
			}
			topics.cfg.Prefix = ""
			var pubs []task.Publication
			for tenant, topic := range tenants {
				if err := topics.Ensure(b.Context(), topic); err != nil {
					b.Fatal(err)
				}
				pubs = append(pubs, deliveries(tenant, shape.records/shape.tenants, 150)...)
			}
			p := publisher(b, []string{addr}, tenants, nil)
			eventually(b, p, pubs, 10*time.Second)
			b.Run("publisher", func(b *testing.B) {
				for n := 0; n < b.N; n += len(pubs) {
					if err := publish(b, p, pubs)[0]; err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("writer", func(b *testing.B) { benchmarkWriter(b, addr, tenants, pubs) })
		})
	}
}

func benchmarkWriter(b *testing.B, addr string, tenants names, pubs []task.Publication) {
	transport := Config{Brokers: []string{addr}}.withDefaults().transport(slices.Sorted(maps.Values(tenants)))
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{
		Addr: kafka.TCP(addr), RequiredAcks: kafka.RequireAll, BatchSize: 5000, BatchTimeout: time.Millisecond, Transport: transport,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, parts ...int) int { return m.Partition % len(parts) }),
	}
	defer w.Close()
	write := func() {
		msgs := make([]kafka.Message, len(pubs))
		for i, p := range pubs {
			key, value, headers := record.Encode(p, tenantName(tenants, p.Tenant))
			msgs[i] = kafka.Message{Topic: tenants[p.Tenant], Key: key, Value: value}
			for _, h := range headers {
				msgs[i].Headers = append(msgs[i].Headers, kafka.Header(h))
			}
		}
		if err := w.WriteMessages(context.Background(), msgs...); err != nil {
			b.Fatal(err)
		}
	}
	write()
	b.ResetTimer()
	for n := 0; n < b.N; n += len(pubs) {
		write()
	}
}
