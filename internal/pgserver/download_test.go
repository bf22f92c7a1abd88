package pgserver

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// binaries is an archive in the format of a download. Its programs only print their version.
//
//go:embed testdata/binaries.txz
var binaries []byte

// mirror serves binaries as a Maven repository does, pins their digest, and counts the downloads.
func mirror(t *testing.T, digest func([]byte) string) (address string, downloads *atomic.Int32) {
	t.Helper()
	var jar bytes.Buffer
	archive := zip.NewWriter(&jar)
	file, err := archive.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(binaries); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	before := pins
	pins = map[string]string{"embedded-postgres-binaries-" + platform() + "-18.3.0": digest(jar.Bytes())}
	t.Cleanup(func() { pins = before })
	downloads = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			w.Write([]byte(sha(jar.Bytes()))) //nolint:errcheck // the client sees the failure
			return
		}
		downloads.Add(1)
		w.Write(jar.Bytes()) //nolint:errcheck // the client sees the failure
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return server.URL, downloads
}

func sha(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func TestDownloadIsFetchedOnceAndKept(t *testing.T) {
	address, downloads := mirror(t, sha)
	t.Setenv(MirrorVariable, address)
	root := t.TempDir()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			b, err := downloadInto(t.Context(), root, 0, nil)
			if err != nil {
				t.Error(err)
			}
			if b.Major != 18 || !strings.HasPrefix(b.Dir, root) {
				t.Errorf("binaries = %+v, want version 18 below %s", b, root)
			}
		})
	}
	wg.Wait()
	if n := downloads.Load(); n != 1 {
		t.Errorf("downloads = %d, want 1", n)
	}
	leftovers, err := filepath.Glob(filepath.Join(root, "fetch-*"))
	if err != nil || len(leftovers) > 0 {
		t.Errorf("temporary directories left = %v, %v, want none", leftovers, err)
	}
}

func TestDownloadWithAWrongDigestIsRefused(t *testing.T) {
	address, _ := mirror(t, func([]byte) string { return sha([]byte("something else")) })
	t.Setenv(MirrorVariable, address)
	root := t.TempDir()
	_, err := downloadInto(t.Context(), root, 0, nil)
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "checksums do not match") {
		t.Errorf("download with a wrong digest: got %v, want %v with the checksum error", err, ErrNotFound)
	}
	if _, err := os.Stat(filepath.Join(root, "postgres-18.3.0")); err == nil {
		t.Error("the download with a wrong digest was kept")
	}
}

func TestEveryVersionThatMayBeDownloadedIsPinned(t *testing.T) {
	for _, version := range downloads {
		for _, platform := range []string{"linux-amd64", "linux-arm64v8", "darwin-amd64", "darwin-arm64v8"} {
			if name := "embedded-postgres-binaries-" + platform + "-" + string(version); len(pins[name]) != 64 {
				t.Errorf("%s has no SHA-256 in archives.txt", name)
			}
		}
	}
}

func TestNewestInstalledVersionIsFound(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"14.2", "15.9", "18.1", "17.4", "19beta1"} {
		bin := filepath.Join(dir, version)
		if err := os.Mkdir(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, program := range []string{"initdb", "postgres"} {
			script := "#!/bin/sh\necho \"postgres (PostgreSQL) " + version + "\"\n"
			if err := os.WriteFile(filepath.Join(bin, program), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", strings.Join(append(found, os.Getenv("PATH")), string(filepath.ListSeparator)))
	for major, want := range map[int]string{0: "18.1", 17: "17.4"} {
		b, err := findMajor(t.Context(), major)
		if err != nil || b.Dir != filepath.Join(dir, want) {
			t.Errorf("findMajor(%d) = %+v, %v, want %s", major, b, err, want)
		}
	}
}
