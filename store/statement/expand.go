package statement

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	placeholder = regexp.MustCompile(`\{\{([^{}]*)\}\}`)
	use         = regexp.MustCompile(`@([a-z][a-z0-9_]*)`)
	positional  = regexp.MustCompile(`\$\d+`)
)

// maxDepth bounds how deep fragments are nested, so that one that uses itself is
// found.
const maxDepth = 8

// expand returns the statement as it is sent: with the text of its fragments, with
// numbers, and with $1, $2 and so on in the order of its header.
func (s *source) expand(names *names) (string, error) {
	text, err := names.fill(s.body, 0)
	if err != nil {
		return "", err
	}
	if m := positional.FindString(text); m != "" {
		return "", fmt.Errorf("%s: parameters have names", m)
	}
	return s.number(text)
}

// number replaces the names of parameters.
func (s *source) number(text string) (string, error) {
	number, used := map[string]int{}, map[string]bool{}
	for i, p := range s.parameters {
		number[p.Name] = i + 1
	}
	var unknown error
	text = use.ReplaceAllStringFunc(text, func(m string) string {
		n, ok := number[m[1:]]
		if !ok {
			unknown = fmt.Errorf("parameter %s is not declared", m[1:])
			return m
		}
		used[m[1:]] = true
		return fmt.Sprintf("$%d::%s", n, s.parameters[n-1].Type)
	})
	if unknown != nil {
		return "", unknown
	}
	for _, p := range s.parameters {
		if !used[p.Name] {
			return "", fmt.Errorf("parameter %s is not used", p.Name)
		}
	}
	return text, nil
}

// names is what may stand in double braces.
type names struct {
	fragments map[string]string
	numbers   map[string]int64
}

// fill replaces what stands in double braces.
func (n *names) fill(text string, depth int) (string, error) {
	if depth > maxDepth {
		return "", fmt.Errorf("fragments are nested more than %d deep", maxDepth)
	}
	var failed error
	out := placeholder.ReplaceAllStringFunc(text, func(m string) string {
		name := m[2 : len(m)-2]
		replaced, err := n.one(name, depth)
		if err != nil {
			failed = err
		}
		return replaced
	})
	return out, failed
}

// one returns what stands for a name in double braces.
func (n *names) one(name string, depth int) (string, error) {
	if strings.Contains(name, ".") {
		number, ok := n.numbers[name]
		if !ok {
			return "", fmt.Errorf("no number is named %s", name)
		}
		return fmt.Sprint(number), nil
	}
	body, ok := n.fragments[name]
	if !ok {
		return "", fmt.Errorf("no fragment is named %s", name)
	}
	return n.fill(body, depth+1)
}
