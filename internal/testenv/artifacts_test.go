package testenv

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func digest(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// repository serves files by path, as a Maven repository does, and counts the requests.
func repository(t *testing.T, files map[string]string) *atomic.Int32 {
	t.Helper()
	requests := new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		content, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, content)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	t.Setenv(mirrorVariable, server.URL+"/")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	return requests
}

var plain = map[string]string{
	"/org/example/one/1.0/one-1.0.jar":       "first",
	"/org/example/two/2.0/two-2.0-linux.jar": "second",
}

const listOfTwo = `# two files

org.example:one:1.0 %s
org.example:two:2.0:linux %s
`

func TestPinnedListsAreWellFormed(t *testing.T) {
	for name, list := range map[string][]byte{"kafka": kafkaList, "zookeeper": zookeeperList} {
		all, err := parseArtifacts(list)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		seen := map[string]bool{}
		for _, a := range all {
			if seen[a.file()] {
				t.Errorf("%s: %s is listed twice", name, a.file())
			}
			seen[a.file()] = true
		}
		if len(all) < 10 {
			t.Errorf("%s: the list has only %d files", name, len(all))
		}
	}
}

func TestMalformedListsAreRefusedWithTheLine(t *testing.T) {
	for _, line := range []string{
		"org.example:one:1.0",
		"org.example:one:1.0 abc",
		"org.example:one " + digest(""),
		"a:b:c:d:e " + digest(""),
	} {
		if _, err := parseArtifacts([]byte("# comment\n" + line)); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: got %v, want an error that names line 2", line, err)
		}
	}
}

func TestLibraryIsFetchedOnceByManyAndThenKept(t *testing.T) {
	requests := repository(t, plain)
	list := fmt.Appendf(nil, listOfTwo, digest("first"), digest("second"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			dir, err := library(t.Context(), "example", list)
			if err != nil {
				t.Error(err)
				return
			}
			for file, want := range map[string]string{"one-1.0.jar": "first", "two-2.0-linux.jar": "second"} {
				if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
					t.Errorf("%s: got %q, %v, want %q", file, got, err, want)
				}
			}
		})
	}
	wg.Wait()
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

func TestFileThatIsNotThePinnedOneIsRefused(t *testing.T) {
	repository(t, plain)
	list := fmt.Appendf(nil, listOfTwo, digest("first"), digest("what was pinned"))
	for range 2 { // the second call must not find the file in the cache
		dir, err := library(t.Context(), "example", list)
		if !errors.Is(err, errChecksum) || !strings.Contains(err.Error(), "two-2.0-linux.jar") {
			t.Errorf("library = %q, %v, want %v with the file's name", dir, err, errChecksum)
		}
	}
	kept, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "perceptor", "*", "*.jar"))
	if err != nil || len(kept) > 0 {
		t.Errorf("files in the cache = %v, %v, want none", kept, err)
	}
}

func TestFileThatChangedInTheCacheIsFetchedAgain(t *testing.T) {
	repository(t, plain)
	list := fmt.Appendf(nil, listOfTwo, digest("first"), digest("second"))
	dir, err := library(t.Context(), "example", list)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "one-1.0.jar"), []byte("tampered"), 0o600))
	_, err = library(t.Context(), "example", list)
	must(t, err)
	if got, err := os.ReadFile(filepath.Join(dir, "one-1.0.jar")); err != nil || string(got) != "first" {
		t.Errorf("content of the file = %q, %v, want the pinned content", got, err)
	}
}

func TestMissingFileOfAMirrorIsNamed(t *testing.T) {
	repository(t, nil)
	_, err := library(t.Context(), "example", fmt.Appendf(nil, listOfTwo, digest("first"), digest("second")))
	if err == nil || !strings.Contains(err.Error(), "/org/example/one/1.0/one-1.0.jar: 404") {
		t.Errorf("library: got %v, want an error with the file's path and 404", err)
	}
}

func TestMissingMavenIsExplained(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(mirrorVariable, "")
	t.Setenv("PATH", t.TempDir())
	_, err := library(t.Context(), "kafka", kafkaList)
	if err == nil || !strings.Contains(err.Error(), "apt-get install maven") || !strings.Contains(err.Error(), KafkaVariable) {
		t.Errorf("library without Maven: got %v, want an error that names the package maven and %s", err, KafkaVariable)
	}
}

func TestMavenFetchesExactlyTheList(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(mirrorVariable, "")
	dir, err := library(t.Context(), "zookeeper", zookeeperList)
	must(t, err)
	all, err := parseArtifacts(zookeeperList)
	must(t, err)
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != len(all) {
		t.Errorf("%d files, want %d", len(entries), len(all))
	}
}
