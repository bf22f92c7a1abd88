package abuse

import (
	"testing"
)

func TestEveryRemovalOfADefenceApplies(t *testing.T) {
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := overlay(root, t.TempDir()); err != nil {
		t.Errorf("%v\n\nChange the entry of removals in undefended.go.", err)
	}
}

func TestTheVerdictComparesWithBeforeAndWithAPoliteTenant(t *testing.T) {
	ok := Attack{Name: "a", AddBefore: 10, AddDuring: 40, LateBefore: 10, LateDuring: 200, PoliteLate: 90, Undefended: &Undefended{Errors: 1}}
	if faults := ok.Faults(); len(faults) > 0 {
		t.Errorf("got %q, want none", faults)
	}
	bad := Attack{Name: "a", AddBefore: 10, AddDuring: 41, LateBefore: 10, LateDuring: 201, PoliteLate: 90, Errors: 1, Grown: grownMost + 1, Undefended: &Undefended{AddBefore: 10, AddDuring: 30}}
	if faults := bad.Faults(); len(faults) != 5 {
		t.Errorf("got %q, want five faults", faults)
	}
}

func TestThePoliteTenantComesCloserToItsTarget(t *testing.T) {
	rate := 10.0
	for range 20 {
		rate = steered(rate, 1.5, rate/100)
	}
	if rate < 140 || rate > 160 {
		t.Errorf("a rate of %.0f uses %.2f cores, want 1.5", rate, rate/100)
	}
}
