package app

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/control"
)

const (
	// topicsPage is how many tenants are read by one statement, and how many topics are asked for by one request.
	topicsPage = 500
	// topicsEvery is how often a dispatcher looks at the settings of topics, and topicsRetry is
	// when it does so again if it could not read them.
	topicsEvery = 10 * time.Minute
	topicsRetry = time.Minute
)

// tenantPages lists tenants by name.
type tenantPages interface {
	Tenants(ctx context.Context, after string, limit int) ([]control.Tenant, error)
}

// allTenants lists all tenants by name, of which it reads so many at a time. An error ends it.
func allTenants(ctx context.Context, tenants tenantPages, page int) iter.Seq2[control.Tenant, error] {
	return func(yield func(control.Tenant, error) bool) {
		for after := ""; ; {
			list, err := tenants.Tenants(ctx, after, page)
			if err != nil {
				yield(control.Tenant{}, err)
				return
			}
			for _, t := range list {
				if !yield(t, nil) {
					return
				}
				after = t.Name
			}
			if len(list) < page {
				return
			}
		}
	}
}

// topicNames returns the topics of all tenants.
func topicNames(ctx context.Context, tenants tenantPages, topics *delivery.Topics) (names []string, err error) {
	for t, err := range allTenants(ctx, tenants, topicsPage) {
		if err != nil {
			return nil, err
		}
		names = append(names, topics.Name(t.ID, t.Name))
	}
	return names, nil
}

// checkTopics checks any number of topics. After an error it returns what it has found before.
func checkTopics(ctx context.Context, topics *delivery.Topics, names []string) (found []delivery.Finding, err error) {
	of := map[string]bool{} // the text of a finding about all topics, which comes with each part
	for part := range slices.Chunk(names, topicsPage) {
		more, err := topics.Check(ctx, part)
		for _, f := range more {
			if text := f.String(); !of[text] {
				of[text] = true
				found = append(found, f)
			}
		}
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// A topicWatch looks at the settings of topics from time to time, and says which may lose runs. Nothing
// is stopped because of them: what Kafka loses is delivered again after its ack_timeout, and a tenant
// that waited for a setting would wait for a person.
type topicWatch struct {
	tenants tenantPages
	topics  *delivery.Topics
	log     *slog.Logger
	// faulty receives the number of topics with a fault.
	faulty func(int)

	// known are the findings of the last look; unread is set if it has failed.
	known  map[string]bool
	unread bool
}

func (d *Dispatcher) topicWatch() *topicWatch {
	return &topicWatch{tenants: d.control, topics: d.kafka.topics, log: d.o.Log, faulty: d.metrics.FaultyTopics}
}

// run looks at once, and then from time to time until ctx ends.
func (w *topicWatch) run(ctx context.Context) error {
	for pace := ctxtime.NewPace(); ; {
		wait := topicsEvery
		if !w.look(ctx) {
			wait = topicsRetry
		}
		if !pace.Sleep(ctx, wait) {
			return nil
		}
	}
}

// look logs what was not found at the last look. It returns false if the settings could not be read.
func (w *topicWatch) look(ctx context.Context) bool {
	names, err := topicNames(ctx, w.tenants, w.topics)
	if err != nil {
		return false // /readyz reports the databases
	}
	found, err := checkTopics(ctx, w.topics, names)
	if err != nil {
		if !w.unread && ctx.Err() == nil {
			w.log.Warn("settings of topics cannot be read", "err", err)
		}
		w.unread = true
		return false
	}
	known, faulty := make(map[string]bool, len(found)), map[string]bool{}
	for _, f := range found {
		text := f.String()
		known[text] = true
		if f.Fatal {
			faulty[f.Topic] = true
		}
		switch {
		case w.known[text]:
		case f.Fatal:
			w.log.Error("topic may lose runs", "err", text)
		default:
			w.log.Warn("topic has unusual settings", "err", text)
		}
	}
	w.known, w.unread = known, false
	w.faulty(len(faulty))
	return true
}
