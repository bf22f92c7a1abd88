package history

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// Check gives every task of the history in dir to c. All its writers must have
// been closed: a record that ends in the middle is an error, but in what the killed
// ones have written.
func Check(dir string, c *check.Checker, killed ...string) error {
	loose := records{killed: killed}
	if err := loose.load(dir, unanswered); err != nil {
		return err
	}
	a := assembly{checker: c, unanswered: map[int64]*check.Add{}}
	for i := range loose.adds {
		a.unanswered[loose.adds[i].Number] = &loose.adds[i]
	}
	for i := range parts {
		r := records{killed: killed}
		if err := r.load(dir, i); err != nil {
			return err
		}
		a.part(&r)
	}
	for _, add := range a.unanswered {
		if add.ID == 0 {
			c.Task(check.Task{Add: add})
		}
	}
	return nil
}

// records are all records of one part.
type records struct {
	adds       []check.Add
	executions []check.Execution
	replies    []check.Reply
	finals     []check.Final
	ops        []check.Op
	// killed are the names of writers whose last record may be torn.
	killed []string
}

func (r *records) load(dir string, part int) error {
	paths, err := filepath.Glob(filepath.Join(dir, partName(part, "*")))
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	for _, path := range paths {
		err := r.loadFile(path)
		if _, name, _ := strings.Cut(filepath.Base(path), "."); errors.Is(err, errTorn) && slices.Contains(r.killed, name) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("read history %s: %w", path, err)
		}
	}
	slices.SortFunc(r.adds, func(a, b check.Add) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(r.executions, func(a, b check.Execution) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(r.replies, func(a, b check.Reply) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(r.ops, func(a, b check.Op) int { return cmp.Compare(a.ID, b.ID) })
	// The sort is stable, so that the last word about a task comes last.
	slices.SortStableFunc(r.finals, func(a, b check.Final) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

func (r *records) loadFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fields := reader{left: text}
	for len(fields.left) > 0 {
		whole := *r
		switch tag := fields.byte(); tag {
		case tagAdd:
			r.adds = append(r.adds, fields.add())
		case tagExecution:
			r.executions = append(r.executions, fields.execution())
		case tagReply:
			r.replies = append(r.replies, fields.reply())
		case tagFinal:
			r.finals = append(r.finals, fields.final())
		case tagOp:
			r.ops = append(r.ops, fields.op())
		default:
			return fmt.Errorf("unknown record %d", tag)
		}
		if fields.err != nil {
			*r = whole
			return fields.err
		}
	}
	return nil
}

// assembly puts tasks together.
type assembly struct {
	checker    *check.Checker
	unanswered map[int64]*check.Add
}

// part walks over the sorted records of one part, id by id.
func (a *assembly) part(r *records) {
	for {
		id, ok := r.lowest()
		if !ok {
			return
		}
		a.task(check.Task{
			ID:         id,
			Add:        best(cut(&r.adds, func(v *check.Add) bool { return v.ID == id })),
			Ops:        cut(&r.ops, func(v *check.Op) bool { return v.ID == id }),
			Executions: cut(&r.executions, func(v *check.Execution) bool { return v.ID == id }),
			Replies:    cut(&r.replies, func(v *check.Reply) bool { return v.ID == id }),
			Final:      last(cut(&r.finals, func(v *check.Final) bool { return v.ID == id })),
		})
	}
}

// lowest returns the lowest id that is left.
func (r *records) lowest() (id task.ID, ok bool) {
	consider := func(n int, first func() task.ID) {
		if n == 0 {
			return
		}
		if f := first(); !ok || f < id {
			id, ok = f, true
		}
	}
	consider(len(r.adds), func() task.ID { return r.adds[0].ID })
	consider(len(r.executions), func() task.ID { return r.executions[0].ID })
	consider(len(r.replies), func() task.ID { return r.replies[0].ID })
	consider(len(r.ops), func() task.ID { return r.ops[0].ID })
	consider(len(r.finals), func() task.ID { return r.finals[0].ID })
	return id, ok
}

// cut takes the leading elements that belong off a list.
func cut[T any](list *[]T, belongs func(*T) bool) []T {
	n := 0
	for n < len(*list) && belongs(&(*list)[n]) {
		n++
	}
	taken := (*list)[:n:n]
	*list = (*list)[n:]
	return taken
}

func last[T any](list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[len(list)-1]
}

// best returns the earliest of the adds that were answered with one id.
func best(adds []check.Add) *check.Add {
	if len(adds) == 0 {
		return nil
	}
	add := slices.MinFunc(adds, func(a, b check.Add) int { return cmp.Compare(a.Sent, b.Sent) })
	return &add
}

// task finds the add of a task without one among those that were not
// acknowledged. Each of them accounts for one task.
func (a *assembly) task(t check.Task) {
	if t.Add == nil {
		if len(t.Executions) == 0 && t.Final == nil {
			return // an answer about a task of others
		}
		if add := a.unanswered[number(t)]; add != nil && add.ID == 0 {
			add.ID = t.ID
			t.Add = add
		}
	}
	a.checker.Task(t)
}

func number(t check.Task) int64 {
	if len(t.Executions) > 0 {
		return t.Executions[0].Number
	}
	return t.Final.Number
}
