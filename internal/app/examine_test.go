package app

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/config"
)

func TestDispatchersThatAreGoneAreNoticedThoughTheirShardsKeepTheirOwner(t *testing.T) {
	for _, place := range []string{config.InZooKeeper, config.InPostgres} {
		t.Run(place, func(t *testing.T) {
			m := newMoving(t)
			m.conf.Assignment = place
			examine := func(e *examination) Finding {
				e.config = m.conf
				e.assignment(t.Context(), m.cluster)
				return found(t, e.findings, "assignment")
			}
			if f := examine(&examination{}); f.State != OK || !strings.Contains(f.What, "no dispatcher has run yet") {
				t.Errorf("a new installation: %+v", f)
			}
			if f := examine(&examination{owned: true}); f.State != Failed {
				t.Errorf("the members of an installation that has run are unknown: %+v", f)
			}
			d, err := newMember(m.conf, m.cluster, assign.Config{
				Items: items(), Name: "d1", Fenced: true, RebalanceDelay: 10 * time.Millisecond, HeartbeatEvery: 100 * time.Millisecond,
				Figures: func() map[string]int64 { return map[string]int64{placesFigure: 2} }, Log: slog.New(slog.DiscardHandler),
			}, idler{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 1)
			go func() { done <- d.Run(ctx) }()
			a := NewAssignment(m.conf, m.cluster, time.Second)
			m.await(a, "d1")
			if f := examine(&examination{owned: true}); f.State != OK || !strings.Contains(f.What, "members: 1") {
				t.Errorf("a dispatcher runs: %+v", f)
			}
			stop()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if f := examine(&examination{owned: true}); f.State != Failed || !strings.Contains(f.What, "no dispatcher is a member") || f.Cure == "" {
				t.Errorf("no dispatcher runs: %+v", f)
			}
		})
	}
}

func TestMembersWithTheSameNameAreFound(t *testing.T) {
	t.Parallel()
	var members []assign.MemberState
	for _, name := range []string{"b", "a", "b", "c", "a", "b"} {
		members = append(members, assign.MemberState{Info: assign.MemberInfo{Name: name}})
	}
	if got := sameNames(members); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v", got)
	}
	if got := sameNames(members[:2]); len(got) > 0 {
		t.Errorf("%v of members with names of their own", got)
	}
}
