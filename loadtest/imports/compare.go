package imports

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Sum is a number of lines with the sum of their hashes. It does not depend on their order.
type Sum struct {
	Count int64
	Hash  uint64
}

func (s *Sum) add(hash uint64) {
	s.Count++
	s.Hash += hash
}

var seed = maphash.MakeSeed()

// hashOf returns the hash of what a line says.
func hashOf(l *line) uint64 {
	every := int64(0)
	if l.recurring {
		every = int64(l.hours) * time.Hour.Milliseconds()
	}
	return hash(l.kind, l.typ(), every, l.begin.UnixMilli(), "ord-"+strconv.FormatInt(l.order, 10), fmt.Sprintf("u%07d", l.user), l.key)
}

func hash(kind, typ string, every, begin int64, order, user, key string) uint64 {
	return maphash.String(seed, kind+"|"+typ+"|"+strconv.FormatInt(every, 10)+"|"+strconv.FormatInt(begin, 10)+"|"+order+"|"+user+"|"+key)
}

// hashRow returns the hash of what a stored task says.
func hashRow(r *task.Row) (uint64, error) {
	p := &perceptorv1.Params{}
	if err := proto.Unmarshal(r.Params, p); err != nil {
		return 0, err
	}
	if len(p.Entries) != 2 || r.State != task.Scheduled || r.Seq != 0 || r.ScheduledAt != r.Begin {
		return 0, fmt.Errorf("task %s is not as a line makes it", r.ID)
	}
	return hash(r.Kind, r.Type.String(), r.Interval.Milliseconds(), int64(r.Begin), p.Entries["order_id"], p.Entries["user_id"], r.Key), nil
}

// compare reads all tasks back and compares them with the lines.
func (r *runner) compare(ctx context.Context, want made) error {
	s, err := backlog.Open(ctx, r.stack.Postgres(), r.Horizon, 3)
	if err != nil {
		return err
	}
	defer s.Close()
	begin := time.Now()
	var mu sync.Mutex
	var found Sum
	var wrong []error
	err = s.Read(ctx, 2, r.Tasks, func(rows []*task.Row) {
		var part Sum
		var bad error
		for _, x := range rows {
			if !strings.HasPrefix(x.Kind, kindPrefix) {
				continue
			}
			h, err := hashRow(x)
			if err != nil {
				bad = err
			}
			part.add(h)
		}
		mu.Lock()
		defer mu.Unlock()
		found.Count += part.Count
		found.Hash += part.Hash
		if bad != nil && len(wrong) < 5 {
			wrong = append(wrong, bad)
		}
	}, r.Progress)
	if err != nil {
		return err
	}
	r.report.Found, r.report.Same, r.report.ReadBackS = found.Count, found == want.sum, harness.Round(time.Since(begin).Seconds())
	if found.Count != want.sum.Count {
		r.report.fault("%d tasks are there, and the file has %d lines", found.Count, want.sum.Count)
	} else if !r.report.Same {
		r.report.fault("the checksum of the tasks is %016x, and that of the lines %016x", found.Hash, want.sum.Hash)
	}
	for _, err := range wrong {
		r.report.fault("%v", err)
	}
	return nil
}
