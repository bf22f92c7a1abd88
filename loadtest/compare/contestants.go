package compare

import "context"

// contestant is who takes part.
type contestant struct {
	name string
	// prepare installs what is missing and returns the program; nil: it is the
	// full stack, which is none.
	prepare func(ctx context.Context, r *runner) (program, error)
}

// Names are those of all contestants, in the order in which they work.
func Names() []string {
	var names []string
	for _, c := range contestants() {
		names = append(names, c.name)
	}
	return names
}

func contestants() []contestant {
	return []contestant{
		{"river", installed(river)},
		{"graphile-worker", installed(graphileWorker)},
		{"pg-boss", installed(pgBoss)},
		{"db-scheduler", installed(dbScheduler)},
		{"engine", func(_ context.Context, r *runner) (program, error) { return program{r.EngineCommand}, nil }},
		{"full-stack", nil},
	}
}

func installed(p peer) func(context.Context, *runner) (program, error) {
	return func(ctx context.Context, r *runner) (program, error) {
		command, err := p.install(ctx, r.Real.Progress)
		return program{command}, err
	}
}
