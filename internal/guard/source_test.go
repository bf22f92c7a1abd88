package guard

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/perceptor/perceptor/"
)

// A goFile is one Go file of the module.
type goFile struct {
	path string // below the root
	pkg  string // the package's path in the module
	test bool
	tree *ast.File
}

var files = token.NewFileSet()

// goFiles returns all Go files of the module, parsed.
func goFiles(t *testing.T) []*goFile {
	t.Helper()
	all, err := parseModule()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var parseModule = sync.OnceValues(func() ([]*goFile, error) {
	var all []*goFile
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && outside(name):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		tree, err := parser.ParseFile(files, filepath.Join(root, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		all = append(all, &goFile{path: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), tree: tree})
		return err
	})
	return all, err
})

// outside reports whether a folder is no part of the module: it has a go.mod of its
// own, holds what tests write, or is hidden.
func outside(folder string) bool {
	if folder == "." {
		return false
	}
	_, err := os.Stat(filepath.Join(root, folder, "go.mod"))
	base := path.Base(folder)
	return err == nil || strings.HasPrefix(base, ".") || base == "testdata" || base == "third_party" || folder == "bin"
}

func (f *goFile) imports() []string {
	var paths []string
	for _, spec := range f.tree.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser has read it
		}
		paths = append(paths, p)
	}
	return paths
}

// at returns the place of a node as file:line.
func (f *goFile) at(n ast.Node) string {
	return f.path + ":" + strconv.Itoa(files.Position(n.Pos()).Line)
}
