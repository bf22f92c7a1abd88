package client

import (
	"context"
	"testing"

	"github.com/perceptor/perceptor/task"
)

// BenchmarkListener measures one run from the topic to its accepted result; the
// broker and the service, in the same process, are part of it.
func BenchmarkListener(b *testing.B) {
	for _, typ := range task.Types {
		b.Run(typ.String(), func(b *testing.B) {
			w := setup(b, 4)
			pubs := make([]task.Publication, b.N)
			for i := range pubs {
				pubs[i] = newRunOf(int64(i)+1, typ, "count", map[string]string{"content": "1234567890", "author": "somebody"})
			}
			for n := 0; n < len(pubs); n += 10_000 {
				w.publish(pubs[n:min(n+10_000, len(pubs))]...)
			}
			b.ReportAllocs()
			b.ResetTimer()
			w.listen(ListenerConfig{}, map[string]Handler{"count": func(context.Context, *Run) error { return nil }})
			w.svc.await(b, "all results", func() bool { return w.svc.codes["report ACCEPTED"] == b.N })
			b.StopTimer()
		})
	}
}
