package guard

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// development are the modules that only taskd dev needs: a Kafka broker and a downloader of
// PostgreSQL. They have no place in what others install.
var development = []string{"github.com/twmb/franz-go/pkg/kfake", "github.com/fergusstrange/embedded-postgres"}

func TestReleaseBuildsHaveNoServersOfTheDevelopmentInstallation(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"taskd", "dispatcher", "perceptorctl"} {
		deps := dependencies(t, "-tags", "release", "../../cmd/"+program)
		for _, pkg := range append([]string{module + "internal/dev", module + "internal/pgserver"}, development...) {
			if slices.Contains(deps, pkg) {
				t.Errorf("a release of %s contains %s", program, pkg)
			}
		}
	}
	deps := dependencies(t, "../../cmd/taskd")
	for _, pkg := range development {
		if !slices.Contains(deps, pkg) {
			t.Errorf("the default build of taskd does not contain %s, which taskd dev needs", pkg)
		}
	}
}

func dependencies(t *testing.T, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", append([]string{"list", "-deps"}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}
