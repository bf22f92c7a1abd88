package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var taskPages = []page{
	{path: "tasks", name: "tasks", title: "Tasks", section: "tasks", query: []string{"kind", "state", "type", "tags", "from", "until", "sort"}, times: []string{"from", "until"}, show: (*view).listTasks},
	{path: "tasks/{id}", name: "task", title: "Task", section: "tasks", live: 5, show: (*view).showTask},
}

// pageSize is the number of rows of a page of a list.
const pageSize = 50

// taskList is the data of the page Tasks.
type taskList struct {
	Tasks   []*perceptorv1.Task
	Missing []int32
	Next    string
	// Refused is why the API refused the filter. It may be nil.
	Refused *problem
	Sort    string
	// Unfound is what was searched for in vain.
	Unfound string
}

// listTasks shows the tasks that a filter selects, or leads to the one that is searched, or to the one of
// a run.
func (v *view) listTasks() (any, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	d := &taskList{Sort: v.Query("sort")}
	if q := v.Query("q"); q != "" {
		url, err := v.findTask(q)
		switch {
		case err == nil:
			return redirectTo(url), nil
		case status.Code(err) == codes.NotFound || status.Code(err) == codes.InvalidArgument:
			d.Unfound = q
			return d, nil
		}
		return nil, err
	}
	r, err := v.taskQuery()
	if err != nil {
		p := problemOf(err)
		d.Refused = &p
		return d, nil
	}
	list, err := v.tasks.ListTasks(ctx, r)
	switch status.Code(err) {
	case codes.OK:
	case codes.InvalidArgument, codes.FailedPrecondition, codes.ResourceExhausted:
		p := problemOf(err)
		d.Refused = &p
		return d, nil
	default:
		return nil, err
	}
	d.Tasks, d.Missing, d.Next = list.Tasks, list.MissingDatabases, list.NextPageToken
	sortTasks(d.Tasks, d.Sort)
	return d, nil
}

// taskQuery reads the filter from the address.
func (v *view) taskQuery() (*perceptorv1.ListTasksRequest, error) {
	r := &perceptorv1.ListTasksRequest{PageSize: pageSize, PageToken: v.Query("page"), Kind: v.Query("kind"), Tags: v.tags()}
	var err error
	if r.Type, err = choice[perceptorv1.Task_Type](v, "type", perceptorv1.Task_Type_value); err != nil {
		return nil, err
	}
	if r.State, err = choice[perceptorv1.Task_State](v, "state", perceptorv1.Task_State_value); err != nil {
		return nil, err
	}
	by := v.Query("sort")
	_, ok := taskColumns[strings.TrimPrefix(by, "-")]
	if by != "" && !ok {
		return nil, unknownChoice("sort", by)
	}
	if r.DueFrom, ok = v.instantOf(v.Query("from")); !ok {
		return nil, badField("due from", "is not an instant such as 2026-01-31T12:00")
	}
	if r.DueUntil, ok = v.instantOf(v.Query("until")); !ok {
		return nil, badField("due until", "is not an instant such as 2026-01-31T12:00")
	}
	return r, nil
}

// tags reads the tags of a filter, which commas separate.
func (v *view) tags() []string { return commaList(v.Query("tags")) }

// choice reads a parameter that is the name of a value of an enum. One that is not given is 0.
func choice[E ~int32](v *view, name string, values map[string]int32) (E, error) {
	given := v.Query(name)
	value, ok := values[given]
	if given != "" && !ok {
		return 0, unknownChoice(name, given)
	}
	return E(value), nil
}

func unknownChoice(name, given string) error {
	return badField(name, fmt.Sprintf("%q is unknown", short(given, 40)))
}

func badField(field, fault string) error {
	return status.Errorf(codes.InvalidArgument, "%s %s", field, fault)
}

// taskColumns compare tasks by the columns that a page can be sorted by.
var taskColumns = map[string]func(a, b *perceptorv1.Task) int{
	"id":     func(a, b *perceptorv1.Task) int { return cmp.Compare(a.Id, b.Id) },
	"kind":   func(a, b *perceptorv1.Task) int { return cmp.Compare(a.Kind, b.Kind) },
	"state":  func(a, b *perceptorv1.Task) int { return cmp.Compare(a.State, b.State) },
	"due":    func(a, b *perceptorv1.Task) int { return a.DueTime.AsTime().Compare(b.DueTime.AsTime()) },
	"runs":   func(a, b *perceptorv1.Task) int { return cmp.Compare(a.RunCount, b.RunCount) },
	"missed": func(a, b *perceptorv1.Task) int { return cmp.Compare(a.MissedCount, b.MissedCount) },
	"added":  func(a, b *perceptorv1.Task) int { return a.CreateTime.AsTime().Compare(b.CreateTime.AsTime()) },
}

// sortTasks sorts the tasks of one page by a column; "": not at all.
func sortTasks(tasks []*perceptorv1.Task, column string) {
	by, desc := strings.CutPrefix(column, "-")
	less := taskColumns[by]
	if less == nil {
		return
	}
	slices.SortStableFunc(tasks, func(a, b *perceptorv1.Task) int {
		if desc {
			a, b = b, a
		}
		return less(a, b)
	})
}

// SortURL returns the address of this page sorted by a column, or by its reverse.
func (v *view) SortURL(column string) string {
	if v.Query("sort") == column {
		column = "-" + column
	}
	return v.With("sort", column)
}

// SortOf is the value of aria-sort of a column; "" if the page is not sorted by it.
func (v *view) SortOf(column string) string {
	switch v.Query("sort") {
	case column:
		return "ascending"
	case "-" + column:
		return "descending"
	}
	return ""
}

// FirstPage is the address of the first page of a list, or "" if this is it.
func (v *view) FirstPage() string {
	if v.Query("page") == "" {
		return ""
	}
	return v.With("page", "")
}

// NextPage is the address of the next page of a list, or "".
func (v *view) NextPage(token string) string {
	if token == "" {
		return ""
	}
	return v.With("page", token)
}

// Cadence says in a few words when a task runs.
func Cadence(t *perceptorv1.Task) string {
	switch {
	case t.GetCron() != nil:
		text := t.GetCron().Expression
		if zone := t.GetCron().TimeZone; zone != "" && zone != "UTC" {
			text += " " + zone
		}
		return text
	case t.GetInterval() != nil:
		return "every " + durationOf(t.GetInterval())
	}
	return "once"
}
