package fair

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestTokensExpireAndAreOfferedBack(t *testing.T) {
	var c TokenCache
	if _, _, ask := c.TakeTokens(begun, 5); !ask {
		t.Fatal("an empty cache does not ask for tokens")
	}
	c.Grant(begun, begun, task.Tokens{Granted: 8})
	if n, _, _ := c.TakeTokens(begun, 5); n != 5 {
		t.Errorf("TakeTokens = %d, want 5", n)
	}
	c.ReturnTokens(2)
	if n, _, _ := c.TakeTokens(begun.Add(TokenLifetime-1), 1); n != 1 {
		t.Errorf("TakeTokens before expiry = %d, want 1", n)
	}
	if n, _, ask := c.TakeTokens(begun.Add(TokenLifetime), 9); n != 0 || !ask || c.Unused() != 4 {
		t.Errorf("after expiry tokens = %d, ask = %t, Unused() = %d, want 0, true, 4", n, ask, c.Unused())
	}
}

func TestACacheAsksAgainWhenTheBucketMayHaveTokens(t *testing.T) {
	for wait, want := range map[int64]time.Duration{0: LeastTokenWait, 300: 300 * time.Millisecond, 90_000: MostTokenWait} {
		var c TokenCache
		c.Grant(begun, begun, task.Tokens{Wait: wait})
		n, again, ask := c.TakeTokens(begun, 1)
		if n != 0 || ask || again.Sub(begun) != want {
			t.Errorf("after a grant with a wait of %d ms: tokens = %d, ask = %t, again after %s, want 0, false, %s", wait, n, ask, again.Sub(begun), want)
		}
		if _, _, ask := c.TakeTokens(begun.Add(want), 1); !ask {
			t.Errorf("the cache does not ask again after %s", want)
		}
		c.Grant(begun, begun, task.Tokens{Wait: wait})
		c.ClockMoved()
		if _, _, ask := c.TakeTokens(begun, 1); !ask {
			t.Error("the cache does not ask after the clock was set")
		}
	}
}

func TestTokensOfASlowAnswerCanBeUsed(t *testing.T) {
	var c TokenCache
	answered := begun.Add(5 * time.Second)
	c.Grant(begun, answered, task.Tokens{Granted: 8})
	if n, _, _ := c.TakeTokens(answered.Add(leastLifetime-1), 5); n != 5 {
		t.Errorf("TakeTokens = %d within %s of the answer, want 5", n, leastLifetime)
	}
	if n, _, ask := c.TakeTokens(answered.Add(leastLifetime), 1); n != 0 || !ask {
		t.Errorf("TakeTokens = %d, ask = %t after that, want 0 and true", n, ask)
	}
}

func TestARequestIsForAQuarterOfASecond(t *testing.T) {
	for _, tt := range []struct{ rate, want, tokens int }{{1000, 900, 250}, {1000, 90, 90}, {2, 90, 1}} {
		if n := TokenRequest(int32(tt.rate), tt.want); n != tt.tokens {
			t.Errorf("TokenRequest(%d, %d) = %d, want %d", tt.rate, tt.want, n, tt.tokens)
		}
	}
}
