package pack

import (
	"fmt"
	"testing"
)

// The figures of a pack are printed as B/task and ns/task: of one task, not of
// the pack.

var sizes = []int{1, 64, 1024, 2048, 4096}

func perTask(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/task")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkEncode(b *testing.B) {
	for _, n := range sizes {
		for _, fast := range []bool{true, false} {
			b.Run(fmt.Sprintf("n=%d/fast=%t", n, fast), func(b *testing.B) {
				rows := typical(n, 1)
				var p Pack
				for b.Loop() {
					p = mustEncode(b, rows, fast)
				}
				b.ReportMetric(float64(len(p.Keys))/float64(n), "keysB/task")
				b.ReportMetric(float64(len(p.Params))/float64(n), "paramsB/task")
				perTask(b, n)
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range sizes {
		p := mustEncode(b, typical(n, 1), false)
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Decode(p.Keys, p.Params); err != nil {
					b.Fatal(err)
				}
			}
			perTask(b, n)
		})
		b.Run(fmt.Sprintf("n=%d/keys", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := DecodeKeys(p.Keys); err != nil {
					b.Fatal(err)
				}
			}
			perTask(b, n)
		})
	}
}
