package operate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	largestPage = task.MaxPageSize
	// mostPages bounds the pages of a list that never ends.
	mostPages = 200_000
)

// ListFigures has the figures of the pages of one list. Processor time is per page, less
// that of the idle programs.
type ListFigures struct {
	Name        string            `json:"name"`
	Pages       int               `json:"pages"`
	Empty       int               `json:"empty_pages"`
	RowsPerPage float64           `json:"rows_per_page"`
	Ms          harness.Quantiles `json:"ms"`
	PostgresUs  float64           `json:"postgres_us_per_page"`
	TaskdUs     float64           `json:"taskd_us_per_page"`
}

type list struct {
	name  string
	small bool // reads tasks of the small tenant instead of the large one
	query *perceptorv1.ListTasksRequest
	// far makes the measurement begin in the middle of the list.
	far bool
}

// within returns a query for the tasks that are due in s.
func within(s span) *perceptorv1.ListTasksRequest {
	return &perceptorv1.ListTasksRequest{DueFrom: timestamppb.New(s.from.Time()), DueUntil: timestamppb.New(s.to.Time())}
}

type ranges struct{ near, day, minutes, nothing span }

func (m *mix) ranges() ranges {
	day := m.far.part(7, 30)
	return ranges{
		near: m.near.part(1, 4), day: day, minutes: day.part(71, 144),
		nothing: span{m.far.to.Add(90 * 24 * time.Hour), m.far.to.Add(91 * 24 * time.Hour)},
	}
}

// lists returns all lists that are measured. scanned adds those of the small tenant that are
// allowed only if a scan of its tasks is.
func lists(m *mix, scanned bool) []list {
	all, r := &perceptorv1.ListTasksRequest{}, m.ranges()
	kindDay, tagDay := within(r.day), within(r.day)
	kindDay.Kind, tagDay.Tags = kindNames[kindPlain], []string{rareTag}
	out := []list{
		{name: "all", query: all},
		{name: "all, from the middle on", query: all, far: true},
		{name: "all of a small tenant", small: true, query: all},
		{name: "state SCHEDULED", query: &perceptorv1.ListTasksRequest{State: perceptorv1.Task_SCHEDULED}},
		{name: "state RUNNING (no task has it)", query: &perceptorv1.ListTasksRequest{State: perceptorv1.Task_RUNNING}},
		{name: "due range, near", query: within(r.near)},
		{name: "due range, a far day", query: within(r.day)},
		{name: "due range, ten far minutes", query: within(r.minutes)},
		{name: "due range without tasks", query: within(r.nothing)},
		{name: "kind, a far day", query: kindDay},
		{name: "tag of one in 100, a far day", query: tagDay},
	}
	if scanned {
		out = append(out,
			list{name: "kind, of a small tenant", small: true, query: &perceptorv1.ListTasksRequest{Kind: kindNames[kindPlain]}},
			list{name: "tag, of a small tenant", small: true, query: &perceptorv1.ListTasksRequest{Tags: []string{commonTag}}})
	}
	return out
}

// measure reads pages of a list and returns their figures. middle is the number of tasks
// before the middle of the list.
func (r *runner) measure(ctx context.Context, l list, middle int64) (ListFigures, error) {
	api := r.large
	if l.small {
		api = r.small
	}
	q := proto.CloneOf(l.query)
	if l.far {
		if err := r.skip(ctx, api, q, middle); err != nil {
			return ListFigures{}, fmt.Errorf("list %s: %w", l.name, err)
		}
	}
	q.PageSize = int32(r.PageSize)
	first := q.PageToken
	f := ListFigures{Name: l.name}
	took, rows := hdrhistogram.New(1, int64(callLimit/time.Microsecond), 3), 0
	begin, before := time.Now(), r.meter.Sample()
	for f.Pages < r.Pages {
		page, d, err := api.page(ctx, q)
		if err != nil {
			return f, fmt.Errorf("list %s, page %d: %w", l.name, f.Pages+1, err)
		}
		took.RecordValue(d.Microseconds()) //nolint:errcheck // a call takes at most callLimit
		f.Pages++
		rows += len(page.GetTasks())
		if len(page.GetTasks()) == 0 {
			f.Empty++
		}
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			q.PageToken = first
		}
	}
	used := net(harness.Used(before, r.meter.Sample()), r.idle, time.Since(begin))
	f.Ms, f.RowsPerPage = harness.QuantilesOf(took), harness.Round(float64(rows)/float64(f.Pages))
	perPage := func(d time.Duration) float64 { return harness.Round(d.Seconds() * 1e6 / float64(f.Pages)) }
	f.PostgresUs, f.TaskdUs = perPage(used[harness.PostgresBackends]), perPage(harness.TimeOf(used, "taskd"))
	return f, nil
}

// skip reads a list until tasks of them have passed.
func (r *runner) skip(ctx context.Context, api *lister, q *perceptorv1.ListTasksRequest, tasks int64) error {
	q.PageSize = largestPage
	for n, pages := int64(0), 0; n < tasks && pages < mostPages; pages++ {
		page, _, err := api.page(ctx, q)
		if err != nil {
			return err
		}
		n += int64(len(page.GetTasks()))
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			return fmt.Errorf("the list ends after %d tasks, want more than %d", n, tasks)
		}
	}
	return nil
}

// complete is a list that is read to its end, with the tasks that it must return.
type complete struct {
	list
	want *wanted
}

// completes returns the lists that are read to their ends.
func completes(m *mix) []complete {
	r := m.ranges()
	kind, tag := kindNames[kindPlain], commonTag
	dueTag := within(r.day)
	dueTag.Tags = []string{rareTag}
	return []complete{
		{list{name: "all of a small tenant", small: true, query: &perceptorv1.ListTasksRequest{}}, &wanted{tenant: m.small}},
		{list{name: "kind, of a small tenant", small: true, query: &perceptorv1.ListTasksRequest{Kind: kind}}, &wanted{tenant: m.small, kind: kind}},
		{list{name: "tag, of a small tenant", small: true, query: &perceptorv1.ListTasksRequest{Tags: []string{tag}}}, &wanted{tenant: m.small, tag: tag}},
		{list{name: "ten far minutes", query: within(r.minutes)}, &wanted{tenant: m.large, due: r.minutes}},
		{list{name: "tag, a far day", query: dueTag}, &wanted{tenant: m.large, tag: rareTag, due: r.day}},
		{list{name: "a twentieth of near", query: within(m.near.part(3, 20))}, &wanted{tenant: m.large, due: m.near.part(3, 20)}},
	}
}

// Completeness is the result of a list that was read to its end. Want and Met count tasks,
// Twice the tasks that the list returned more than once.
type Completeness struct {
	Name  string `json:"name"`
	Want  int64  `json:"want"`
	Met   int64  `json:"met"`
	Twice int64  `json:"met_twice"`
	Pages int    `json:"pages"`
	// Refused is the error message of a list that is refused.
	Refused string `json:"refused,omitempty"`
}

// readOut reads a list to its end. A list may return a task twice if it moved meanwhile.
func (r *runner) readOut(ctx context.Context, c complete) (Completeness, error) {
	out := Completeness{Name: c.name, Want: c.want.n.Load()}
	api := r.large
	if c.small {
		api = r.small
	}
	q := proto.CloneOf(c.query)
	q.PageSize = largestPage
	met := map[int64]bool{}
	for out.Pages < mostPages {
		page, _, err := api.page(ctx, q)
		if err != nil {
			return out, fmt.Errorf("list %s to its end: %w", c.name, err)
		}
		out.Pages++
		for _, t := range page.GetTasks() {
			if met[t.GetId()] {
				out.Twice++
			}
			met[t.GetId()] = true
		}
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			break
		}
	}
	out.Met = int64(len(met))
	return out, nil
}

// Refusal is the answer to a list that would scan too many tasks.
type Refusal struct {
	Name string `json:"name"`
	// Must reports whether the list must be refused. Hint is the error message; empty: the
	// list was allowed.
	Must bool   `json:"must"`
	Hint string `json:"hint"`
}

// refusals requests lists that need full scans and returns the answers. living is the
// number of tasks of the large tenant.
func (r *runner) refusals(ctx context.Context, living int64) (out []Refusal, err error) {
	for _, l := range []list{
		{name: "kind", query: &perceptorv1.ListTasksRequest{Kind: kindNames[kindPlain]}},
		{name: "tag", query: &perceptorv1.ListTasksRequest{Tags: []string{rareTag}}},
		{name: "type", query: &perceptorv1.ListTasksRequest{Type: perceptorv1.Task_BLOCKING}},
	} {
		hint, err := r.large.refusal(ctx, l.query)
		if err != nil {
			return nil, fmt.Errorf("list by %s: %w", l.name, err)
		}
		out = append(out, Refusal{Name: l.name, Must: living > r.maxScan(), Hint: hint})
	}
	return out, nil
}

const callLimit = time.Minute

// lister requests single pages, which the SDK hides.
type lister struct {
	conn  *grpc.ClientConn
	tasks perceptorv1.TaskServiceClient
	token string
}

func newLister(s *stack.Stack, token string) (*lister, error) {
	first, _, _ := strings.Cut(s.Address, ",")
	conn, err := grpc.NewClient(first, grpc.WithTransportCredentials(s.Transport()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", first, err)
	}
	return &lister{conn, perceptorv1.NewTaskServiceClient(conn), token}, nil
}

func (l *lister) close() { l.conn.Close() } //nolint:errcheck // no call is open

// page returns one page and the duration of the call.
func (l *lister) page(ctx context.Context, q *perceptorv1.ListTasksRequest) (*perceptorv1.ListTasksResponse, time.Duration, error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+l.token), callLimit)
	defer cancel()
	begin := time.Now()
	page, err := l.tasks.ListTasks(ctx, q)
	return page, time.Since(begin), err
}

// refusal returns the error message of a refused list, or "" if the list is allowed.
func (l *lister) refusal(ctx context.Context, q *perceptorv1.ListTasksRequest) (string, error) {
	_, _, err := l.page(ctx, q)
	if status.Code(err) == codes.FailedPrecondition {
		return status.Convert(err).Message(), nil
	}
	return "", err
}
