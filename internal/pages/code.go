package pages

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// Code returns what a comment above a block selects: a file below root, or
// declarations of a Go file. A method is named Type.Method.
func Code(root, selection string) (string, error) {
	words := strings.Fields(selection)
	name := filepath.Join(root, filepath.FromSlash(words[0]))
	text, err := os.ReadFile(name)
	if err != nil || len(words) == 1 {
		return string(text), err
	}
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	byName := map[string]string{}
	for _, decl := range tree.Decls {
		begin := decl.Pos()
		if doc := docOf(decl); doc != nil {
			begin = doc.Pos()
		}
		code := string(text[files.Position(begin).Offset:files.Position(decl.End()).Offset])
		for _, declared := range namesOf(decl) {
			byName[declared] = code + "\n"
		}
	}
	var parts []string
	for _, wanted := range words[1:] {
		part, ok := byName[wanted]
		if !ok {
			return "", fmt.Errorf("%s declares no %s", words[0], wanted)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "\n"), nil
}

func docOf(decl ast.Decl) *ast.CommentGroup {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		return d.Doc
	case *ast.GenDecl:
		return d.Doc
	}
	return nil
}

// namesOf returns the names that a declaration declares.
func namesOf(decl ast.Decl) (names []string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			return []string{receiver(d.Recv.List[0].Type) + "." + d.Name.Name}
		}
		return []string{d.Name.Name}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

func receiver(t ast.Expr) string {
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
