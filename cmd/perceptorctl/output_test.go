package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestYAMLHasTheNamesAndValuesOfJSON(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{
		"json": "{\n  \"name\": \"true\",\n  \"defaultRetention\": \"3600s\",\n  \"weight\": 2,\n  \"pausedKinds\": [\n    \"a: b\",\n    \"007\"\n  ]\n}\n",
		"yaml": "name: \"true\"\ndefaultRetention: 3600s\nweight: 2\npausedKinds:\n  - 'a: b'\n  - \"007\"\n",
	} {
		var out strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		c := &ctl{output: output}
		m := &perceptorv1.Tenant{Name: "true", Weight: 2, DefaultRetention: durationpb.New(3600e9), PausedKinds: []string{"a: b", "007"}}
		if err := c.show(cmd, m, nil); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("%s:\n%s\nwant\n%s", output, out.String(), want)
		}
	}
}

func TestATenantThatIsBeingDeletedIsNotSaidToBePaused(t *testing.T) {
	t.Parallel()
	if got := ratesCell(&perceptorv1.Tenant{Paused: true, Deleting: true, Weight: 3}); got != "being deleted, weight 3" {
		t.Errorf("%q", got)
	}
}

func TestDataHasNoCharactersThatTerminalsObey(t *testing.T) {
	t.Parallel()
	const hostile = "red \x1b[31m \u009b31m \u009d0;title\u009c \x7f \u0085 \u2028 \ufeff \ufffe \uffff \\u009b ü <&> \U0001f600"
	m := &perceptorv1.DeadRun{Kind: "mail", Error: hostile}
	for _, output := range []string{"json", "yaml"} {
		var out strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		if err := (&ctl{output: output}).show(cmd, m, nil); err != nil {
			t.Errorf("%s: %v", output, err)
			continue
		}
		if strings.ContainsFunc(out.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
			t.Errorf("%s has control characters: %q", output, out.String())
		}
		var back struct{ Error string }
		if err := yaml.Unmarshal([]byte(out.String()), &back); err != nil || back.Error != hostile { // JSON is YAML, too
			t.Errorf("%s is read as %q, want %q: %v", output, back.Error, hostile, err)
		}
		if output == "json" && (!strings.Contains(out.String(), `\u009b31m`) || json.Unmarshal([]byte(out.String()), &back) != nil || back.Error != hostile) {
			t.Errorf("%s is not the JSON of %q", out.String(), hostile)
		}
	}
}
