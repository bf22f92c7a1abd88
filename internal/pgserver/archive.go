package pgserver

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	defaultMirror  = "https://repo1.maven.org/maven2"
	archiveTimeout = 5 * time.Minute
	archiveLimit   = 256 << 20 // bytes of a downloaded or unpacked file
)

// pins has the SHA-256 of each archive that may be downloaded, by its name. The library
// compares an archive only with a checksum from the place where the archive comes from.
var pins = parsePins(pinList)

//go:embed archives.txt
var pinList string

func parsePins(list string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(list) {
		if name, digest, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(name, "#") {
			all[name] = digest
		}
	}
	return all
}

// platform names operating system and architecture as the archives do.
func platform() string {
	arch := runtime.GOARCH
	if arch == "arm64" {
		arch = "arm64v8"
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		arch += "-alpine"
	}
	return runtime.GOOS + "-" + arch
}

// fetchArchive downloads the archive of a version, verifies it, and puts what it holds into
// dir, where the library looks before it downloads anything itself.
func fetchArchive(ctx context.Context, version embeddedpostgres.PostgresVersion, dir string) error {
	artifact := "embedded-postgres-binaries-" + platform()
	name := artifact + "-" + string(version)
	want, ok := pins[name]
	if !ok {
		return fmt.Errorf("there is no known checksum of %s", name)
	}
	mirror := os.Getenv(MirrorVariable)
	if mirror == "" {
		mirror = defaultMirror
	}
	ctx, cancel := context.WithTimeout(ctx, archiveTimeout)
	defer cancel()
	jar, err := get(ctx, fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%s.jar", strings.TrimRight(mirror, "/"), artifact, version, name))
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(jar); hex.EncodeToString(sum[:]) != want {
		return fmt.Errorf("%s.jar: downloaded and known checksums do not match", name)
	}
	return unpack(jar, filepath.Join(dir, name+".txz"))
}

func get(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("%s is not a URL: %w", MirrorVariable, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", address, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, archiveLimit))
}

// unpack writes the one .txz file of an archive to path.
func unpack(jar []byte, path string) error {
	archive, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	for _, f := range archive.File {
		if !strings.HasSuffix(f.Name, ".txz") {
			continue
		}
		in, err := f.Open()
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		defer in.Close()
		content, err := io.ReadAll(io.LimitReader(in, archiveLimit))
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		return os.WriteFile(path, content, 0o600)
	}
	return errors.New("the archive holds no binaries")
}
