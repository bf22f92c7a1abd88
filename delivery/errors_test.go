package delivery

import (
	"maps"
	"slices"
	"testing"
)

// Records of many sizes become dead in groups with the same error, or each would be a transaction.
func TestRecordsThatAreTooLargeHaveFewErrors(t *testing.T) {
	texts := map[string]bool{}
	for n := range 2 << 20 {
		if n%97 == 0 {
			texts[(&TooLargeError{Topic: "x", Bytes: n}).Error()] = true
		}
	}
	if len(texts) > 22 || !texts["a record of at least 1048576 bytes is too large for topic x (see max.message.bytes)"] {
		t.Errorf("%d errors, among them %v", len(texts), slices.Sorted(maps.Keys(texts))[:3])
	}
}
