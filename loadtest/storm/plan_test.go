package storm

import (
	"reflect"
	"testing"
	"time"
)

var testParts = func() map[string][]string {
	o := DefaultOptions()
	o.Other = "elsewhere"
	return (&runner{Options: &o}).parts()
}()

func TestASeedRepeatsThePlan(t *testing.T) {
	first := plan(7, 10*time.Minute, nil, testParts)
	if !reflect.DeepEqual(first, plan(7, 10*time.Minute, nil, testParts)) {
		t.Error("two plans of one seed differ")
	}
	if reflect.DeepEqual(first, plan(8, 10*time.Minute, nil, testParts)) {
		t.Error("the plans of two seeds are equal")
	}
}

func TestAPlanHasEveryAllowedFaultBeforeOneHappensTwice(t *testing.T) {
	seen := map[string]int{}
	for _, p := range plan(3, time.Hour, nil, testParts) {
		if seen[p.Name]++; seen[p.Name] > 1 {
			break
		}
	}
	if len(seen) != len(faults) {
		t.Errorf("only %d of %d faults had happened when one happened twice", len(seen), len(faults))
	}
}

func TestAPlanKeepsItsBounds(t *testing.T) {
	for seed := range uint64(50) {
		end := time.Duration(0)
		for _, p := range plan(seed, time.Minute, []string{"kill", "freeze-kafka"}, testParts) {
			if p.At < end || p.At+p.Lasts > time.Minute-tail {
				t.Fatalf("seed %d: %v at %v begins before the previous fault ended at %v, or ends after the load", seed, p, p.At, end)
			}
			if k := named(p.Name)[0]; p.Lasts < k.low || p.Lasts > k.high || !k.allowed([]string{"kill", "freeze-kafka"}) {
				t.Fatalf("seed %d: %v is not allowed", seed, p)
			}
			end = p.At + p.Lasts
		}
	}
}
