package store

import (
	"errors"
	"testing"
)

func TestErrorsThatSayTheSameAreJoinedOnce(t *testing.T) {
	refused, full := errors.New("refused"), errors.New("disk full")
	err := Distinct(refused, nil, errors.New("refused"), full, refused)
	if err == nil || err.Error() != "refused\ndisk full" || !errors.Is(err, full) {
		t.Errorf("Distinct = %q", err)
	}
	if err := Distinct(nil, nil); err != nil {
		t.Errorf("without errors: %v", err)
	}
}
