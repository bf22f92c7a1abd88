package testenv

import (
	"bufio"
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
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// mirrorVariable is the environment variable with the address of a Maven repository. If it is set,
// files are downloaded from there by HTTP. Otherwise Maven fetches them with its own configuration.
const mirrorVariable = "PERCEPTOR_MAVEN_BASE_URL"

const (
	fetchTimeout  = 5 * time.Minute
	artifactLimit = 64 << 20 // bytes of one file
	copyGoal      = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
)

var (
	//go:embed artifacts/kafka.txt
	kafkaList []byte
	//go:embed artifacts/zookeeper.txt
	zookeeperList []byte
)

// errChecksum is returned for a file whose digest differs from the one in the list.
var errChecksum = errors.New("checksum does not match")

// artifact is one file of a Maven repository and its expected digest.
type artifact struct {
	group, name, version, classifier string
	sha256                           string
}

// file returns the name of the file in a Maven repository, in the cache and in copies made by Maven.
func (a artifact) file() string {
	name := a.name + "-" + a.version
	if a.classifier != "" {
		name += "-" + a.classifier
	}
	return name + ".jar"
}

func (a artifact) path() string {
	return strings.ReplaceAll(a.group, ".", "/") + "/" + a.name + "/" + a.version + "/" + a.file()
}

// parseArtifacts reads a list with one artifact on each line: group:artifact:version[:classifier]
// SHA-256. A line that begins with # is a comment.
func parseArtifacts(list []byte) ([]artifact, error) {
	var all []artifact
	lines := bufio.NewScanner(bytes.NewReader(list))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		coordinates, digest, ok := strings.Cut(line, " ")
		parts := strings.Split(coordinates, ":")
		if !ok || len(digest) != 2*sha256.Size || len(parts) < 3 || len(parts) > 4 {
			return nil, fmt.Errorf("artifact list: line %d is not group:artifact:version[:classifier] SHA-256", n)
		}
		a := artifact{group: parts[0], name: parts[1], version: parts[2], sha256: digest}
		if len(parts) == 4 {
			a.classifier = parts[3]
		}
		all = append(all, a)
	}
	return all, lines.Err()
}

// verify compares the digest of the file in dir with the expected one.
func (a artifact) verify(dir string) error {
	file, err := os.Open(filepath.Join(dir, a.file()))
	if err != nil {
		return err
	}
	defer file.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return fmt.Errorf("read %s: %w", file.Name(), err)
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != a.sha256 {
		return fmt.Errorf("%s: %w: got %s, want %s", file.Name(), errChecksum, got, a.sha256)
	}
	return nil
}

// library returns a directory that holds the files of a list, each with the expected digest. The first
// process on a machine that needs a list fetches its files. All others use them.
func library(ctx context.Context, name string, list []byte) (string, error) {
	all, err := parseArtifacts(list)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	sum := sha256.Sum256(list)
	dir := filepath.Join(cache, "perceptor", name+"-"+hex.EncodeToString(sum[:4]))
	if verifyAll(all, dir) == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("create cache directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	unlock, err := subprocess.LockFile(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if verifyAll(all, dir) == nil {
		return dir, nil
	}
	if err := install(ctx, name, all, dir); err != nil {
		return "", fmt.Errorf("fetch %s: %w", name, err)
	}
	return dir, nil
}

func verifyAll(all []artifact, dir string) error {
	for _, a := range all {
		if err := a.verify(dir); err != nil {
			return err
		}
	}
	return nil
}

// install fetches the files into a draft directory beside dir, verifies them and renames the draft to
// dir. Therefore dir is always complete if it exists.
func install(ctx context.Context, name string, all []artifact, dir string) error {
	draft, err := os.MkdirTemp(filepath.Dir(dir), name+"-draft-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(draft)
	if mirror := os.Getenv(mirrorVariable); mirror != "" {
		err = fetchFrom(ctx, mirror, all, draft)
	} else {
		err = fetchByMaven(ctx, name, all, draft)
	}
	if err != nil {
		return err
	}
	if err := verifyAll(all, draft); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Chmod(draft, 0o755); err != nil {
		return err
	}
	return os.Rename(draft, dir)
}

// fetchFrom downloads the files from the Maven repository at the address mirror.
func fetchFrom(ctx context.Context, mirror string, all []artifact, dir string) error {
	for _, a := range all {
		if err := download(ctx, strings.TrimRight(mirror, "/")+"/"+a.path(), filepath.Join(dir, a.file())); err != nil {
			return err
		}
		if err := a.verify(dir); err != nil {
			return err
		}
	}
	return nil
}

func download(ctx context.Context, address, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("%s is not a URL: %w", mirrorVariable, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", address, resp.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, io.LimitReader(resp.Body, artifactLimit)); err != nil {
		file.Close()
		return fmt.Errorf("GET %s: %w", address, err)
	}
	return file.Close()
}

// fetchByMaven runs Maven, which copies exactly the listed files and not their dependencies.
func fetchByMaven(ctx context.Context, name string, all []artifact, dir string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return fmt.Errorf("Maven is needed to fetch %s once; install it with: apt-get install maven, or set %s to the address of a Maven repository, or %s to a running %s",
			name, mirrorVariable, variableOf[name], name)
	}
	project, err := os.MkdirTemp("", "perceptor-maven-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(project)
	pom := filepath.Join(project, "pom.xml")
	if err := os.WriteFile(pom, projectFile(all), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, mvn, "--quiet", "--batch-mode", "--file", pom, copyGoal,
		"-DoutputDirectory="+dir, "-DincludeScope=runtime")
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn: %w: %s", err, firstError(out))
	}
	return nil
}

// firstError returns the first error line of Maven's output. It names the cause. The lines after it
// point to documentation.
func firstError(out []byte) string {
	for line := range bytes.Lines(out) {
		if _, text, ok := bytes.Cut(line, []byte("[ERROR] ")); ok {
			return string(bytes.TrimSpace(text))
		}
	}
	return string(bytes.TrimSpace(out[:min(len(out), lastWords)]))
}

func projectFile(all []artifact) []byte {
	var pom bytes.Buffer
	pom.WriteString("<project><modelVersion>4.0.0</modelVersion><groupId>perceptor</groupId>" +
		"<artifactId>testenv</artifactId><version>1</version><dependencies>\n")
	for _, a := range all {
		fmt.Fprintf(&pom, "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>", a.group, a.name, a.version)
		if a.classifier != "" {
			fmt.Fprintf(&pom, "<classifier>%s</classifier>", a.classifier)
		}
		pom.WriteString("<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>\n")
	}
	pom.WriteString("</dependencies></project>\n")
	return pom.Bytes()
}
