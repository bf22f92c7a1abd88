package deploy

import (
	"archive/tar"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/perceptor/perceptor/deploy/release"
)

func TestReleasedProgramsSayWhereTheyComeFrom(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"taskd", "dispatcher", "perceptorctl"} {
		out, err := run(t, nil, program, "version", "-o", "json")
		var b struct{ Program, Version, Commit, Date string }
		if err == nil {
			err = json.Unmarshal([]byte(out), &b)
		}
		if err != nil || b.Program != program || b.Version != "v1.2.3" || b.Commit != plan.Commit || b.Date != plan.Date.Format(time.RFC3339) {
			t.Errorf("%s: %+v, %v", program, b, err)
		}
	}
}

func TestReleasesAreForFourPlatforms(t *testing.T) {
	t.Parallel()
	want := []release.Platform{{OS: "linux", Arch: "amd64"}, {OS: "linux", Arch: "arm64"}, {OS: "darwin", Arch: "amd64"}, {OS: "darwin", Arch: "arm64"}}
	if got := plan.Platforms(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTheArchiveHasProgramsAndDocuments(t *testing.T) {
	t.Parallel()
	path, err := plan.Archive(native, programs, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	names := entries(t, zip)
	top := strings.TrimSuffix(filepath.Base(path), ".tar.gz") + "/"
	for _, name := range []string{"taskd", "dispatcher", "perceptorctl", "LICENSE", "docs/configuration.md", "monitoring/grafana/perceptor-overview.json"} {
		if _, there := names[top+name]; !there {
			t.Errorf("%s is not in %v", name, names)
		}
	}
	sums, err := plan.Checksums([]string{path}, filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", filepath.Base(sums))
	check.Dir = filepath.Dir(path)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
}

// entries returns the files of an archive.
func entries(t *testing.T, r io.Reader) tree {
	t.Helper()
	files := tree{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
	}
}

func TestThePackageHasWhatTheUnitsNeed(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is missing: it is a part of Debian and its relatives")
	}
	path, err := plan.Deb(release.Platform{OS: "linux", Arch: runtime.GOARCH}, programs, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "dpkg-deb", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg-deb %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if got := dpkg("--field", path, "Version"); got != "1.2.3\n" {
		t.Errorf("its version is %s", got)
	}
	if got := dpkg("--info", path, "conffiles"); got != "/etc/perceptor/perceptor.yaml\n" {
		t.Errorf("an upgrade would replace the configuration; kept are %s", got)
	}
	listing := dpkg("--contents", path)
	for _, line := range []string{`-rwxr-xr-x root/root .* \./usr/bin/taskd$`, `-rw-r----- root/root .* \./etc/perceptor/perceptor.yaml$`, `drwxr-x--- root/root .* \./etc/perceptor/secrets/$`} {
		if !regexp.MustCompile(`(?m)` + line).MatchString(listing) {
			t.Errorf("%s is not in:\n%s", line, listing)
		}
	}
	dir := t.TempDir()
	dpkg("--extract", path, dir)
	for _, unit := range units {
		text := read(t, filepath.Join(dir, "usr/lib/systemd/system", unit))
		for _, m := range regexp.MustCompile(`(?m)^(?:ExecStart|Documentation)=(?:file://)?(/usr/\S+)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
				t.Errorf("%s names %s: %v", unit, m[1], err)
			}
		}
	}
	scripts := filepath.Join(t.TempDir(), "control")
	dpkg("--control", path, scripts)
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", filepath.Join(scripts, script)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
}

// build writes the archive of the image.
func build(path string) error {
	return plan.Image(release.Platform{OS: "linux", Arch: runtime.GOARCH}, programs, "perceptor:latest", path)
}

var builtOnce = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "image.tar")
	return path, build(path)
})

// built returns the path of the image's archive, which all tests share.
func built(t *testing.T) string {
	t.Helper()
	path, err := builtOnce()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// unpacked returns the only image of an archive that is an OCI layout.
func unpacked(t *testing.T, path string) v1.Image {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir := t.TempDir()
	entries(t, file).writeAs(t, dir)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%+v, %v", manifest, err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// writeAs writes the files as they are.
func (f tree) writeAs(t *testing.T, root string) {
	t.Helper()
	for path, text := range f {
		file := filepath.Join(root, path)
		if strings.HasSuffix(path, "/") {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(path, "usr/bin/") {
			mode = 0o755
		}
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
}

// contents returns the files of an image.
func contents(t *testing.T, image v1.Image) tree {
	t.Helper()
	files := tree{}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range entries(t, r) {
			files[name] = text
		}
	}
	return files
}

func TestTheImageIsAnOCILayoutThatDockerLoads(t *testing.T) {
	t.Parallel()
	path := built(t)
	image := unpacked(t, path)
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Config.User != "65532:65532" || c.OS != "linux" || c.Architecture != runtime.GOARCH || c.Config.Labels["org.opencontainers.image.revision"] != plan.Commit {
		t.Errorf("got %+v", c)
	}
	loadable, err := tarball.ImageFromPath(path, nil) // as older versions of docker load read it
	if err != nil {
		t.Fatal(err)
	}
	a, errA := image.Digest()
	b, errB := loadable.ConfigName()
	config, errC := image.ConfigName()
	if err := errors.Join(errA, errB, errC); err != nil || b != config {
		t.Errorf("manifest.json is of another image than %s: %v", a, err)
	}
}

func TestTheImageHasTheProgramsAndNothingToRunThemWith(t *testing.T) {
	t.Parallel()
	files := contents(t, unpacked(t, built(t)))
	var names []string
	for name := range files {
		if !strings.HasSuffix(name, "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	want := []string{
		"etc/group", "etc/passwd", "etc/ssl/certs/ca-certificates.crt", "usr/bin/dispatcher", "usr/bin/perceptorctl", "usr/bin/taskd",
		"usr/share/doc/perceptor/copyright",
	}
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	pool := x509.NewCertPool()
	if text := files["etc/ssl/certs/ca-certificates.crt"]; !pool.AppendCertsFromPEM([]byte(text)) || strings.Count(text, "BEGIN CERTIFICATE") < 100 {
		t.Errorf("the certificates of authorities are %d bytes without use", len(text))
	}
}

func TestTheSameProgramsGiveTheSameImage(t *testing.T) {
	t.Parallel()
	again := filepath.Join(t.TempDir(), "image.tar")
	if err := build(again); err != nil {
		t.Fatal(err)
	}
	if read(t, built(t)) != read(t, again) {
		t.Error("two archives of the same programs differ")
	}
}

// TestTheImageRuns runs the programs where nothing but the image is, read-only, as its user.
func TestTheImageRuns(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("changing the root of a process needs root on Linux")
	}
	root := t.TempDir()
	files := contents(t, unpacked(t, built(t)))
	files["etc/perceptor/perceptor.yaml"] = "postgres: {servers: [{dsn: 'postgres://db/x?sslmode=verify-full'}]}\nkafka: {brokers: [localhost:9092]}\n" +
		"taskd: {grpc_addr: 'localhost:7070', http_addr: 'localhost:7071'}\n"
	files.writeAs(t, root)
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inside := func(args ...string) string {
		t.Helper()
		const script = `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec chroot --userspec=65532:65532 --groups= "$0" "$@"`
		cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-c", script, root}, args...)...)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	for _, program := range []string{"taskd", "dispatcher", "perceptorctl"} {
		if out := inside("/usr/bin/"+program, "version"); !strings.HasPrefix(out, program+" v1.2.3 ") {
			t.Errorf("%s says %s", program, out)
		}
	}
	if out := inside("/usr/bin/taskd", "--config", "/etc/perceptor/perceptor.yaml", "--print-config"); !strings.Contains(out, "brokers:") {
		t.Errorf("taskd says of its configuration: %s", out)
	}
	if out := inside("/usr/bin/perceptorctl", "schedule", "next", "--tz", "Europe/London", "--after", "2026-07-01T00:00:00Z", "--count", "1", "--", "0 12 * * *"); !strings.Contains(out, "2026-07-01T11:00:00Z") {
		t.Errorf("time zones are not there: %s", out)
	}
}
