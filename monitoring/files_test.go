package monitoring

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write the files instead of comparing them")

const operationsPage = "../docs/operations.md"

// files returns the texts of the generated files.
func files(t *testing.T) map[string]string {
	t.Helper()
	rules, err := Rules()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{"prometheus/rules.yml": string(rules)}
	for _, d := range Dashboards() {
		text, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		out["grafana/"+d.UID+".json"] = string(text)
	}
	page, err := os.ReadFile(operationsPage)
	if err != nil {
		t.Fatal(err)
	}
	if out[operationsPage], err = WithTable(string(page)); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTheFilesAreCurrent(t *testing.T) {
	for name, want := range files(t) {
		if *write {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil { //nolint:gosec // files of the repository
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s is not what the source says (%v): go generate ./monitoring", name, err)
		}
	}
}

var metricName = regexp.MustCompile(`\bperceptor_[a-z0-9_]+`)

// The page of metrics is held to the code by a test of its own.
func TestOnlyMetricsThatExistAreAsked(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	suffix := regexp.MustCompile(`_(bucket|count|sum)$`)
	for where, expr := range Queries() {
		for _, name := range metricName.FindAllString(expr, -1) {
			if !strings.Contains(string(page), "| `"+name+"` |") && !strings.Contains(string(page), "| `"+suffix.ReplaceAllString(name, "")+"` | histogram |") {
				t.Errorf("%s asks for %s, which no process has", where, name)
			}
		}
	}
}

func TestRecordedNamesThatAreAskedAreRecorded(t *testing.T) {
	recorded := map[string]bool{}
	for _, r := range Records() {
		if recorded[r.Name] {
			t.Errorf("%s is recorded twice", r.Name)
		}
		recorded[r.Name] = true
	}
	asked := regexp.MustCompile(`\bperceptor:[a-z0-9_:]+`)
	for where, expr := range Queries() {
		for _, name := range asked.FindAllString(expr, -1) {
			if !recorded[name] {
				t.Errorf("%s asks for %s, which no rule records", where, name)
			}
		}
	}
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	names := map[string]bool{}
	for _, a := range Alerts() {
		if names[a.Name] {
			t.Errorf("there are two alerts %s", a.Name)
		}
		names[a.Name] = true
		if a.Summary == "" || a.Action == "" || a.Severity != Page && a.Severity != Ticket {
			t.Errorf("%s lacks a summary, an action or a severity: %+v", a.Name, a)
		}
	}
}
