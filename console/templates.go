package console

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"strings"
)

//go:embed templates/*.html
var templateFiles embed.FS

// templates are the templates by the name of their page. Each has those of layout.html,
// parts.html and its own file, which defines "content".
type templates map[string]*template.Template

func parseTemplates(f *files) (templates, error) {
	base, err := template.New("").Funcs(functions(f)).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	all := templates{"": base}
	for _, file := range names {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		own, err := template.Must(base.Clone()).ParseFS(templateFiles, file)
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		all[name] = own
	}
	return all, nil
}

func (t templates) execute(w io.Writer, v *view, part string) error {
	name := v.Name()
	if v.Problem != nil && v.Data == nil {
		name = ""
	}
	own, ok := t[name]
	if !ok {
		return fmt.Errorf("there is no template %q", name)
	}
	return own.ExecuteTemplate(w, part, v)
}
