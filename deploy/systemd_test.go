package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var units = []string{"taskd.service", "dispatcher.service", "perceptor-migrate.service"}

// mostExposed is the most that systemd-analyze may say of a unit, in tenths: the units have 11. A
// service without any bound has 96.
const mostExposed = "15"

// analyze runs systemd-analyze.
func analyze(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is missing: install the package systemd; .ci/run does")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// placed writes the units with the paths of the built programs, which systemd looks for.
func placed(t *testing.T) []string {
	t.Helper()
	var paths []string
	dir := t.TempDir()
	for _, unit := range units {
		text := strings.ReplaceAll(read(t, filepath.Join("systemd", unit)), "/usr/bin/", programs+"/")
		path := filepath.Join(dir, unit)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestSystemdAcceptsTheUnits(t *testing.T) {
	t.Parallel()
	analyze(t, append([]string{"verify", "--man=no"}, placed(t)...)...)
}

func TestUnitsMayDoLittle(t *testing.T) {
	t.Parallel()
	for _, path := range placed(t) {
		analyze(t, "security", "--offline=true", "--threshold="+mostExposed, path)
	}
}

// packaged is the file system of a machine with the package, the secrets being there.
func packaged(t *testing.T) tree {
	return tree{
		"/etc/perceptor/perceptor.yaml":         read(t, "systemd/perceptor.yaml"),
		"/etc/perceptor/secrets/dsn":            "postgres://perceptor:secret@db-1/perceptor?sslmode=verify-full&sslrootcert=/etc/perceptor/ca.pem\n",
		"/etc/perceptor/secrets/kafka-password": "secret\n",
	}
}

var execStart = regexp.MustCompile(`(?m)^ExecStart=/usr/bin/(\S+) (.*)$`)

func TestProgramsAcceptTheConfigurationOfThePackage(t *testing.T) {
	t.Parallel()
	for _, unit := range units {
		m := execStart.FindStringSubmatch(read(t, filepath.Join("systemd", unit)))
		if m == nil {
			t.Fatalf("%s starts nothing", unit)
		}
		if _, err := packaged(t).configured(t, m[1], nil, strings.Fields(m[2])...); err != nil {
			t.Errorf("%s: %v", unit, err)
		}
	}
}

func TestSystemdWaitsForTheProgramsToStop(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"taskd", "dispatcher"} {
		unit := read(t, filepath.Join("systemd", program+".service"))
		m := regexp.MustCompile(`(?m)^TimeoutStopSec=(\S+)$`).FindStringSubmatch(unit)
		printed, err := packaged(t).configured(t, program, nil, "--config", "/etc/perceptor/perceptor.yaml")
		if err != nil || m == nil {
			t.Fatal(m, err)
		}
		if needed := stopTime(t, program, printed); parse(t, m[1]) <= needed {
			t.Errorf("%s.service kills it after %s; its configuration may take %s", program, m[1], needed)
		}
	}
}

// TestEveryUnitIsHardenedAlike: what one program may do, the others may.
func TestEveryUnitIsHardenedAlike(t *testing.T) {
	t.Parallel()
	part := func(unit string) string {
		_, text, found := strings.Cut(read(t, filepath.Join("systemd", unit)), "\nNoNewPrivileges=yes\n")
		if !found {
			t.Fatalf("%s has no part about what it may do", unit)
		}
		text, _, _ = strings.Cut(text, "\n\n")
		return strings.TrimSpace(text)
	}
	for _, unit := range units[1:] {
		if part(unit) != part(units[0]) {
			t.Errorf("%s may do other things than %s", unit, units[0])
		}
	}
}
