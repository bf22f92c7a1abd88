package statement

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
)

func load(text string) (*Set, error) {
	given := map[string]string{"pair": "a int8, b text", "values": "@a, @b"}
	return Load(fstest.MapFS{"a.sql": {Data: []byte(text)}}, given, map[string]int64{"state.RUNNING": 2}, map[string]int64{"type.BLOCKING": 3})
}

func TestFragmentsAreFilledIntoStatements(t *testing.T) {
	set, err := load("-- about the file\n-- name: One()\nSELECT {{what}}\n-- why\n FROM t;\n\n-- fragment: what\n{{deep}}, b\n-- fragment: deep\na\n")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Get("One").Text(), "SELECT a, b\n FROM t"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestParametersAreNumberedInTheOrderOfTheHeader(t *testing.T) {
	for text, want := range map[string]string{
		"-- name: One(a int8, b text[])\nSELECT @b, @a, @b":                     "SELECT $2::text[], $1::int8, $2::text[]",
		"-- name: One(\n--   a int8,\n--   b text)\n-- why\nSELECT {{f}}":       "SELECT $2::text + $1::int8",
		"-- name: One(id int8, id_2 int8)\nSELECT @id_2, @id WHERE a <@ b@> c;": "SELECT $2::int8, $1::int8 WHERE a <@ b@> c",
	} {
		set, err := load(text + "\n-- fragment: f\n@b + @a")
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := set.Get("One").Text(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTheProgramMayDefineListsOfParameters(t *testing.T) {
	set, err := load("-- name: One(id int8, {{pair}})\nSELECT @id, {{values}}")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Get("One").Text(), "SELECT $1::int8, $2::int8, $3::text"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	if _, err := load("-- name: One({{text}})\nSELECT @a\n-- fragment: text\na int8"); err == nil {
		t.Fatal("a list of parameters uses a fragment that only a file defines")
	}
}

func TestNumbersHaveNames(t *testing.T) {
	set, err := load("-- name: One()\nSELECT {{state.RUNNING}}, {{type.BLOCKING}}")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Get("One").Text(), "SELECT 2, 3"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestAStatementIsCalledWithAsManyArgumentsAsItHasParameters(t *testing.T) {
	set, err := load("-- name: One(a int8, b text)\nSELECT @a, @b")
	if err != nil {
		t.Fatal(err)
	}
	one := set.Get("One")
	one.Queue(&pgx.Batch{}, 1, "b")
	for _, args := range [][]any{{}, {1}, {1, "b", 2}} {
		if !panics(func() { one.Queue(&pgx.Batch{}, args...) }) {
			t.Errorf("%d arguments are accepted", len(args))
		}
	}
}

func TestANameThatNoFileHasEndsTheProgram(t *testing.T) {
	set, err := load("-- name: One()\nSELECT 1\n-- name: Two()\nSELECT 2")
	if err != nil {
		t.Fatal(err)
	}
	if !panics(func() { set.Get("Three") }) {
		t.Error("an unknown name is accepted")
	}
	set.Get("One")
	if got := set.Unresolved(); len(got) != 1 || got[0] != "Two" {
		t.Errorf("%v are not resolved", got)
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestMistakesInFilesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"-- name: A()\nSELECT {{no}};":                           "no fragment is named no",
		"-- name: A()\nSELECT {{state.NO}};":                     "no number is named state.NO",
		"-- name: A()\nSELECT 1;\n-- name: A()\nSELECT 2;":       "statement A is defined twice",
		"-- name: A()\nSELECT 1\n-- fragment: x\n-- fragment: x": "fragment x is defined twice",
		"-- name: A()\n{{x}}\n-- fragment: x\n{{x}}":             "nested more than 8 deep",
		"-- name: A()\nSELECT @a":                                "parameter a is not declared",
		"-- name: A()\n{{x}}\n-- fragment: x\n@a":                "parameter a is not declared",
		"-- name: A(a int8)\nSELECT 1":                           "parameter a is not used",
		"-- name: A(a int8, a int8)\nSELECT @a":                  "parameter a is declared twice",
		"-- name: A(a int8)\nSELECT @a + $1":                     "$1: parameters have names",
		"-- name: A(a)\nSELECT @a":                               `a parameter is "a": want a name and a type`,
		"-- name: A(a integer)\nSELECT @a":                       `a parameter is "a integer": want a name and a type`,
		"-- name: A(a int8,\nSELECT @a":                          "the list of parameters does not end",
		"-- name: A\nSELECT 1":                                   "a header cannot be read: -- name: A",
		"SELECT 1;\n-- name: A()\nSELECT 1":                      "text before the first header: SELECT 1",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
