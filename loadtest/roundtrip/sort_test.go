package roundtrip

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFieldsAreCutFromObjectsAtTheTopOnly(t *testing.T) {
	for in, want := range map[string]string{
		`{"id":"1","kind":"k"}`: `{"kind":"k"}`,
		`{"kind":"k","id":"1"}`: `{"kind":"k"}`,
		`{"id":"1"}`:            `{}`,
		`{}`:                    `{}`,
		`{"params":{"id":"1","x":"}\"{,"},"id":1}`:     `{"params":{"id":"1","x":"}\"{,"}}`,
		`{"a":[{"id":[1,2]},"\\"],"id":[{}],"b":true}`: `{"a":[{"id":[1,2]},"\\"],"b":true}`,
	} {
		got, err := without([]byte(in), unequal)
		if err != nil || string(got) != want || !json.Valid(got) {
			t.Errorf("%s became %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{``, `{`, `{"id":"1"`, `{"id"`, `{"a":{}`, `[]`, `{"a":1}}`} {
		if got, err := without([]byte(in), unequal); err == nil {
			t.Errorf("%s became %s", in, got)
		}
	}
}

func TestTheDigestDependsOnTheLinesAndNotOnTheirOrder(t *testing.T) {
	dir := t.TempDir()
	var all []string
	for i := range 1000 {
		all = append(all, fmt.Sprintf(`{"id":"%d","kind":"k-%d","pad":"%s"}`, i, i/2, strings.Repeat("x", i)))
	}
	write := func(name string, list []string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Join(list, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	digests := map[string]string{}
	visits := 0
	take := func(what string, files ...string) {
		d, err := digestOf(files, dir, func([]byte) error { visits++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		digests[what] = d.Sum
	}
	take("in order", write("a", all))
	shuffled := slices.Clone(all)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	take("in another order, of two files", write("b", shuffled[:300]), write("c", shuffled[300:]))
	if digests["in order"] != digests["in another order, of two files"] || visits != 2000 {
		t.Errorf("%v differ, or %d lines are not 2000", digests, visits)
	}
	take("one is missing", write("d", all[1:]))
	take("one is there twice", write("e", append(slices.Clone(all), all[7])))
	take("one has another kind", write("f", append([]string{`{"id":"0","kind":"other","pad":""}`}, all[1:]...)))
	if n := len(slices.Compact(slices.Sorted(maps.Values(digests)))); n != 4 {
		t.Errorf("%v are not four different checksums", digests)
	}
}
