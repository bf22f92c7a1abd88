package guard

import (
	"strings"
	"testing"
)

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	comments := map[string]string{}
	for _, f := range goFiles(t) {
		if !f.test {
			comments[f.pkg] += f.tree.Doc.Text()
		}
	}
	for _, f := range goFiles(t) {
		text, ok := comments[f.pkg]
		if !ok {
			continue
		}
		delete(comments, f.pkg) // told once
		switch name := f.tree.Name.Name; {
		case text == "":
			t.Errorf("package %s has no comment", f.pkg)
		case name != "main" && !f.test && !strings.HasPrefix(text, "Package "+name+" "):
			t.Errorf("the comment of package %s begins with %.30q, not with its name", f.pkg, text)
		}
	}
}
