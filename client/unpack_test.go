package client

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/record/recordset"
	"github.com/perceptor/perceptor/task"
)

// TestABatchThatIsTooLargeToBeUnpackedIsSkipped, and the records around it are handled. Snappy packs none into the bytes of a message.
func TestABatchThatIsTooLargeToBeUnpackedIsSkipped(t *testing.T) {
	for _, compression := range []kafka.Compression{kafka.Gzip, kafka.Lz4, kafka.Zstd} {
		t.Run(compression.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 1)
			var c counter
			var skipped atomic.Int64
			bomb := kafka.Message{Value: bytes.Repeat([]byte{0}, recordset.MaxUnpacked)}
			b.publish(newRunOf(1, task.OneShot, "count", nil))
			b.writePacked(compression, bomb)
			b.publish(newRunOf(2, task.OneShot, "count", nil))
			b.writePacked(compression, bomb, kafka.Message{Value: []byte("of the same batch")})
			b.writePacked(compression, b.signed(newRunOf(3, task.OneShot, "count", nil), testKey))
			b.listen(ListenerConfig{Events: Events{Poison: func(_ int, _ int64, err error) {
				if strings.Contains(err.Error(), "unpacked") {
					skipped.Add(1)
				}
			}}}, map[string]Handler{"count": c.handle})
			b.svc.await(t, "the results", func() bool { return b.svc.codes["report ACCEPTED"] == 3 })
			b.awaitCommitted()
			if n := skipped.Load(); n != 2 || c.len() != 3 {
				t.Errorf("%d batches were skipped and %d runs handled, want 2 and 3", n, c.len())
			}
		})
	}
}

// TestBatchesThatAreTooLargeTogetherAreUnpackedInTurns: none of them is skipped.
func TestBatchesThatAreTooLargeTogetherAreUnpackedInTurns(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	var c counter
	var forged, poison atomic.Int64
	const batches = 5
	for n := range batches {
		b.writePacked(kafka.Zstd, kafka.Message{Value: bytes.Repeat([]byte{0}, recordset.MaxUnpacked-1000), Partition: n % 2})
	}
	for n := range int64(4) {
		b.publish(newRunOf(n+1, task.OneShot, "count", nil))
	}
	b.listen(ListenerConfig{Events: Events{
		Forged: func(int, int64, error) { forged.Add(1) },
		Poison: func(int, int64, error) { poison.Add(1) },
	}}, map[string]Handler{"count": c.handle})
	b.svc.await(t, "the results", func() bool { return b.svc.codes["report ACCEPTED"] == 4 })
	b.awaitCommitted()
	if f, p := forged.Load(), poison.Load(); f != batches || p != 0 {
		t.Errorf("%d records were refused and %d batches skipped, want %d and 0", f, p, batches)
	}
}

// writePacked writes messages to Kafka in one compressed batch.
func (b *bench) writePacked(compression kafka.Compression, messages ...kafka.Message) {
	b.t.Helper()
	w := b.writer
	packed := &kafka.Writer{
		Addr: w.Addr, Topic: w.Topic, RequiredAcks: w.RequiredAcks, BatchSize: len(messages), BatchBytes: 2 * recordset.MaxUnpacked,
		Balancer: w.Balancer, Transport: w.Transport, Compression: compression,
	}
	defer packed.Close()
	if err := packed.WriteMessages(b.t.Context(), messages...); err != nil {
		b.t.Fatal(err)
	}
}
