package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestConfigurationNamesEveryFault(t *testing.T) {
	bad := Config{ClaimShare: -1, MinTick: time.Second, MaxTick: time.Millisecond, MaxRows: -1, AcknowledgeAfter: time.Minute, ReleaseTimeout: -1}
	_, err := New(bad, newFakeStore(), newFakeKafka(), Events{})
	if err == nil {
		t.Fatal("New accepted an invalid configuration")
	}
	for _, want := range []string{"owner name", "claim_share -1", "max_tick 1ms", "max_rows -1", "acknowledge_after 1m0s", "release_timeout -1ns"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in the error: %v", want, err)
		}
	}
}

func TestDefaultsAreValid(t *testing.T) {
	if err := (Config{Owner: task.Owner{Name: "a"}}).Validate(); err != nil {
		t.Error(err)
	}
}
