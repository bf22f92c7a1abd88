package schedule

import (
	"fmt"
	"strings"
	"testing"
)

func TestHashedValuesNeverChange(t *testing.T) {
	for _, c := range []struct{ key, expr, want string }{
		{"invoices", "H H * * *", "55 1 * * *"},
		{"invoices", "h h H h H", "55 1 18 11 5"},
		{"invoices", "H H H H H H", "50 55 1 18 11 5"},
		{"report/7", "H/15 H(0-5) * * *", "9/15 0 * * *"},
		{"report/7", "H(0-29)/10 H(9-17)/3 H/3 * 1-5", "9-29/10 9-17/3 2/3 * 1-5"},
		{"report/7", "0,H 5 * * H(5-7)", "0,9 5 * * 6"},
	} {
		parsed, err := Parse(Standard, c.expr, "UTC", Options{HashKey: c.key})
		if err != nil {
			t.Fatalf("%q: %v", c.expr, err)
		}
		if parsed.String() != c.want {
			t.Errorf("%q of %q: got %q, want %q", c.expr, c.key, parsed, c.want)
		}
	}
}

func TestHashedValuesSpreadEvenlyAndApart(t *testing.T) {
	const keys = 6000
	minutes, hours, days := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range keys {
		c, err := Parse(Standard, "H H H * *", "UTC", Options{HashKey: fmt.Sprintf("task-%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(c.String())
		minutes[fields[0]]++
		hours[fields[1]]++
		days[fields[2]]++
	}
	for _, c := range []struct {
		name  string
		found map[string]int
		want  int
	}{{"minutes", minutes, 60}, {"hours", hours, 24}, {"days", days, 28}} {
		if len(c.found) != c.want {
			t.Errorf("%s: %d values, want %d", c.name, len(c.found), c.want)
		}
		for value, n := range c.found {
			if mean := keys / c.want; n < mean/2 || n > 2*mean {
				t.Errorf("%s: %s was picked %d times, the mean is %d", c.name, value, n, mean)
			}
		}
	}
}

func TestHashStaysWithinItsBounds(t *testing.T) {
	for i := range 500 {
		key := fmt.Sprint(i)
		c, err := Parse(Standard, "H/15,H(50-52)/20 H(22-23) H/10 H H", "UTC", Options{HashKey: key})
		if err != nil {
			t.Fatal(err)
		}
		var minute, last, hour, day, month, weekday int
		if _, err := fmt.Sscanf(c.String(), "%d/15,%d-52/20 %d %d/10 %d %d", &minute, &last, &hour, &day, &month, &weekday); err != nil {
			t.Fatalf("%q: %v", c, err)
		}
		if minute < 0 || minute > 14 || last < 50 || last > 52 || hour < 22 || hour > 23 || day < 1 || day > 10 || month < 1 || month > 12 || weekday < 0 || weekday > 6 {
			t.Errorf("key %s: %q", key, c)
		}
	}
}
