package timingspec

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	sentence = regexp.MustCompile(`(?m)^\*\*(T\d+\.\d+)\*\* .+ \*.+\*$`)
	number   = regexp.MustCompile(`(?m)^\*\*(T\d+\.\d+)\*\*`)
	citation = regexp.MustCompile(`timing:((?:[ ,]+T\d+\.\d+)+)`)
)

// repository is the root, seen from here.
const repository = "../.."

func TestEverySentenceOfTheContractIsCitedAndEveryCitationIsOne(t *testing.T) {
	page, err := os.ReadFile(repository + "/docs/timing.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range number.FindAllStringSubmatch(string(page), -1) {
		if known[m[1]] {
			t.Errorf("%s is there twice", m[1])
		}
		known[m[1]] = true
	}
	if n := len(sentence.FindAllString(string(page), -1)); n != len(known) || n == 0 {
		t.Errorf("%d of %d sentences have an example", n, len(known))
	}
	cited := citations(t)
	for n := range known {
		if len(cited[n]) == 0 {
			t.Errorf("%s: no test cites it", n)
		}
	}
	for n, files := range cited {
		if !known[n] {
			t.Errorf("%s: there is no such sentence; cited in %s", n, strings.Join(files, ", "))
		}
	}
}

// citations returns the files of tests by the sentences that they cite.
func citations(t *testing.T) map[string][]string {
	cited := map[string][]string{}
	err := filepath.WalkDir(repository, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && slices.Contains([]string{".git", "third_party", "node_modules", "testdata"}, e.Name()):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range citation.FindAllStringSubmatch(string(text), -1) {
			for _, n := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ' ' || r == ',' }) {
				cited[n] = append(cited[n], strings.TrimPrefix(path, repository+"/"))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return cited
}
