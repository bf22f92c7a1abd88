package shards

import (
	"fmt"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// BenchmarkWriteChunk prints the processor time that one line of a chunk costs: of this process,
// and of PostgreSQL. The tasks are due within 30 days and have params of 90 bytes.
func BenchmarkWriteChunk(b *testing.B) {
	for _, keyed := range []bool{false, true} {
		b.Run(fmt.Sprint("keys=", keyed), func(b *testing.B) {
			t := setup(b)
			i := t.imported(task.ImportTerms{})
			n, number := 100_000, t.numberHere(i, 0)
			if keyed {
				n = 20_000
			}
			var own, backend time.Duration
			for b.Loop() {
				b.StopTimer()
				chunk := t.lines(number, n)
				for at := range chunk.Lines {
					chunk.Lines[at].Begin = t.now.Add(time.Duration(at*7919%n) * 30 * 24 * time.Hour / time.Duration(n))
					chunk.Lines[at].Params = fmt.Appendf(nil, "\x0a\x20order A%d of customer %d at example.com please remember the milk and the bread", at, at*31)
				}
				if keyed {
					t.withKeys(chunk, t.keysHere(n), 1)
				}
				number += task.Databases
				cpu, pg := ownTime(), t.backendCPU()
				b.StartTimer()
				t.write(i, chunk)
				b.StopTimer()
				own, backend = own+ownTime()-cpu, backend+t.backendCPU()-pg
				b.StartTimer()
			}
			lines := float64(b.N * n)
			b.ReportMetric(float64(own.Nanoseconds())/lines, "ns/line")
			b.ReportMetric(float64(backend.Nanoseconds())/lines, "pg-ns/line")
			b.ReportMetric(0, "ns/op")
			t.empty()
		})
	}
}
