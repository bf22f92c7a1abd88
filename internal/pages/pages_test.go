package pages

import (
	"flag"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

var write = flag.Bool("write", false, "write the code of files into the pages that show it")

// read returns the pages of the repository by path.
func read(t *testing.T) map[string]*Page {
	t.Helper()
	all, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]*Page{}
	for _, p := range all {
		pages[p.Path] = p
	}
	return pages
}

func TestLinksLeadSomewhere(t *testing.T) {
	pages := read(t)
	links := 0
	for _, p := range pages {
		for _, l := range p.Links {
			if l.External() {
				continue
			}
			links++
			name, fragment, err := p.Resolve(l)
			if err != nil {
				t.Errorf("%s:%d: %v", p.Path, l.Line, err)
				continue
			}
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s:%d: %s leads to %s, which does not exist", p.Path, l.Line, l.Target, name)
				continue
			}
			if fragment == "" {
				continue
			}
			if to := pages[name]; to == nil || !to.Anchors[fragment] {
				t.Errorf("%s:%d: %s has no heading #%s", p.Path, l.Line, name, fragment)
			}
		}
	}
	if links < 300 {
		t.Errorf("found %d links, which is too few to be all of them", links)
	}
}

// ways are the pages that must lead to all others of their folder.
var ways = map[string]string{"docs": "docs/README.md", "docs/tutorials": "docs/README.md", "docs/adr": "docs/adr/README.md"}

func TestEveryPageHasAWayIn(t *testing.T) {
	pages := read(t)
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		way := ways[path.Dir(name)]
		if way == "" || name == way {
			continue
		}
		from := pages[way]
		if !slices.ContainsFunc(from.Links, func(l Link) bool { to, _, err := from.Resolve(l); return err == nil && to == name }) {
			t.Errorf("%s does not lead to %s", way, name)
		}
	}
}

func TestCodeOnPagesIsThatOfItsFile(t *testing.T) {
	found := 0
	for _, p := range read(t) {
		text := p.Text
		for _, b := range p.Blocks {
			if b.Source == "" {
				continue
			}
			found++
			want, err := Code(root, b.Source)
			if err != nil {
				t.Errorf("%s:%d: %v", p.Path, b.Line, err)
				continue
			}
			if b.Text != want && !*write {
				t.Errorf("%s:%d is not what %s says: run go generate ./internal/pages", p.Path, b.Line, b.Source)
			}
			text = strings.Replace(text, above(b)+b.Text+"```", above(b)+want+"```", 1)
		}
		if *write && text != p.Text {
			if err := os.WriteFile(filepath.Join(root, p.Path), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if found < 5 {
		t.Errorf("found %d blocks with code of files, which is too few to be all of them", found)
	}
}

// above returns the lines above the code of a block.
func above(b Block) string {
	return "<!-- code: " + b.Source + " -->\n```" + b.Info + "\n"
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	p := Parse("docs/a.md", strings.Join([]string{
		"# Who may do what?", "## `perceptorctl clock`", "## T1 Types", "## See [here](b.md), too", "## T1 Types", "## Größe_1", `<a id="own">`,
		"```sh", "# not a heading", "[x](not-a-link.md)", "```", "[a](b.md#x) and `[c](d.md)` and <!-- [e](f.md) -->", "[g]: ../h.md",
		`<img src="i.svg">`,
	}, "\n"))
	anchors := []string{"größe_1", "own", "perceptorctl-clock", "see-here-too", "t1-types", "t1-types-1", "who-may-do-what"}
	if got := slices.Sorted(maps.Keys(p.Anchors)); !slices.Equal(got, anchors) {
		t.Errorf("anchors = %q, want %q", got, anchors)
	}
	links := []Link{{4, "b.md"}, {12, "b.md#x"}, {13, "../h.md"}, {14, "i.svg"}}
	if !slices.Equal(p.Links, links) {
		t.Errorf("links = %v, want %v", p.Links, links)
	}
	if _, _, err := p.Resolve(Link{Target: "../../x.md"}); err == nil {
		t.Error("a link that leaves the repository is accepted")
	}
}

func TestDeclarationsAreFoundByName(t *testing.T) {
	got, err := Code(root, "internal/pages/page.go Link Link.External")
	if err != nil || !strings.HasPrefix(got, "// Link is a link") || !strings.Contains(got, "\n\n// External reports") || !strings.HasSuffix(got, "\n}\n") {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := Code(root, "internal/pages/page.go Nothing"); err == nil {
		t.Error("a declaration that does not exist is found")
	}
}

func TestFaultsOfASiteAreFound(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"index.html":   `<a href="docs/a.html#here">a</a> <a href="#top">x</a> <h1 id=top>T</h1> <script src="https://example.com/x.js"></script> <a href="https://example.com">ok</a>`,
		"docs/a.html":  `<h2 id="here">H</h2> <a href="../index.html#gone">b</a> <img src="gone.svg"> <a href=../index.html#top>c</a>`,
		"docs/ok.html": `<a href="a.html?x=1#here">d</a>`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n, faults, err := CheckSite(dir)
	slices.Sort(faults)
	want := []string{
		"docs/a.html: ../index.html#gone: there is no #gone",
		"docs/a.html: gone.svg leads to docs/gone.svg, which does not exist",
		"index.html: <script> fetches https://example.com/x.js from another site",
	}
	if err != nil || n != 3 || !slices.Equal(faults, want) {
		t.Errorf("%d pages, %v, faults:\n%s", n, err, strings.Join(faults, "\n"))
	}
}

// These match what pages name: files, targets of the Makefile, and tests.
var (
	namedFile   = regexp.MustCompile("`((?:[\\w.-]+/)+[\\w.-]+\\.(?:go|sql|proto|sh))`")
	namedTarget = regexp.MustCompile("`make ([a-z-]+)[ `]")
	namedTest   = regexp.MustCompile(`\b((?:Test|Benchmark|Fuzz)[A-Z]\w+)`)
	function    = regexp.MustCompile(`(?m)^func (\w+)`)
)

func TestFilesTargetsAndTestsThatPagesNameExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	for _, p := range read(t) {
		if path.Dir(p.Path) == "docs/adr" || p.Path == "CHANGELOG.md" {
			continue // they say what was there once
		}
		for _, m := range namedFile.FindAllStringSubmatch(p.Text, -1) {
			_, err := os.Stat(filepath.Join(root, m[1]))
			_, near := os.Stat(filepath.Join(root, path.Dir(p.Path), m[1]))
			if err != nil && near != nil {
				t.Errorf("%s: there is no file %s", p.Path, m[1])
			}
		}
		for _, m := range namedTarget.FindAllStringSubmatch(p.Text, -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: the Makefile has no target %s", p.Path, m[1])
			}
		}
		for _, m := range namedTest.FindAllString(p.Text, -1) {
			if m != "TestName" && !tests[m] && !strings.Contains(p.Text, "func "+m) {
				t.Errorf("%s: there is no test %s", p.Path, m)
			}
		}
	}
}

// testNames returns the names of all functions of test files.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || filepath.Base(name) == "node_modules" || name == "third_party" || name == ".git"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
