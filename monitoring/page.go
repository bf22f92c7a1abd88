package monitoring

import (
	"fmt"
	"strings"
)

// The marks between which the table of alerts is in docs/operations.md.
const (
	tableBegins = "<!-- alerts: written by go generate ./monitoring -->\n"
	tableEnds   = "<!-- end of the alerts -->\n"
)

// Table returns the alerts as a table in Markdown, for the runbook.
func Table() string {
	var b strings.Builder
	b.WriteString("| alert | severity | after | what to do |\n| --- | --- | --- | --- |\n")
	for _, a := range Alerts() {
		after := duration(a.For)
		if after == "" {
			after = "at once"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", a.Name, a.Severity, after, a.Action)
	}
	return b.String()
}

// WithTable returns a page with the present table of alerts.
func WithTable(page string) (string, error) {
	before, rest, ok := strings.Cut(page, tableBegins)
	_, after, ended := strings.Cut(rest, tableEnds)
	if !ok || !ended {
		return "", fmt.Errorf("the page has no place for the table between %q and %q", tableBegins, tableEnds)
	}
	return before + tableBegins + "\n" + Table() + "\n" + tableEnds + after, nil
}
