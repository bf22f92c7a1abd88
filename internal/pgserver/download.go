package pgserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// MirrorVariable is the environment variable with the address of the Maven repository for downloads.
const MirrorVariable = "PERCEPTOR_MAVEN_BASE_URL"

// defaultMajor is the version that is downloaded for a new data directory.
const defaultMajor = 18

// downloads are the versions whose archives are pinned. Servers of other versions must be installed.
var downloads = map[int]embeddedpostgres.PostgresVersion{
	16: embeddedpostgres.V16,
	17: embeddedpostgres.V17,
	18: embeddedpostgres.V18,
}

// Download returns binaries of a major version from the user's cache directory, and downloads them if
// they are missing. Version 0 stands for the newest. progress, if not nil, is called before a download.
func Download(ctx context.Context, major int, progress func(what string)) (Binaries, error) {
	root, err := downloadDir()
	if err != nil {
		return Binaries{}, err
	}
	return downloadInto(ctx, root, major, progress)
}

func downloadInto(ctx context.Context, root string, major int, progress func(what string)) (Binaries, error) {
	if major == 0 {
		major = defaultMajor
	}
	version, ok := downloads[major]
	if !ok {
		return Binaries{}, fmt.Errorf("%w: the data directory needs %d", ErrNotFound, major)
	}
	home := filepath.Join(root, "postgres-"+string(version))
	bin := filepath.Join(home, "bin")
	if b, err := binariesIn(ctx, bin); err == nil {
		return b, nil
	}
	unlock, err := subprocess.LockFile(ctx, home+".lock")
	if err != nil {
		return Binaries{}, err
	}
	defer unlock()
	if b, err := binariesIn(ctx, bin); err == nil {
		return b, nil
	}
	if progress != nil {
		progress(fmt.Sprintf("downloading PostgreSQL %s to %s", version, home))
	}
	if err := fetch(ctx, version, root, home); err != nil {
		return Binaries{}, fmt.Errorf("%w, and the download failed: %w; install it, for example with: apt-get install postgresql", ErrNotFound, err)
	}
	return binariesIn(ctx, bin)
}

// downloadDir returns a directory that the server's user can enter. For root that is not the home
// directory.
func downloadDir() (string, error) {
	dir := "/var/cache/perceptor"
	if os.Geteuid() != 0 {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find cache directory: %w", err)
		}
		dir = filepath.Join(cache, "perceptor")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create cache directory: %w", err)
	}
	return dir, nil
}

// fetch downloads binaries and unpacks them into home. The library cannot only unpack. Therefore fetch
// starts a server with it in a temporary directory and ignores the result, since root cannot start one.
func fetch(ctx context.Context, version embeddedpostgres.PostgresVersion, root, home string) error {
	dir, err := os.MkdirTemp(root, "fetch-")
	if err != nil {
		return fmt.Errorf("create temporary directory: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := fetchArchive(ctx, version, dir); err != nil {
		return err
	}
	port, err := subprocess.FreePort()
	if err != nil {
		return err
	}
	unpacked := filepath.Join(dir, "unpacked")
	config := embeddedpostgres.DefaultConfig().
		Version(version).Port(uint32(port)).Logger(io.Discard).StartTimeout(time.Minute).
		CachePath(dir).BinariesPath(unpacked).RuntimePath(filepath.Join(dir, "run"))
	server := embeddedpostgres.NewDatabase(config)
	startErr := server.Start()
	if startErr == nil {
		if err := server.Stop(); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(unpacked, "bin", "postgres")); err != nil {
		return startErr
	}
	if err := os.RemoveAll(home); err != nil {
		return err
	}
	return os.Rename(unpacked, home)
}
