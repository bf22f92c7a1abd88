package dispatch

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// slowTokens is a store whose home databases grant no token, and take longer to say so than the
// wait that they name.
type slowTokens struct{ Store }

func (slowTokens) TakeTokens(context.Context, int32, int, int) (task.Tokens, error) {
	time.Sleep(30 * time.Millisecond)
	return task.Tokens{Wait: 1}, nil
}

// TestAFlowWithoutTokensIsAlwaysTriedAgain holds that there is an instant of the next try, because
// a flow without one would wait for ever.
func TestAFlowWithoutTokensIsAlwaysTriedAgain(t *testing.T) {
	t.Parallel()
	s := newTokenStore(slowTokens{}, func() float64 { return 1 })
	before := time.Now()
	tokens, again, err := s.takeTokens(t.Context(), 1, 100, 10)
	if tokens != 0 || err != nil || again.Before(before) || again.After(time.Now().Add(time.Second)) {
		t.Errorf("takeTokens() = %d tokens, again %v after the call, error %v; want none, and a try within a second", tokens, again.Sub(before), err)
	}
}
