package storm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// linkDelay is how long a slow link keeps each piece of data.
const linkDelay = 300 * time.Millisecond

// linked disturbs the link to a part and ends the disturbance. If nobody uses the link, it
// takes the link to the next part of the same kind. The fault has an effect if the link has
// harmed something.
func (r *runner) linked(ctx context.Context, h *happening, begin, end func(*testenv.Proxy)) error {
	kind, _ := kindOf(h.Part)
	names := r.parts()[kind]
	link := r.on.Link(h.Part)
	for i := slices.Index(names, h.Part); link.Connections() == 0 && i < 2*len(names); i++ {
		h.Part = names[i%len(names)]
		link = r.on.Link(h.Part)
	}
	before := link.Harmed()
	begin(link)
	err := harness.Sleep(ctx, h.Lasts)
	end(link)
	if harmed := link.Harmed() - before; harmed > 0 {
		h.saw("the link closed or refused connections or kept data %d times", harmed)
	}
	return err
}

func (r *runner) delayLink(ctx context.Context, h *happening) error {
	return r.linked(ctx, h, func(p *testenv.Proxy) { p.Delay(linkDelay) }, func(p *testenv.Proxy) { p.Delay(0) })
}

func (r *runner) cutLink(ctx context.Context, h *happening) error {
	return r.linked(ctx, h, (*testenv.Proxy).Cut, (*testenv.Proxy).Heal)
}

// swallowLink keeps all data without closing connections and never delivers it: the
// connections are closed at the end.
func (r *runner) swallowLink(ctx context.Context, h *happening) error {
	return r.linked(ctx, h, (*testenv.Proxy).Freeze, func(p *testenv.Proxy) {
		p.Cut()
		p.Thaw()
		p.Heal()
	})
}

// loseBroker kills a broker, destroys its data and starts it empty. It returns when the
// broker has all replicas again, because acknowledged records may have only two copies.
func (r *runner) loseBroker(ctx context.Context, h *happening) error {
	_, number := kindOf(h.Part)
	return r.disturbed(ctx, h, func(ctx context.Context, p part) error {
		if err := r.on.Brokers.Lose(number - 1); err != nil {
			return err
		}
		if err := errors.Join(harness.Sleep(ctx, h.Lasts), restart(ctx, p)); err != nil {
			return err
		}
		return r.awaitReplicas(ctx)
	})
}

// awaitReplicas waits until all replicas of all topics are in sync.
func (r *runner) awaitReplicas(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	for _, l := range r.loads {
		for {
			topic, err := r.on.Brokers.Topic(ctx, l.topic)
			if err == nil && topic.InSync == brokers {
				break
			}
			if harness.Sleep(ctx, probeEvery) != nil {
				return fmt.Errorf("topic %s has only %d replicas in sync after %v: %w", l.topic, topic.InSync, recoverLimit, err)
			}
		}
	}
	return nil
}

// deleteTopic deletes the topic of a tenant with all records in it and creates it again
// later, as an operator would.
func (r *runner) deleteTopic(ctx context.Context, h *happening) error {
	_, number := kindOf(h.Part)
	topic := r.loads[number-1].topic
	before, err := r.on.Brokers.Topic(ctx, topic)
	if err != nil {
		return err
	}
	if err := r.on.Brokers.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	for ends := h.at.Add(h.Lasts); time.Now().Before(ends); {
		now, err := r.on.Brokers.Topic(ctx, topic)
		if err == nil && now.Partitions == 0 && len(h.effects) == 0 {
			h.saw("topic %s with %d partitions is gone", topic, before.Partitions)
		}
		if err := harness.Sleep(ctx, probeEvery); err != nil {
			return err
		}
	}
	if now, err := r.on.Brokers.Topic(ctx, topic); err == nil && now.Partitions > 0 {
		h.saw("the installation has created it again")
		return nil
	}
	return r.on.Brokers.CreateTopic(ctx, topic, before.Partitions)
}
