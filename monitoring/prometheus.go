package monitoring

import (
	"bytes"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
)

// The format of Prometheus' rule files.
type (
	ruleFile  struct{ Groups []ruleGroup }
	ruleGroup struct {
		Name     string
		Interval string `yaml:",omitempty"`
		Rules    []rule
	}
	rule struct {
		Record      string            `yaml:",omitempty"`
		Alert       string            `yaml:",omitempty"`
		Expr        string            `yaml:""`
		For         string            `yaml:",omitempty"`
		Labels      map[string]string `yaml:",omitempty"`
		Annotations map[string]string `yaml:",omitempty"`
	}
)

// The names of the groups of rules.
const (
	recordGroup = "perceptor-records"
	alertGroup  = "perceptor-alerts"
)

// Rules returns the file of rules for Prometheus.
func Rules() ([]byte, error) {
	records := ruleGroup{Name: recordGroup}
	for _, r := range Records() {
		records.Rules = append(records.Rules, rule{Record: r.Name, Expr: r.Expr})
	}
	alerts := ruleGroup{Name: alertGroup}
	for _, a := range Alerts() {
		alerts.Rules = append(alerts.Rules, rule{
			Alert: a.Name, Expr: a.Expr(), For: duration(a.For), Labels: map[string]string{"severity": string(a.Severity)},
			Annotations: map[string]string{"summary": a.Summary, "runbook": "docs/operations.md#alerts: " + a.Name},
		})
	}
	var out bytes.Buffer
	out.WriteString("# Written by go generate ./monitoring; the source is the package monitoring.\n")
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(ruleFile{[]ruleGroup{records, alerts}}); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}

// duration formats whole minutes as Prometheus does. 0 is "".
func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%dm", int(d.Minutes()))
}
