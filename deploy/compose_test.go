package deploy

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

// prepared copies the folder of the project beside the monitoring of the clone, runs prepare.sh
// there, and returns the folder.
func prepared(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "deploy", "compose")
	if err := os.CopyFS(dir, os.DirFS("compose")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(root, "monitoring"), os.DirFS("../monitoring")); err != nil {
		t.Fatal(err)
	}
	prepare(t, dir)
	return dir
}

func prepare(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "prepare.sh"), "perceptor.example.com").CombinedOutput(); err != nil {
		t.Fatalf("prepare.sh: %v\n%s", err, out)
	}
}

// loaded reads the project as docker compose does.
func loaded(t *testing.T, dir string, files ...string) *types.Project {
	t.Helper()
	for i := range files {
		files[i] = filepath.Join(dir, files[i])
	}
	options, err := cli.NewProjectOptions(files, cli.WithWorkingDirectory(dir), cli.WithEnvFiles(), cli.WithDotEnv, cli.WithProfiles([]string{"*"}))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// contained is the file system of a service's container.
func contained(t *testing.T, project *types.Project, s types.ServiceConfig) tree {
	t.Helper()
	files := tree{}
	for _, c := range s.Configs {
		files[c.Target] = read(t, project.Configs[c.Source].File)
	}
	for _, c := range s.Secrets {
		target := c.Target
		if !filepath.IsAbs(target) {
			target = "/run/secrets/" + c.Source
		}
		files[target] = read(t, project.Secrets[c.Source].File)
	}
	return files
}

func environment(s types.ServiceConfig) map[string]string {
	env := map[string]string{}
	for name, value := range s.Environment {
		if value != nil {
			env[name] = *value
		}
	}
	return env
}

// program returns the program of Perceptor that a service runs, and its arguments; "" if it
// runs something else.
func program(s types.ServiceConfig) (string, []string) {
	if !strings.HasPrefix(s.Image, "perceptor:") {
		return "", nil
	}
	words := slices.Concat(s.Entrypoint, s.Command)
	return filepath.Base(words[0]), words[1:]
}

func TestProgramsAcceptTheConfigurationOfTheComposeProject(t *testing.T) {
	t.Parallel()
	dir := prepared(t)
	for name, files := range map[string][]string{"postgres": {"compose.yaml"}, "zookeeper": {"compose.yaml", "compose.zookeeper.yaml"}} {
		project := loaded(t, dir, files...)
		checked := map[string]int{}
		for _, s := range project.Services {
			p, args := program(s)
			if p == "" {
				continue
			}
			checked[p]++
			if p == "perceptorctl" && len(args) == 0 {
				args = []string{"doctor"}
			}
			printed, err := contained(t, project, s).configured(t, p, environment(s), args...)
			switch {
			case err != nil:
				t.Errorf("%s, %s: %v", name, s.Name, err)
			case p == "taskd" || p == "dispatcher":
				if needed := stopTime(t, p, printed); s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) <= needed {
					t.Errorf("%s: %s is killed after %v; its configuration may take %s", name, s.Name, s.StopGracePeriod, needed)
				}
			}
		}
		if want := map[string]int{"taskd": 2, "dispatcher": 2, "perceptorctl": 2}; !maps.Equal(checked, want) {
			t.Errorf("%s: got services %v, want %v", name, checked, want)
		}
	}
}

// once are services that end, or that somebody runs by hand.
var once = []string{"migrate", "perceptorctl"}

func TestEveryServiceHasBoundsAndAHealthCheck(t *testing.T) {
	t.Parallel()
	for _, s := range loaded(t, prepared(t), "compose.yaml", "compose.zookeeper.yaml").Services {
		if s.Deploy == nil || s.Deploy.Resources.Limits == nil || s.Deploy.Resources.Limits.MemoryBytes == 0 || s.Deploy.Resources.Limits.NanoCPUs == 0 || s.Deploy.Resources.Limits.Pids == 0 {
			t.Errorf("%s has no limit of memory, processors or processes", s.Name)
		}
		if !slices.Contains(s.CapDrop, "ALL") || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") || s.Privileged {
			t.Errorf("%s may do more than it needs", s.Name)
		}
		if (s.HealthCheck == nil || len(s.HealthCheck.Test) == 0) && !slices.Contains(once, s.Name) {
			t.Errorf("%s has no health check", s.Name)
		}
		if p, _ := program(s); p == "" && (!strings.Contains(s.Image, ":") || strings.HasSuffix(s.Image, ":latest")) {
			t.Errorf("%s: the image %s has no version", s.Name, s.Image)
		} else if p != "" && (!s.ReadOnly || s.User != "65532:65532") {
			t.Errorf("%s: read-only %v as %q, want a read-only root as 65532:65532", s.Name, s.ReadOnly, s.User)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open on %q without being asked for", s.Name, port.Published, port.HostIP)
			}
		}
	}
}

func TestSecretsAreInFilesOnly(t *testing.T) {
	t.Parallel()
	dir := prepared(t)
	project := loaded(t, dir, "compose.yaml")
	if len(project.Secrets) == 0 {
		t.Fatal("the project has no secrets")
	}
	for name, secret := range project.Secrets {
		value := strings.TrimSpace(read(t, secret.File))
		info, err := os.Stat(secret.File)
		if err != nil {
			t.Fatal(err)
		}
		if len(value) < 32 || info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s has %d bytes and mode %s, want a secret that others cannot read", name, len(value), info.Mode())
		}
		for _, s := range project.Services {
			for variable, v := range environment(s) {
				if strings.Contains(v, value) {
					t.Errorf("%s: %s holds the secret %s", s.Name, variable, name)
				}
			}
		}
	}
}

func TestPreparingAgainChangesNothing(t *testing.T) {
	t.Parallel()
	dir := prepared(t)
	state := func() tree {
		files := tree{".env": read(t, filepath.Join(dir, ".env"))}
		entries, err := os.ReadDir(filepath.Join(dir, "secrets"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			files[e.Name()] = read(t, filepath.Join(dir, "secrets", e.Name()))
		}
		return files
	}
	before := state()
	prepare(t, dir)
	if after := state(); !maps.Equal(before, after) {
		t.Errorf("secrets have changed: %v, then %v", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	}
}

// scraping is the part of a configuration of Prometheus that names whom it asks.
type scraping struct {
	Configs []struct {
		Static []struct {
			Targets []string `json:"targets"`
		} `json:"static_configs"`
	} `json:"scrape_configs"`
}

func TestPrometheusAsksEveryProgram(t *testing.T) {
	t.Parallel()
	dir := prepared(t)
	project := loaded(t, dir, "compose.yaml")
	var c scraping
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(dir, "prometheus", "prometheus.yml"))), &c); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, s := range project.Services {
		p, args := program(s)
		if p != "taskd" && p != "dispatcher" {
			continue
		}
		printed, _ := contained(t, project, s).configured(t, p, environment(s), args...)
		want = append(want, s.Hostname+setting(t, printed, p+".ops_addr"))
	}
	for _, config := range c.Configs {
		for _, static := range config.Static {
			got = append(got, static.Targets...)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("Prometheus asks %v, want %v", got, want)
	}
}

func TestPrometheusAcceptsItsConfiguration(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing: install the package prometheus; .ci/run does")
	}
	project := loaded(t, prepared(t), "compose.yaml")
	root := t.TempDir()
	contained(t, project, project.Services["prometheus"]).write(t, root)
	out, err := exec.CommandContext(t.Context(), promtool, "check", "config", filepath.Join(root, "etc/prometheus/prometheus.yml")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "1 rule files found") {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

func TestGrafanaFindsTheDashboards(t *testing.T) {
	t.Parallel()
	project := loaded(t, prepared(t), "compose.yaml")
	grafana := project.Services["grafana"]
	home := *grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	for _, v := range grafana.Volumes {
		if rest, below := strings.CutPrefix(home, v.Target+"/"); below && v.Type == types.VolumeTypeBind {
			if !strings.Contains(read(t, filepath.Join(v.Source, rest)), `"panels"`) {
				t.Errorf("%s is no dashboard", rest)
			}
			return
		}
	}
	t.Errorf("%s is in no volume of %v", home, grafana.Volumes)
}
