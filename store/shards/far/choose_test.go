package far

import (
	"testing"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

func TestOnlyMergesThatDoNotHelpAreRemembered(t *testing.T) {
	for _, test := range []struct {
		kind    task.CompactionKind
		written int
		want    bool
	}{{task.CompactMerge, 20, true}, {task.CompactMerge, 11, true}, {task.CompactMerge, 10, false}, {task.CompactSplit, 20, false}} {
		tier, bucket := &Tier{}, pack.Bucket{Level: pack.Day, At: 7}
		c := compacting{t: tier, d: 3, req: task.CompactionRequest{Kind: test.kind}, out: task.Compaction{Read: 20, Written: test.written}}
		c.noteMerge([]candidate{{bucket: bucket}})
		if _, passed := tier.movers[3].unmerged[bucket]; passed != test.want {
			t.Errorf("%s of 20 packs into %d: skipped %v, want %v", test.kind, test.written, passed, test.want)
		}
	}
}
