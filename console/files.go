package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var staticFiles embed.FS

// files are the scripts, styles and pictures of the console. Their names have a hash of
// their content, so browsers keep them for ever.
type files struct {
	// named has the name with hash by file name, content the content by name with hash.
	named   map[string]string
	content map[string][]byte
}

func loadFiles() (*files, error) {
	f := &files{named: map[string]string{}, content: map[string][]byte{}}
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) == ".LICENSE" {
			return err
		}
		content, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		base, ext := path.Base(name), path.Ext(name)
		hashed := strings.TrimSuffix(base, ext) + "." + base64.RawURLEncoding.EncodeToString(sum[:9]) + ext
		f.named[base], f.content[hashed] = root+"static/"+hashed, content
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return f, nil
}

// url returns the address of a file by its name.
func (f *files) url(name string) (string, error) {
	if u, ok := f.named[name]; ok {
		return u, nil
	}
	return "", fmt.Errorf("there is no file %s", name)
}

func (f *files) serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	content, ok := f.content[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
}
