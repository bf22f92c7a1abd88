package sizing

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// pageRates are the columns of the table of docs/scaling.md.
var pageRates = []float64{20_000, 100_000, 1_000_000}

// TestTheTableOfThePageIsThePlan: the page has no numbers of its own.
func TestTheTableOfThePageIsThePlan(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := pageTable(t); !strings.Contains(string(text), table) {
		t.Errorf("docs/scaling.md does not have the table that follows from the costs:\n%s", table)
	}
}

// cores writes a number with two digits, and large ones without a fraction.
func cores(x float64) string {
	switch {
	case x < 0.995:
		return fmt.Sprintf("%.2f", x)
	case x < 9.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// pageTable returns the rows of the table.
func pageTable(t *testing.T) string {
	t.Helper()
	var plans []Plan
	for _, rate := range pageRates {
		d := typical(rate, int64(rate*DefaultHorizon.Seconds()))
		d.Retention = 0
		plans = append(plans, d.Plan())
	}
	var out strings.Builder
	row := func(name string, cell func(p Plan) string) {
		out.WriteString("| " + name)
		for _, p := range plans {
			out.WriteString(" | " + cell(p))
		}
		out.WriteString(" |\n")
	}
	row("processors in all, without handlers", func(p Plan) string { return cores(p.CoresUsed) })
	for _, name := range []string{Postgres, Listener, Taskd, Dispatcher, Kafka} {
		row(name, func(p Plan) string { g := program(t, p, name); return cores(g.CoresUsed * float64(g.Count)) })
	}
	row("write-ahead log", func(p Plan) string { return fmt.Sprintf("%.0f MB/s", p.WALBytesPerS/1e6) })
	row("into Kafka, three copies", func(p Plan) string {
		return fmt.Sprintf("%.0f MB/s", p.KafkaInBytesPerS*float64(p.Demand.KafkaReplicas)/1e6)
	})
	row("rows within the horizon", func(p Plan) string { return fmt.Sprintf("%.1f GB", bytesOf(t, p, "tasks due within the horizon")/1e9) })
	row("to use: PostgreSQL servers", func(p Plan) string { return fmt.Sprint(program(t, p, Postgres).Count) })
	row("taskds, dispatchers, brokers", func(p Plan) string {
		return fmt.Sprintf("%d, %d, %d", program(t, p, Taskd).Count, program(t, p, Dispatcher).Count, program(t, p, Kafka).Count)
	})
	return out.String()
}
