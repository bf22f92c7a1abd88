// Package abuse lets one tenant attack an installation in many ways, and measures what another
// tenant, the victim, feels of each attack: the time of its adds and the lateness of its runs.
//
// Each attack is measured three times: with all defences; as a polite tenant that uses the
// same processor time for ordinary adds; and against programs whose defences were taken out
// of their source text. The last one shows that the attack would do harm.
package abuse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Options describe the attacks. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	Rate          float64
	Before, Phase time.Duration
	Recovery      time.Duration
	Calm          time.Duration
	AddLimit      time.Duration
	Only          string
	Undefended    bool
}

// quotas of tenants that suit a machine with a few cores. The defaults suit larger ones.
var quotas = map[string]string{
	"quotas.add_rate": "1000", "quotas.read_rate": "300", "quotas.update_rate": "200", "quotas.preview_rate": "2000",
	"quotas.run_rate": "2000", "quotas.byte_rate": "4194304", "quotas.max_calls": "200", "quotas.max_connections": "20",
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	o := Options{
		Rate: 40, Before: 8 * time.Second, Phase: 12 * time.Second, Recovery: time.Minute, Calm: 500 * time.Millisecond, AddLimit: 20 * time.Second, Undefended: true,
		Setup: harness.Setup{Real: harness.DefaultStack()},
	}
	o.Real.Settings = maps.Clone(quotas)
	o.Real.Postgres["shared_buffers"] = "512MB"
	return o
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "abuse"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e3), "tasks per second of the victim")
	harness.Num(f, &o.Before, "before", harness.UpTo(time.Hour), "how long the victim is measured before each attack")
	harness.Num(f, &o.Phase, "phase", harness.UpTo(time.Hour), "how long each attack, and each polite tenant, lasts")
	harness.Num(f, &o.Recovery, "recovery", harness.UpTo(time.Hour), "the longest wait for the victim to recover from an attack")
	harness.Num(f, &o.Calm, "calm", harness.UpTo(time.Minute), "the victim has recovered when its adds take less, and its runs begin within four times as long")
	harness.Num(f, &o.AddLimit, "add-limit", harness.UpTo(time.Hour), "an add of the victim that takes longer, with its retries, is an error")
	f.StringVar(&o.Only, "only", o.Only, "names of attacks, separated by commas (default: all)")
	f.Switch(&o.Undefended, "undefended", "also attack programs without defences")
	f.Seed()
	f.Stack()
	for _, name := range o.names() {
		f.Require(slices.ContainsFunc(attacks, func(a *attack) bool { return a.name == name }), "--only: there is no attack %q", name)
	}
}

func (o *Options) names() []string {
	if o.Only == "" {
		return nil
	}
	return strings.Split(o.Only, ",")
}

// chosen returns the attacks to make.
func (o *Options) chosen() []*attack {
	if o.Only == "" {
		return attacks
	}
	return slices.DeleteFunc(slices.Clone(attacks), func(a *attack) bool { return !slices.Contains(o.names(), a.name) })
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	return harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		r := &runner{Options: o, stack: s}
		r.meter = harness.NewMeter(s, map[string]harness.Source{"rival": &r.rivals})
		return r.run(ctx)
	})
}

type runner struct {
	*Options
	stack  *stack.Stack
	meter  *harness.Meter
	rivals rivals
	victim *victim
	number int // of attackers
}

func (r *runner) run(ctx context.Context) (rep *Report, err error) {
	rep = &Report{Header: harness.NewHeader("abuse", r.Seed, r.stack.Versions), Rate: r.Rate, PhaseS: r.Phase.Seconds()}
	secret, err := r.stack.CreateTenant(ctx, "victim")
	if err != nil {
		return nil, err
	}
	if r.victim, err = r.joinVictim(ctx, r.stack, secret); err != nil {
		return nil, err
	}
	loading, stop := context.WithCancel(ctx)
	defer func() { stop(); r.victim.leave() }()
	r.victim.load(loading, r.Rate)
	if err := harness.Sleep(ctx, 5*time.Second); err != nil {
		return nil, err
	}
	for _, a := range r.chosen() {
		result, err := r.defended(ctx, a)
		if err != nil {
			return rep, fmt.Errorf("attack %s: %w", a.name, err)
		}
		rep.Attacks = append(rep.Attacks, result)
	}
	if r.Undefended {
		if err := r.undefend(ctx, rep); err != nil {
			return rep, err
		}
	}
	stop()
	r.victim.adding.Wait()
	err = r.victim.settle(ctx, r.Recovery)
	rep.Lost = r.victim.lost()
	return rep, errors.Join(ignored(err), r.stack.Died())
}

// ignored drops the error of a victim that adds nothing any more, and so never looks calm.
func ignored(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// defended measures an attack, and a polite tenant with the same processor time.
func (r *runner) defended(ctx context.Context, a *attack) (*Attack, error) {
	m, err := r.measure(ctx, a)
	starved := errors.Is(err, errNotRecovered) && m.during != span{}
	if err != nil && !starved {
		return nil, err
	}
	r.Say("a polite tenant with %.2f cores", m.cores)
	spanned, reached, err := r.polite(ctx, m.cores)
	if err != nil {
		return nil, err
	}
	if err := r.victim.settle(ctx, r.Recovery); err != nil {
		return nil, err
	}
	b, d, p := r.victim.figures(m.before), r.victim.figures(m.during), r.victim.figures(spanned)
	return &Attack{
		Name: a.name, AddBefore: b.addP99, AddDuring: d.addP99, LateBefore: b.lateP99, LateDuring: d.lateP99,
		PoliteAdd: p.addP99, PoliteLate: p.lateP99, AddMedian: d.addP50, LateMedian: d.lateP50, Errors: d.errors, Cores: harness.Round(m.cores), PoliteCores: harness.Round(reached), Grown: harness.Round(m.grown), Samples: d.samples, Starved: starved,
	}, nil
}

// measured is what is known of one attack.
type measured struct {
	before, during span
	// cores is the processor time per second that all processes use during the attack, grown the
	// memory of taskd at its end less that before it, in MB.
	cores, grown float64
}

// measure makes an attack. It returns when the victim has recovered.
func (r *runner) measure(ctx context.Context, a *attack) (m measured, err error) {
	r.number++
	secret, err := r.stack.CreateTenantAs(ctx, &perceptorv1.Tenant{Name: fmt.Sprintf("%s-%d", a.name, r.number)})
	if err != nil {
		return m, err
	}
	by, err := r.rival(ctx, a.name, secret)
	if err != nil {
		return m, err
	}
	if err = r.victim.settle(ctx, r.Recovery); err == nil {
		m.before, err = stretch(ctx, r.Before)
	}
	if err == nil {
		r.Say("attack: %s", a.name)
		cpu, memory := total(r.meter), r.meter.Memory("taskd")
		err = by.work(1)
		if err == nil {
			m.during, err = stretch(ctx, r.Phase)
		}
		m.cores = (total(r.meter) - cpu).Seconds() / m.during.to.Sub(m.during.from).Seconds()
		m.grown = float64(r.meter.Memory("taskd")-memory) / 1e6
	}
	if err = errors.Join(err, r.end(by)); err == nil {
		err = r.victim.settle(ctx, r.Recovery)
	}
	return m, err
}

// rival starts the process of a rival.
func (r *runner) rival(ctx context.Context, attack, secret string) (*rival, error) {
	by, err := startRival(ctx, r.ListenerCommand[0], order{Address: r.stack.Address, CAFile: r.stack.CAFile, Secret: secret, Attack: attack})
	if err == nil {
		r.rivals.now.Store(by)
	}
	return by, err
}

func (r *runner) end(by *rival) error {
	total(r.meter) // a meter is read before a process ends
	r.rivals.now.Store(nil)
	return by.end()
}

// politeWarmup is the time in which a polite tenant reaches its target.
const politeWarmup = 5 * time.Second

// polite lets a polite tenant use processor time. It returns when it was measured, and what all
// processes used per second.
func (r *runner) polite(ctx context.Context, used float64) (s span, reached float64, err error) {
	r.number++
	secret, err := r.stack.CreateTenant(ctx, fmt.Sprintf("polite-%d", r.number))
	if err != nil {
		return s, 0, err
	}
	by, err := r.rival(ctx, "", secret)
	if err != nil {
		return s, 0, err
	}
	steering, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- steer(steering, by, r.meter, used) }()
	if err = harness.Sleep(ctx, politeWarmup); err == nil {
		before := total(r.meter)
		s, err = stretch(ctx, r.Phase)
		reached = (total(r.meter) - before).Seconds() / s.to.Sub(s.from).Seconds()
	}
	stop()
	return s, reached, errors.Join(err, <-ended, r.end(by))
}

// stretch lets time pass.
func stretch(ctx context.Context, d time.Duration) (span, error) {
	from := time.Now()
	err := harness.Sleep(ctx, d)
	return span{from, time.Now()}, err
}

// undefend makes the attacks against programs without defences.
func (r *runner) undefend(ctx context.Context, rep *Report) error {
	r.Say("building programs without defences")
	dir, err := tempdir.New("perceptor-undefended-", r.Real.Keep)
	if err != nil {
		return err
	}
	defer dir.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a directory for temporary files
	folder, err := buildUndefended(ctx, dir.Path)
	if err != nil {
		return err
	}
	for _, p := range r.stack.Programs() {
		if err := p.Replace(ctx, folder); err != nil {
			return err
		}
	}
	for i, a := range r.chosen() {
		m, err := r.measure(ctx, a)
		b, d := r.victim.figures(m.before), r.victim.figures(m.during)
		if err != nil && ctx.Err() != nil {
			return err
		}
		rep.Attacks[i].Undefended = &Undefended{AddBefore: b.addP99, AddDuring: d.addP99, LateBefore: b.lateP99, LateDuring: d.lateP99, Errors: d.errors, Grown: harness.Round(m.grown)}
		if err != nil {
			r.Say("without defences, after %s: %v; starting the programs again", a.name, err)
			if err := r.restart(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// restart ends what an attack without defences has left behind.
func (r *runner) restart(ctx context.Context) error {
	for _, p := range r.stack.Programs() {
		if err := p.Restart(ctx); err != nil {
			return err
		}
	}
	return nil
}
