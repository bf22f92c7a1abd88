package schedule

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"
)

// vector is a question and the answer of a real implementation. next and its
// kin are pointers where absent and empty differ.
type vector struct {
	Class      string      `json:"class"`
	Expr       string      `json:"expr"`
	Zone       string      `json:"zone"`
	After      time.Time   `json:"after"`
	Next       []time.Time `json:"next"`
	ModelNext  []time.Time `json:"model_next"`
	Complete   bool        `json:"complete"`
	DST        bool        `json:"dst_sensitive"`
	AfterMatch *bool       `json:"after_matches"`
	ByPolicy   []struct {
		Policies []string    `json:"policies"`
		Next     []time.Time `json:"next"`
	} `json:"by_policy"`
	Tags []string `json:"tags"`
}

func readLines[T any](t *testing.T, file string) []T {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	var list []T
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatalf("%s: line %d: %v", file, len(list)+1, err)
		}
		list = append(list, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// decision says what is done with a vector of class quirk.
type decision struct {
	Expr, Decision, Why string
}

func decisions(t *testing.T) map[string]string {
	known := map[string]string{}
	for _, d := range readLines[decision](t, "testdata/decisions.jsonl") {
		if d.Why == "" || known[d.Expr] != "" {
			t.Fatalf("decision about %q: without a reason, or given twice", d.Expr)
		}
		known[d.Expr] = d.Decision
	}
	return known
}

func TestEveryVectorIsAnswered(t *testing.T) {
	decided := decisions(t)
	used := map[string]bool{}
	for _, c := range []struct {
		file    string
		dialect Dialect
		want    map[string]int
	}{
		{"quartz.jsonl", Quartz, map[string]int{"firm": 271, "invalid": 33, "policy": 31, "quirk": 27}},
		{"quartz_article_table.jsonl", Quartz, map[string]int{"firm": 64}},
		{"cron5.jsonl", Standard, map[string]int{"firm": 52, "invalid": 10, "policy": 16, "quirk": 12}},
	} {
		t.Run(c.file, func(t *testing.T) {
			read, passed := map[string]int{}, map[string]int{}
			for _, v := range readLines[vector](t, "testdata/"+c.file) {
				read[v.Class]++
				if v.Class == "quirk" {
					used[v.Expr] = true
				}
				if checkVector(t, c.dialect, v, decided) {
					passed[v.Class]++
				}
			}
			for class, n := range c.want {
				t.Logf("%s: %d of %d pass", class, passed[class], read[class])
				if read[class] != n || passed[class] != n {
					t.Errorf("%s: read %d and passed %d, want %d", class, read[class], passed[class], n)
				}
			}
			if len(read) != len(c.want) {
				t.Errorf("classes: %v", read)
			}
		})
	}
	for expr := range decided {
		if !used[expr] {
			t.Errorf("decision about %q, which is no quirk", expr)
		}
	}
}

// checkVector reports whether the dialect answers a vector as it should.
func checkVector(t *testing.T, d Dialect, v vector, decided map[string]string) bool {
	t.Helper()
	how := map[string]string{"firm": "next", "invalid": "refused", "policy": "by_policy", "quirk": decided[v.Expr]}[v.Class]
	c, err := Parse(d, v.Expr, v.Zone, Options{})
	if how == "refused" {
		if err == nil {
			t.Errorf("%s %q: accepted", v.Class, v.Expr)
		}
		return err != nil
	}
	if err != nil {
		t.Errorf("%s %q: %v", v.Class, v.Expr, err)
		return false
	}
	want := v.Next
	switch how {
	case "next":
	case "model_next":
		want = v.ModelNext
	case "by_policy":
		want = ofPolicy(t, c, v)
	default:
		t.Errorf("%s %q: no decision, but %q", v.Class, v.Expr, how)
		return false
	}
	return checkInstants(t, c, v, want, how == "next")
}

// checkInstants compares what follows v.After with a list, and with its end.
func checkInstants(t *testing.T, c *Cron, v vector, want []time.Time, oracle bool) bool {
	t.Helper()
	limit := len(want)
	if v.Complete || len(want) < 12 && !slices.Contains(v.Tags, "year-horizon") {
		limit++
	}
	got := upcoming(c, v.After, limit)
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("%s %q in %s after %s:\n got %v\nwant %v", v.Class, v.Expr, v.Zone, v.After, got, want)
		return false
	}
	if oracle && v.AfterMatch != nil && fires(c, v.After) != *v.AfterMatch {
		t.Errorf("%s %q in %s: fires at %s: %v", v.Class, v.Expr, v.Zone, v.After, !*v.AfterMatch)
		return false
	}
	return true
}

// ofPolicy is the answer of the one rule.
func ofPolicy(t *testing.T, c *Cron, v vector) []time.Time {
	t.Helper()
	policy := "end/first"
	if c.Elapsed() {
		policy = "skip/both"
	}
	for _, p := range v.ByPolicy {
		if slices.Contains(p.Policies, policy) {
			return p.Next
		}
	}
	if len(v.ByPolicy) > 0 {
		t.Errorf("%q: no answer for %s", v.Expr, policy)
	}
	return v.Next
}

// upcoming are the first instants after one, at most limit.
func upcoming(c *Cron, after time.Time, limit int) []time.Time {
	var list []time.Time
	for len(list) < limit {
		next, ok := c.Next(after)
		if !ok {
			break
		}
		list, after = append(list, next), next
	}
	return list
}

// fires reports whether c fires at an instant.
func fires(c *Cron, at time.Time) bool {
	next, ok := c.Next(at.Add(-time.Second))
	return ok && next.Equal(at)
}
