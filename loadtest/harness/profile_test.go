package harness

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"runtime/pprof"
	"testing"
	"time"
)

func TestPackageOf(t *testing.T) {
	for function, want := range map[string]string{
		"github.com/jackc/pgx/v5/pgconn.(*PgConn).flush":                          "jackc/pgx",
		"github.com/perceptor/perceptor/store/shards.(*Store).Claim":              "store/shards",
		"github.com/perceptor/perceptor/store/shards.batch[go.shape.int/x.y].add": "store/shards",
		"google.golang.org/grpc/internal/transport.(*http2Server).write":          "grpc/internal",
		"runtime.mallocgc":                        "runtime",
		"internal/runtime/maps.(*Map).get":        "runtime",
		"internal/runtime/syscall/linux.Syscall6": "system calls",
		"runtime.futex":                           "system calls",
		"encoding/json.Marshal":                   "encoding/json",
		"sync.(*Mutex).Lock":                      "sync",
		"runtime/internal/atomic.(*Int32).Add":    "runtime",
	} {
		if got := packageOf(function); got != want {
			t.Errorf("package of %s: %q, want %q", function, got, want)
		}
	}
}

func TestPackagesOfATable(t *testing.T) {
	table := "File: taskd\nType: cpu\nShowing nodes accounting for 30ms, 100% of 30ms total\n" +
		"      flat  flat%   sum%        cum   cum%\n" +
		"      20ms 66.67% 66.67%       20ms 66.67%  runtime.mallocgc\n" +
		"       8ms 26.67% 93.33%       28ms 93.33%  runtime.(*mcache).refill (inline)\n" +
		"       2ms  6.67%   100%        2ms  6.67%  sync.(*Mutex).Lock\n"
	got, err := packages([]byte(table))
	if want := map[string]float64{"runtime": 28, "sync": 2}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("packages: %v, %v; want %v", got, err, want)
	}
	if _, err := packages([]byte("flat flat% sum% cum cum%\nx y z a b c\n")); err == nil {
		t.Error("a line without a number is accepted")
	}
}

func TestSharesOf(t *testing.T) {
	by := map[string]float64{"a": 50, "b": 25}
	for i := range mostShares {
		by[string(rune('c'+i))] = 25.0 / mostShares
	}
	list := sharesOf(by)
	if len(list) != mostShares+1 || list[0] != (Share{"a", 50}) || list[1] != (Share{"b", 25}) || list[mostShares].Of != "2 others" {
		t.Errorf("shares %v: want a, b, the largest others, and the rest", list)
	}
	sum := 0.0
	for _, s := range list {
		sum += s.Percent
	}
	if sum < 99.5 || sum > 100.5 {
		t.Errorf("the shares are %.1f %% in all", sum)
	}
	if sharesOf(map[string]float64{"a": 0}) != nil {
		t.Error("nothing was used, and still there are shares")
	}
}

// TestARealProfileIsRead: the tool that reads profiles writes the table that packages reads.
func TestARealProfileIsRead(t *testing.T) {
	profile := func() string {
		var b bytes.Buffer
		if err := pprof.StartCPUProfile(&b); err != nil {
			t.Fatal(err)
		}
		for began, n := time.Now(), 0; time.Since(began) < 300*time.Millisecond; n++ {
			_ = bytes.Repeat([]byte{1}, 1<<16)
		}
		pprof.StopCPUProfile()
		path := filepath.Join(t.TempDir(), "own.pprof")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for try := 1; ; try++ {
		list, err := PackagesOf(t.Context(), profile())
		if err == nil && len(list) > 0 {
			return
		}
		if err != nil || try == 10 { // it may have got no processor in that time
			t.Fatalf("packages %v, %v; want some", list, err)
		}
	}
}
