package release

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Notes returns the part of CHANGELOG.md about a version, without its heading; for a version
// with a suffix, such as 1.0.0-rc.1, the part "Unreleased" if it has none of its own.
func (p *Plan) Notes() (string, error) {
	text, err := os.ReadFile(filepath.Join(p.Root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	return notes(string(text), p.Version)
}

func notes(changelog, version string) (string, error) {
	parts := map[string]string{}
	for _, part := range strings.Split("\n"+changelog, "\n## ")[1:] {
		heading, body, _ := strings.Cut(part, "\n")
		name, _, _ := strings.Cut(strings.Trim(heading, "[] "), " ") // "1.2.3 (2026-01-31)"
		parts[strings.Trim(name, "[]")] = strings.TrimSpace(body)
	}
	body := parts[version]
	if body == "" && strings.Contains(version, "-") {
		body = parts["Unreleased"]
	}
	if body == "" {
		return "", fmt.Errorf("CHANGELOG.md says nothing of version %s: rename the heading Unreleased", version)
	}
	return body + "\n", nil
}
