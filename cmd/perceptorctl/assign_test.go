package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/storetest"
)

// idler takes items and does nothing with them.
type idler struct{}

func (idler) Acquire(context.Context, []assign.Item) error { return nil }
func (idler) Release(context.Context, []assign.Item) error { return nil }

// ctlOver returns a function that runs perceptorctl with some flags.
func ctlOver(t *testing.T, flags ...string) func(want int, args ...string) string {
	return func(want int, args ...string) string {
		t.Helper()
		cmd, out := newCommand(), &bytes.Buffer{}
		cmd.SetOut(out)
		cmd.SetErr(out)
		cmd.SetArgs(slices.Concat(args, []string{"--timeout", "1m"}, flags))
		if code := cli.Run(t.Context(), cmd); code != want {
			t.Fatalf("%v ended with %d, want %d: %s", args, code, want, out)
		}
		return out.String()
	}
}

func TestOperatorsSeeAndChangeTheAssignment(t *testing.T) {
	t.Run("zookeeper", func(t *testing.T) {
		addr, root := testenv.NewZooKeeper(t).Addr(), "/test"
		operate(t, ctlOver(t, "--zookeeper.servers", addr, "--zookeeper.root", root), func(c assign.Config) (assign.Assigner, error) {
			c.Servers, c.Root = []string{addr}, root
			return assign.NewZooKeeper(c, idler{})
		})
	})
	t.Run("postgres", func(t *testing.T) {
		dsn := storetest.DSN(t)
		pool := storetest.OpenDSN(t, dsn).Pool(0)
		t.Setenv("PERCEPTOR_POSTGRES_SERVERS", dsn)
		operate(t, ctlOver(t), func(c assign.Config) (assign.Assigner, error) {
			return assign.NewMember(c, postgres.New(pool), idler{})
		})
	})
}

// operate changes the assignment of one member by commands.
func operate(t *testing.T, ctl func(want int, args ...string) string, join func(assign.Config) (assign.Assigner, error)) {
	ctl(cli.NotFound, "assign", "items")
	var items []assign.Item
	for id := range 6 {
		items = append(items, assign.Item{ID: id})
	}
	registered := make(chan struct{})
	m, err := join(assign.Config{
		Items: items, Name: "d1", Host: "h1", Address: "10.0.0.1:7073",
		RebalanceDelay: 10 * time.Millisecond, Events: assign.Events{Registered: func(int64) { close(registered) }}, HeartbeatEvery: 20 * time.Millisecond, Figures: func() map[string]int64 { return map[string]int64{"rows_claimed": 7} },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-registered
	holds := func(want string) string {
		t.Helper()
		var members []struct{ Name, State, Held string }
		out := ""
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			out = ctl(0, "assign", "members", "-o", "json")
			if err := json.Unmarshal([]byte(out), &members); err != nil {
				t.Fatal(err)
			}
			if len(members) == 1 && members[0].Held == want {
				return out
			}
		}
		t.Fatalf("d1 does not come to hold %q:\n%s", want, out)
		return ""
	}
	if out := holds("0-5"); !strings.Contains(out, `"rows_claimed": 7`) || !strings.Contains(out, `"state": "leader"`) {
		t.Errorf("members: %s", out)
	}
	if out := ctl(0, "assign", "items"); !strings.Contains(out, "0-5    6      d1       d1") {
		t.Errorf("items: %s", out)
	}
	ctl(0, "assign", "pause", "1-2")
	holds("0,3-5")
	if out := ctl(0, "assign", "items"); !strings.Contains(out, "paused") {
		t.Errorf("items with paused ones: %s", out)
	}
	ctl(0, "assign", "resume", "1-2")
	if out := ctl(0, "assign", "pin", "h9", "5"); !strings.Contains(out, "hint: no dispatcher that runs now has this name, id, host or address: h9;") {
		t.Errorf("a pin to nobody: %s", out)
	}
	holds("0-4")
	for _, edit := range []string{"pin h1 528", "pause 512-600", "resume 528", "unpin 9000"} {
		if out := ctl(cli.Usage, append([]string{"assign"}, strings.Fields(edit)...)...); !strings.Contains(out, "must be 0 to 527") {
			t.Errorf("%s, of items that do not exist: %s", edit, out)
		}
	}
	ctl(0, "assign", "unpin", "5")
	if out := ctl(0, "assign", "limit", "--max-items", "2", "--hosts", "10.0.0.1"); strings.Contains(out, "hint:") {
		t.Errorf("a limit to a host that is there: %s", out)
	}
	holds("0-1")
	ctl(0, "assign", "drain", "d1")
	if out := holds(""); !strings.Contains(out, "barred") {
		t.Errorf("drained: %s", out)
	}
	ctl(0, "assign", "undrain", "d1")
	if out := ctl(0, "assign", "strategy"); !strings.Contains(out, `"max_items": 2`) || strings.Contains(out, "drained") {
		t.Errorf("strategy: %s", out)
	}
	ctl(0, "assign", "reset")
	holds("0-5")
	if out := ctl(0, "assign", "rebalances"); !strings.Contains(out, "d1") || len(strings.Split(out, "\n")) < 6 {
		t.Errorf("rebalances: %s", out)
	}
	if out := ctl(0, "assign", "environments"); !strings.Contains(out, "BASE") {
		t.Errorf("environments: %s", out)
	}
	ctl(cli.Usage, "assign", "pause", "3-1")
	ctl(cli.Usage, "assign", "limit", "--per-host", "-1")
}
