package app

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/task"
)

const (
	// maxAudiences bounds the tenants whose listeners are remembered for figuresFor.
	maxAudiences = 1000
	// audienceWithin bounds a question. An answer without listeners is of use, too.
	audienceWithin = 700 * time.Millisecond
)

// Audience implements [server.Monitoring].
func (m *monitoring) Audience(ctx context.Context, tenant int32) *task.Audience {
	ctx, cancel := context.WithTimeout(ctx, audienceWithin)
	defer cancel()
	a, _, err := m.audienceOf(tenant).get(ctx)
	if err != nil {
		return &task.Audience{}
	}
	return a
}

// audienceOf returns the remembered answer of a tenant.
func (m *monitoring) audienceOf(tenant int32) *cached[*task.Audience] {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.audiences[tenant]
	if c == nil {
		if len(m.audiences) >= maxAudiences {
			clear(m.audiences)
		}
		c = &cached[*task.Audience]{every: figuresFor, read: func(ctx context.Context) (*task.Audience, error) { return m.readAudience(ctx, tenant) }}
		m.audiences[tenant] = c
	}
	return c
}

func (m *monitoring) readAudience(ctx context.Context, tenant int32) (*task.Audience, error) {
	now := task.At(time.Now())
	rows, _, err := m.store.Of(ctx, []int32{tenant, figures.Process}, now.Add(-recently))
	if err != nil {
		return nil, err
	}
	processes, _ := figures.Newest(rows)
	return audienceIn(figures.Collect(rows, processes, now)[tenant]), nil
}

// audienceIn returns what figures say of listeners. of may be nil.
func audienceIn(of *figures.Of) *task.Audience {
	a := &task.Audience{}
	if of == nil {
		return a
	}
	a.Members, a.Asked = int(of.Now.Of(figures.Members)), task.Instant(of.Now.Of(figures.Asked))
	for i := range of.Points {
		for kind := range of.Points[i].Unhandled {
			if a.Unhandled == nil {
				a.Unhandled = map[string]task.Instant{}
			}
			a.Unhandled[kind] = max(a.Unhandled[kind], of.Points[i].At)
		}
	}
	return a
}
