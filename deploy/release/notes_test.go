package release

import "testing"

func TestNotesAreThoseOfTheVersion(t *testing.T) {
	t.Parallel()
	const log = "# Changelog\n\n## Unreleased\n\n### Tasks\n- new\n\n## [1.1.0] - 2026-02-01\n\n- one\n\n## 1.0.0 (2026-01-01)\n- zero\n"
	for _, c := range []struct{ version, want string }{
		{"1.1.0", "- one\n"},
		{"1.0.0", "- zero\n"},
		{"1.2.0-rc.1", "### Tasks\n- new\n"},
	} {
		if got, err := notes(log, c.version); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.version, got, err, c.want)
		}
	}
	if got, err := notes(log, "1.2.0"); err == nil {
		t.Errorf("a version without a heading has the notes %q", got)
	}
}

func TestATemplateWithAnUnknownNameIsRefused(t *testing.T) {
	t.Parallel()
	p := &Plan{Version: "1.2.3", Commit: "0123456789"}
	if got, err := p.expand("{{ .Version }}-{{ .ShortCommit }}", nil); err != nil || got != "1.2.3-0123456" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, text := range []string{"{{ .Versoin }}", "{{ incpatch .Version }}"} {
		if got, err := p.expand(text, nil); err == nil {
			t.Errorf("%s gives %q", text, got)
		}
	}
}
