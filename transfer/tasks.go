package transfer

import (
	"context"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Found is a task that a program has found somewhere, such as in the tables of another scheduler.
type Found struct {
	// At is where.
	At Position
	// Task is the task in the form of AddTask.
	Task *perceptorv1.Task
	// State is how far it has come.
	State State
}

// FromTasks returns a source of tasks. next returns one after the other, io.EOF after the last one, and a
// [*Fault] for what cannot be a task; the source owns what it returns. A task replaces the defaults field by field, and
// params by key. closer may be nil.
func FromTasks(defaults *perceptorv1.Task, next func(ctx context.Context) (Found, error), closer func() error) Source {
	s := &taskSource{next: next, closer: closer}
	s.setDefaults(defaults)
	return s
}

type taskSource struct {
	splitter
	next   func(context.Context) (Found, error)
	closer func() error
}

// Next implements [Source].
func (s *taskSource) Next(ctx context.Context, l *Line) error {
	found, err := s.next(ctx)
	if err != nil {
		return err
	}
	l.Position, l.Sum = found.At, 0
	return located(s.split(l, found.Task, found.State), l.Position)
}

// Close implements [Source].
func (s *taskSource) Close() error {
	if s.closer == nil {
		return nil
	}
	return s.closer()
}
