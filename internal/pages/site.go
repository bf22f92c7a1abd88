package pages

import (
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	ids = regexp.MustCompile(`\sid="?([^"\s>]+)"?`)
	// references are the attributes by which a page of a site refers to something.
	references = regexp.MustCompile(`<(\w+)[^>]*?\s(?:href|src)="?([^"\s>]*)"?`)
)

// CheckSite reads the HTML pages in a folder. It returns a fault for each link that leads
// nowhere, and for each script, style and picture of another site.
func CheckSite(dir string) (pages int, faults []string, err error) {
	texts, anchors := map[string]string{}, map[string]map[string]bool{}
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".html" {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		texts[name], anchors[name] = string(text), map[string]bool{}
		for _, m := range ids.FindAllStringSubmatch(string(text), -1) {
			anchors[name][html.UnescapeString(m[1])] = true
		}
		return err
	})
	for name, text := range texts {
		for _, m := range references.FindAllStringSubmatch(text, -1) {
			if fault := checkReference(dir, name, m[1], html.UnescapeString(m[2]), anchors); fault != "" {
				faults = append(faults, fmt.Sprintf("%s: %s", name, fault))
			}
		}
	}
	return len(texts), faults, err
}

// checkReference says what is wrong with a reference of an element on a page; "" if nothing is.
func checkReference(dir, page, element, to string, anchors map[string]map[string]bool) string {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return err.Error()
	case u.Scheme != "" || u.Host != "":
		if element != "a" {
			return fmt.Sprintf("<%s> fetches %s from another site", element, to)
		}
		return ""
	}
	name := page
	if u.Path != "" {
		name = path.Join(path.Dir(page), u.Path)
	}
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil || strings.HasPrefix(name, "../") {
		return fmt.Sprintf("%s leads to %s, which does not exist", to, name)
	}
	if u.Fragment != "" && !anchors[name][u.Fragment] {
		return fmt.Sprintf("%s: there is no #%s", to, u.Fragment)
	}
	return ""
}
