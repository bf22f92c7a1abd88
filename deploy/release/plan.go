package release

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

// A Plan is what to build of a clone.
type Plan struct {
	// Root is the top of the clone.
	Root string
	// Version has no leading v.
	Version string
	// Commit is the whole hash, Date the commit's.
	Commit string
	Date   time.Time
	config config.Project
}

// NewPlan reads the description of releases, strictly, and what git says of the clone. An empty
// version stands for that of a snapshot.
func NewPlan(ctx context.Context, root, version string) (*Plan, error) {
	c, err := config.Load(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		return nil, fmt.Errorf(".goreleaser.yaml: %w", err)
	}
	cmd := exec.CommandContext(ctx, "git", "log", "-1", "--format=%H %ct")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git log: %w", err)
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("git log: %w", err)
	}
	p := &Plan{Root: root, Version: strings.TrimPrefix(version, "v"), Commit: commit, Date: time.Unix(at, 0).UTC(), config: c}
	if p.Version == "" {
		p.Version, err = p.expand(c.Snapshot.VersionTemplate, nil)
	}
	return p, err
}

// expand fills in a template of the description. more has names beside those of the release.
func (p *Plan) expand(text string, more map[string]string) (string, error) {
	names := map[string]string{
		"ProjectName": p.config.ProjectName, "Version": p.Version, "FullCommit": p.Commit, "ShortCommit": p.Commit[:7],
		"CommitDate": p.Date.Format(time.RFC3339), "CommitTimestamp": strconv.FormatInt(p.Date.Unix(), 10),
	}
	for name, value := range more {
		names[name] = value
	}
	t, err := template.New("").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", fmt.Errorf(".goreleaser.yaml: %q: %w", text, err)
	}
	var b strings.Builder
	if err := t.Execute(&b, names); err != nil {
		return "", fmt.Errorf(".goreleaser.yaml: %q: %w", text, err)
	}
	return b.String(), nil
}

// A Platform is an operating system and a processor, by Go's names.
type Platform struct{ OS, Arch string }

func (p Platform) String() string { return p.OS + "_" + p.Arch }

func (p Platform) names() map[string]string { return map[string]string{"Os": p.OS, "Arch": p.Arch} }

// Platforms are those that all programs are built for.
func (p *Plan) Platforms() []Platform {
	var all []Platform
	for _, system := range p.config.Builds[0].Goos {
		for _, arch := range p.config.Builds[0].Goarch {
			all = append(all, Platform{system, arch})
		}
	}
	return all
}

// Build builds the programs for a platform into the folder into.
func (p *Plan) Build(ctx context.Context, to Platform, into string) error {
	for _, b := range p.config.Builds {
		flags := []string{"build", "-o", filepath.Join(into, b.Binary)}
		flags = append(flags, b.Flags...)
		ldflags, err := p.expand(strings.Join(b.Ldflags, " "), nil)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", append(flags, "-ldflags="+ldflags, b.Main)...)
		cmd.Dir = p.Root
		cmd.Env = append(cmd.Environ(), append(b.Env, "GOOS="+to.OS, "GOARCH="+to.Arch)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s for %s: %w\n%s", b.ID, to, err, out)
		}
	}
	return nil
}
