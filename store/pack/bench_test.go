package pack

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// The figures are of one task, not of the pack. Time is CPU time of the process,
// garbage collection included: on a machine with other work the wall clock says little.

var sizes = []int{1, 64, 1024, 2048, 4096}

// perTask reports the CPU time since start.
func perTask(b *testing.B, n int, start time.Duration) {
	b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/float64(b.N)/float64(n), "cpu-ns/task")
	b.ReportMetric(0, "ns/op")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkEncode(b *testing.B) {
	for _, n := range sizes {
		for _, fast := range []bool{true, false} {
			b.Run(fmt.Sprintf("n=%d/fast=%t", n, fast), func(b *testing.B) {
				rows := typical(n, 1)
				var p Pack
				start := cpuTime()
				for b.Loop() {
					p = mustEncode(b, rows, fast)
				}
				b.ReportMetric(float64(len(p.Keys))/float64(n), "keysB/task")
				b.ReportMetric(float64(len(p.Params))/float64(n), "paramsB/task")
				perTask(b, n, start)
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range sizes {
		p := mustEncode(b, typical(n, 1), false)
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			start := cpuTime()
			for b.Loop() {
				if _, err := Decode(p.Keys, p.Params); err != nil {
					b.Fatal(err)
				}
			}
			perTask(b, n, start)
		})
		b.Run(fmt.Sprintf("n=%d/keys", n), func(b *testing.B) {
			start := cpuTime()
			for b.Loop() {
				if _, err := DecodeKeys(p.Keys); err != nil {
					b.Fatal(err)
				}
			}
			perTask(b, n, start)
		})
	}
}

// BenchmarkFindOne finds a task in the middle of a pack, with its params. Its time per task is
// that of the one task.
func BenchmarkFindOne(b *testing.B) {
	for _, n := range sizes {
		rows := typical(n, 1)
		p := mustEncode(b, rows, false)
		r := rows[n/2]
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			start := cpuTime()
			for b.Loop() {
				one, err := FindOne(p.Keys, r.Tenant, r.ID)
				if err == nil {
					err = one.FillParams(p.Params)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			perTask(b, 1, start)
		})
	}
}
