package console

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var overviewPages = []page{{path: "{$}", name: "overview", title: "Overview", section: "overview", live: 5, charts: true, show: (*view).overview}}

// overviewData is the data of the page Overview: of the installation, or of a tenant.
type overviewData struct {
	// Figures are the sum of all tenants, or those of the page's tenant. nil: there are none.
	Figures *perceptorv1.TenantFigures
	// Installation says that the page is about all tenants. Then Busy has those that need
	// attention, and Cluster the processes.
	Installation bool
	Busy         []*perceptorv1.TenantFigures
	Cluster      *perceptorv1.ClusterFigures
	TenantCount  int32
	// Problems are why parts of the page are missing, by their name.
	Problems map[string]*problem
}

// overview shows the installation to operators, unless they have chosen a tenant, and the
// own tenant to others.
func (v *view) overview() (any, error) {
	d := &overviewData{Problems: map[string]*problem{}}
	d.Installation = v.session.of("").has(scopeAdminRead) && v.r.FormValue("tenant") == ""
	if d.Installation {
		return d, v.installation(d)
	}
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	d.Figures, err = v.monitoring.GetTenantFigures(ctx, &perceptorv1.GetTenantFiguresRequest{})
	return d, v.missingPart(d.Problems, "figures", err)
}

// installation adds the figures of the installation.
func (v *view) installation(d *overviewData) error {
	ctx, err := v.asOperator()
	if err != nil {
		return err
	}
	var asking sync.WaitGroup // at once: each waits for databases that do not answer
	var ofCluster error
	asking.Go(func() {
		d.Cluster, ofCluster = v.monitoring.GetClusterFigures(ctx, &perceptorv1.GetClusterFiguresRequest{})
	})
	list, err := v.monitoring.ListTenantFigures(ctx, &perceptorv1.ListTenantFiguresRequest{OrderBy: perceptorv1.ListTenantFiguresRequest_LATENESS, WithPoints: true, PageSize: 10})
	asking.Wait()
	if err == nil {
		d.Figures, d.Busy, d.TenantCount = list.Total, list.Tenants, list.TenantCount
	}
	if err := v.missingPart(d.Problems, "figures", err); err != nil {
		return err
	}
	return v.missingPart(d.Problems, "cluster", ofCluster)
}

// missingPart notes why a part of a page is missing. It returns errors after which the whole
// page makes no sense.
func (v *view) missingPart(problems map[string]*problem, name string, err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Unauthenticated:
		return err
	}
	p := problemOf(err)
	problems[name] = &p
	return nil
}

// Sums of one span of time.

// Fired is the number of published runs of a span, per second.
func Fired(p *perceptorv1.FigurePoint) float64 {
	return perSecond(p, func(t *perceptorv1.TypeFigures) int64 { return t.Fired })
}

// Added is the number of added tasks of a span, per second.
func Added(p *perceptorv1.FigurePoint) float64 {
	return perSecond(p, func(t *perceptorv1.TypeFigures) int64 { return t.Added })
}

// Redelivered is the number of redeliveries of a span, per second.
func Redelivered(p *perceptorv1.FigurePoint) float64 {
	return perSecond(p, func(t *perceptorv1.TypeFigures) int64 { return t.Redelivered })
}

func perSecond(p *perceptorv1.FigurePoint, of func(*perceptorv1.TypeFigures) int64) float64 {
	n := int64(0)
	for _, t := range p.GetTypes() {
		n += of(t)
	}
	return float64(n) / float64(max(p.GetSeconds(), 1))
}

// chart is the data of a picture, for static/chart.js.
type chart struct {
	X      []int64  `json:"x"`
	Series []series `json:"series"`
	Unit   string   `json:"unit,omitempty"`
}

type series struct {
	Label  string     `json:"label"`
	Values []*float64 `json:"values"`
	Kind   string     `json:"kind,omitempty"`
}

// pointStep is the distance of the points of figures.
const pointStep = 10 * time.Second

// chartOf returns the last hour as lines. A span without a point had nothing to count.
func (v *view) chartOf(points []*perceptorv1.FigurePoint, unit string, lines map[string]func(*perceptorv1.FigurePoint) *float64, order ...string) chart {
	c := chart{Unit: unit}
	byStart := map[int64]*perceptorv1.FigurePoint{}
	for _, p := range points {
		byStart[p.StartTime.GetSeconds()] = p
	}
	end := v.Now.Truncate(pointStep).Add(-pointStep) // the last one that is complete
	for at := end.Add(-time.Hour); !at.After(end); at = at.Add(pointStep) {
		c.X = append(c.X, at.Unix())
	}
	for _, label := range order {
		s := series{Label: label, Values: make([]*float64, len(c.X))}
		for i, x := range c.X {
			if p := byStart[x]; p != nil {
				s.Values[i] = lines[label](p)
			} else if unit == "" {
				s.Values[i] = new(float64)
			}
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// RateChart is the picture of rates of the last hour.
func (v *view) RateChart(f *perceptorv1.TenantFigures) chart {
	value := func(of func(*perceptorv1.FigurePoint) float64) func(*perceptorv1.FigurePoint) *float64 {
		return func(p *perceptorv1.FigurePoint) *float64 { n := of(p); return &n }
	}
	return v.chartOf(f.GetPoints(), "", map[string]func(*perceptorv1.FigurePoint) *float64{
		"Runs per second": value(Fired), "Adds per second": value(Added),
		"Failures per second": value(func(p *perceptorv1.FigurePoint) float64 {
			return float64(p.GetResults().GetFailed()) / float64(max(p.GetSeconds(), 1))
		}),
	}, "Runs per second", "Adds per second", "Failures per second")
}

// LatenessChart is the picture of the lateness of the last hour, in milliseconds.
func (v *view) LatenessChart(f *perceptorv1.TenantFigures) chart {
	ms := func(of func(*perceptorv1.Distribution) *durationpb.Duration) func(*perceptorv1.FigurePoint) *float64 {
		return func(p *perceptorv1.FigurePoint) *float64 {
			if p.GetLateness().GetCount() == 0 {
				return nil
			}
			n := float64(of(p.Lateness).AsDuration().Microseconds()) / 1000
			return &n
		}
	}
	return v.chartOf(f.GetPoints(), " ms", map[string]func(*perceptorv1.FigurePoint) *float64{
		"Median": ms((*perceptorv1.Distribution).GetP50), "p99": ms((*perceptorv1.Distribution).GetP99),
	}, "Median", "p99")
}

// shownFindings bounds the findings of the page: one cause can have a finding for each tenant.
const shownFindings = 20

// Findings are what needs attention, the worst first, and at most [shownFindings].
func (d *overviewData) Findings() []*perceptorv1.Finding {
	bad := d.allFindings()
	slices.SortStableFunc(bad, func(a, b *perceptorv1.Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return bad[:min(len(bad), shownFindings)]
}

// MoreFindings is the number of findings that are not shown.
func (d *overviewData) MoreFindings() int { return max(0, len(d.allFindings())-shownFindings) }

func (d *overviewData) allFindings() (bad []*perceptorv1.Finding) {
	for _, f := range d.Cluster.GetFindings() {
		if f.Severity != perceptorv1.Finding_OK {
			bad = append(bad, f)
		}
	}
	return bad
}

// Living and Dead are sums over the types of tasks.
func (d *overviewData) Living() int64 {
	return sumCounts(d.Figures, func(c *perceptorv1.TaskCounts) int64 { return c.Scheduled + c.Running })
}

// Dead is the number of dead runs that are kept.
func (d *overviewData) Dead() int64 {
	return sumCounts(d.Figures, func(c *perceptorv1.TaskCounts) int64 { return c.DeadRuns })
}

func sumCounts(f *perceptorv1.TenantFigures, of func(*perceptorv1.TaskCounts) int64) (n int64) {
	for _, c := range f.GetCounts() {
		n += of(c)
	}
	return n
}
