package statement

import (
	"testing"
	"testing/fstest"
)

func load(text string) (Set, error) { return Load(fstest.MapFS{"a.sql": {Data: []byte(text)}}) }

func TestFragmentsAreFilledIntoStatements(t *testing.T) {
	set, err := load("-- about the file\n-- name: One\nSELECT {{what}}\n-- why\n FROM t;\n\n-- fragment: what\n{{deep}}, b\n-- fragment: deep\na\n")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Get("One"), "SELECT a, b\n FROM t"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestMistakesInFilesAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"unknown fragment":     "-- name: A\nSELECT {{no}};",
		"statement twice":      "-- name: A\nSELECT 1;\n-- name: A\nSELECT 2;",
		"fragment in a circle": "-- name: A\n{{x}}\n-- fragment: x\n{{x}}",
	} {
		if _, err := load(text); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
