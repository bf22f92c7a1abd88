package statement

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"strings"
)

// parsed is what files hold, before anything is replaced.
type parsed struct {
	statements map[string]*source
	fragments  map[string]string
	// given are the fragments that the program defines.
	given map[string]string
}

// source is a statement as its file has it.
type source struct {
	parameters []Parameter
	body       string
}

var (
	fragmentHeader  = regexp.MustCompile(`^-- fragment: (\w+)$`)
	statementHeader = regexp.MustCompile(`^-- name: (\w+)\((.*)$`)
	parameter       = regexp.MustCompile(`^([a-z][a-z0-9_]*) ((?:int2|int4|int8|float8|bool|text|bytea|jsonb)(?:\[\])?)$`)
)

// parseFiles reads all .sql files at the top of dir.
func parseFiles(dir fs.FS, given map[string]string) (*parsed, error) {
	names, err := fs.Glob(dir, "*.sql")
	if err != nil {
		return nil, err
	}
	all := &parsed{statements: map[string]*source{}, fragments: map[string]string{}, given: given}
	maps.Copy(all.fragments, given)
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		if err := all.parse(strings.Split(string(text), "\n")); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

// parse adds the pieces of one file. What comes before the first header is about
// the file.
func (p *parsed) parse(lines []string) error {
	for len(lines) > 0 {
		n := 1 + nextHeader(lines[1:])
		if err := p.piece(lines[:n]); err != nil {
			return err
		}
		lines = lines[n:]
	}
	return nil
}

// nextHeader returns how many lines come before the next header.
func nextHeader(lines []string) int {
	for i, line := range lines {
		if strings.HasPrefix(line, "-- name:") || strings.HasPrefix(line, "-- fragment:") {
			return i
		}
	}
	return len(lines)
}

// piece adds a header with what belongs to it.
func (p *parsed) piece(lines []string) error {
	if m := fragmentHeader.FindStringSubmatch(lines[0]); m != nil {
		if _, dup := p.fragments[m[1]]; dup {
			return fmt.Errorf("fragment %s is defined twice", m[1])
		}
		p.fragments[m[1]] = body(lines[1:])
		return nil
	}
	if m := statementHeader.FindStringSubmatch(lines[0]); m != nil {
		if p.statements[m[1]] != nil {
			return fmt.Errorf("statement %s is defined twice", m[1])
		}
		parameters, rest, err := p.parameters(m[2], lines[1:])
		if err != nil {
			return fmt.Errorf("statement %s: %w", m[1], err)
		}
		p.statements[m[1]] = &source{parameters, body(rest)}
		return nil
	}
	if nextHeader(lines) == 0 {
		return fmt.Errorf("a header cannot be read: %s", lines[0])
	}
	if text := body(lines); text != "" {
		return fmt.Errorf("text before the first header: %s", text)
	}
	return nil
}

// parameters reads a list that begins in the line of the header and ends with the first
// closing parenthesis.
func (p *parsed) parameters(list string, rest []string) ([]Parameter, []string, error) {
	for !strings.HasSuffix(list, ")") {
		if len(rest) == 0 || !strings.HasPrefix(rest[0], "--") {
			return nil, nil, fmt.Errorf("the list of parameters does not end")
		}
		list += " " + strings.TrimSpace(strings.TrimPrefix(rest[0], "--"))
		rest = rest[1:]
	}
	list = strings.TrimSpace(strings.TrimSuffix(list, ")"))
	if list == "" {
		return nil, rest, nil
	}
	list, err := (&names{fragments: p.given}).fill(list, 0)
	if err != nil {
		return nil, nil, err
	}
	var out []Parameter
	seen := map[string]bool{}
	for _, part := range strings.Split(list, ",") {
		m := parameter.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return nil, nil, fmt.Errorf("a parameter is %q: want a name and a type", strings.TrimSpace(part))
		}
		if seen[m[1]] {
			return nil, nil, fmt.Errorf("parameter %s is declared twice", m[1])
		}
		seen[m[1]] = true
		out = append(out, Parameter{Name: m[1], Type: m[2]})
	}
	return out, rest, nil
}

// body joins lines without their comments, which the server need not read.
func body(lines []string) string {
	var kept []string
	for _, line := range lines {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			kept = append(kept, line)
		}
	}
	return strings.TrimSuffix(strings.TrimSpace(strings.Join(kept, "\n")), ";")
}
