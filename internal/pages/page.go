package pages

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Page is a Markdown file.
type Page struct {
	// Path is the path below the root of the repository, with slashes.
	Path string
	Text string
	// Anchors are the fragments to which links may lead.
	Anchors map[string]bool
	Links   []Link
	Blocks  []Block
}

// Link is a link or a picture of a page.
type Link struct {
	// Line is the number of the line, from 1.
	Line int
	// Target is what the page says: a URL, or a path relative to the page's folder.
	Target string
}

// Block is a fenced block of code.
type Block struct {
	// Line is the number of the line with the fence, from 1.
	Line int
	// Info is the text behind the fence, such as "sh".
	Info string
	// Text is the code, with a newline at the end of each line.
	Text string
	// Source is what the comment above the block says after "code:"; "" if there is none.
	Source string
}

// Read reads all pages below root, except those of hidden folders, of testdata, and of
// what builds write.
func Read(root string) ([]*Page, error) {
	var all []*Page
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules" || name == "bin" || name == "third_party"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			all = append(all, Parse(name, string(text)))
		}
		return err
	})
	return all, err
}

// Parse reads the text of the page at a path below the root.
func Parse(name, text string) *Page {
	p := &Page{Path: name, Text: text, Anchors: map[string]bool{}}
	prose := p.cutBlocks()
	p.findAnchors(prose)
	p.findLinks(code.ReplaceAllStringFunc(prose, func(s string) string { return strings.Repeat("x", len(s)) }))
	return p
}

var (
	// code is code within a line, and a comment.
	code   = regexp.MustCompile("`[^`\n]+`|(?s:<!--.*?-->)")
	source = regexp.MustCompile(`^<!-- code: (.+) -->$`)
	// inline, named and attribute are the forms of a link: [text](target), [name]: target, src="target".
	inline    = regexp.MustCompile(`\]\(([^()\s]*)(?:\s+"[^"]*")?\)`)
	named     = regexp.MustCompile(`(?m)^\[[^\]]+\]:\s*(\S+)`)
	attribute = regexp.MustCompile(`\b(?:src|srcset|href)="([^"]*)"`)
)

// cutBlocks collects the blocks and returns the text without them, with the same lines.
func (p *Page) cutBlocks() string {
	var prose []string
	var open *Block
	fence, before := "", ""
	for i, line := range strings.Split(p.Text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case open != nil && trimmed == fence:
			p.Blocks = append(p.Blocks, *open)
			open = nil
		case open != nil:
			open.Text += line + "\n"
		case strings.HasPrefix(trimmed, "```"):
			info := strings.TrimLeft(trimmed, "`")
			fence = trimmed[:len(trimmed)-len(info)]
			open = &Block{Line: i + 1, Info: strings.TrimSpace(info)}
			if m := source.FindStringSubmatch(before); m != nil {
				open.Source = m[1]
			}
		default:
			prose, before = append(prose, line), trimmed
			continue
		}
		prose = append(prose, "")
	}
	return strings.Join(prose, "\n")
}

var (
	heading  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#*$`)
	linkText = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	anchor   = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

// findAnchors collects the anchors of headings, which GitHub numbers if they repeat,
// and those that the page names itself.
func (p *Page) findAnchors(prose string) {
	for _, m := range heading.FindAllStringSubmatch(prose, -1) {
		slug := Slug(m[1])
		name := slug
		for n := 1; p.Anchors[name]; n++ {
			name = slug + "-" + strconv.Itoa(n)
		}
		p.Anchors[name] = true
	}
	for _, m := range anchor.FindAllStringSubmatch(prose, -1) {
		p.Anchors[m[1]] = true
	}
}

// Slug returns the anchor that GitHub gives a heading.
func Slug(heading string) string {
	text := linkText.ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}

func (p *Page) findLinks(prose string) {
	for _, form := range []*regexp.Regexp{inline, named, attribute} {
		for _, m := range form.FindAllStringSubmatchIndex(prose, -1) {
			p.Links = append(p.Links, Link{Line: 1 + strings.Count(prose[:m[2]], "\n"), Target: prose[m[2]:m[3]]})
		}
	}
}

// External reports whether a link leaves the repository.
func (l Link) External() bool {
	return strings.HasPrefix(l.Target, "https://") || strings.HasPrefix(l.Target, "http://") || strings.HasPrefix(l.Target, "mailto:")
}

// Resolve returns the path below the root to which a link of the page leads, and the
// fragment. It returns an error for a link that leaves the repository by its path.
func (p *Page) Resolve(l Link) (name, fragment string, err error) {
	name, fragment, _ = strings.Cut(l.Target, "#")
	switch {
	case name == "" && fragment == "":
		return "", "", fmt.Errorf("the link is empty")
	case name == "":
		return p.Path, fragment, nil
	case strings.HasPrefix(name, "/"):
		return "", "", fmt.Errorf("%s begins with a slash: paths are relative to the page", l.Target)
	}
	name = path.Join(path.Dir(p.Path), name)
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", "", fmt.Errorf("%s is outside of the repository", l.Target)
	}
	return name, fragment, nil
}
