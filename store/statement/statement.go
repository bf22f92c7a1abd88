// Package statement reads SQL files that hold named statements:
//
//	-- name: ClaimRange
//	UPDATE ... {{claim_set}} ...;
//
//	-- fragment: claim_set
//	due_at = ...
//
// A fragment is text that statements share; fragments may use fragments. All of
// it is part of the program: values only ever travel as parameters.
package statement

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

var (
	header = regexp.MustCompile(`^-- (name|fragment): (\w+)$`)
	use    = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// Set maps the names of statements to their text.
type Set map[string]string

// Load reads all .sql files at the top of dir.
func Load(dir fs.FS) (Set, error) {
	names, err := fs.Glob(dir, "*.sql")
	if err != nil {
		return nil, err
	}
	statements, fragments := map[string]string{}, map[string]string{}
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		if err := split(string(text), statements, fragments); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	set := Set{}
	for name, text := range statements {
		if set[name], err = expand(text, fragments, 0); err != nil {
			return nil, fmt.Errorf("statement %s: %w", name, err)
		}
	}
	return set, nil
}

// MustLoad is [Load] for files embedded in the program; it panics on an error.
func MustLoad(dir fs.FS, err error) Set {
	if err != nil {
		panic(err)
	}
	set, err := Load(dir)
	if err != nil {
		panic(err)
	}
	return set
}

// Get returns the text of a statement. It panics for a name that does not
// exist: names are constants of the program.
func (s Set) Get(name string) string {
	text, ok := s[name]
	if !ok {
		panic("no SQL statement is named " + name)
	}
	return text
}

// split sorts the pieces of one file into the two maps. Comment lines are
// dropped, so that the server need not parse them.
func split(text string, statements, fragments map[string]string) error {
	var kind, name string
	var body []string
	flush := func() error {
		if name == "" {
			return nil
		}
		into := statements
		if kind == "fragment" {
			into = fragments
		}
		if _, dup := into[name]; dup {
			return fmt.Errorf("%s %s is defined twice", kind, name)
		}
		into[name] = strings.TrimSuffix(strings.TrimSpace(strings.Join(body, "\n")), ";")
		return nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := header.FindStringSubmatch(line); m != nil {
			if err := flush(); err != nil {
				return err
			}
			kind, name, body = m[1], m[2], nil
			continue
		}
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			body = append(body, line)
		}
	}
	return flush()
}

func expand(text string, fragments map[string]string, depth int) (string, error) {
	if depth > 8 {
		return "", fmt.Errorf("fragments are nested more than 8 deep")
	}
	var failed error
	out := use.ReplaceAllStringFunc(text, func(m string) string {
		name := m[2 : len(m)-2]
		body, ok := fragments[name]
		if !ok {
			failed = fmt.Errorf("no fragment is named %s", name)
			return m
		}
		body, err := expand(body, fragments, depth+1)
		if err != nil {
			failed = err
		}
		return body
	})
	return out, failed
}
