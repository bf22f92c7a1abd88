package migrations

import (
	"testing"
	"testing/fstest"
)

// TestAnyChangeOfAFileChangesTheFingerprint: templates of test databases have it in
// their names, so that none is taken for what it is not.
func TestAnyChangeOfAFileChangesTheFingerprint(t *testing.T) {
	seen := map[string]string{Fingerprint(): "the files themselves"}
	for name, files := range map[string]map[string]string{
		"none":         {},
		"one":          {"sql/1.sql": "CREATE TABLE a (b int8)"},
		"one changed":  {"sql/1.sql": "CREATE TABLE a (b int4)"},
		"another more": {"sql/1.sql": "CREATE TABLE a (b int8)", "sql/2.sql": "CREATE TABLE c (d int8)"},
	} {
		dir := fstest.MapFS{}
		for path, text := range files {
			dir[path] = &fstest.MapFile{Data: []byte(text)}
		}
		f := fingerprint(dir)
		if other, dup := seen[f]; dup || len(f) != 16 {
			t.Errorf("%s has the fingerprint %q of %s", name, f, other)
		}
		seen[f] = name
	}
}
