package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
