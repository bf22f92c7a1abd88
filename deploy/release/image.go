package release

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the one that the image runs as: nobody in particular, and not root.
const user = "65532:65532"

// Image writes the OCI image of the programs in a folder as an archive: an OCI layout with
// the manifest.json that older versions of docker load need. The image has the programs,
// certificates of public authorities, and the name of the user; nothing else, and nothing
// that could be written to. The same programs give the same bytes.
func (p *Plan) Image(of Platform, programs, tag, path string) error {
	files, err := p.layerOfFiles()
	if err != nil {
		return err
	}
	binaries, err := p.layerOfPrograms(programs)
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), files, binaries)
	if err != nil {
		return err
	}
	if image, err = mutate.ConfigFile(mutate.ConfigMediaType(image, types.OCIConfigJSON), p.imageConfig(of, image)); err != nil {
		return err
	}
	return p.archiveImage(image, tag, path)
}

func (p *Plan) imageConfig(of Platform, image v1.Image) *v1.ConfigFile {
	c, err := image.ConfigFile()
	if err != nil {
		panic(err) // it was made in memory
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = of.OS, of.Arch, v1.Time{Time: p.Date}
	c.History = nil
	c.Config = v1.Config{
		User: user, Cmd: []string{"/usr/bin/taskd"}, WorkingDir: "/", Env: []string{"PATH=/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		ExposedPorts: map[string]struct{}{"7070/tcp": {}, "7071/tcp": {}, "7072/tcp": {}, "7073/tcp": {}, "7074/udp": {}},
		StopSignal:   "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title": "perceptor", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version": p.Version, "org.opencontainers.image.revision": p.Commit,
			"org.opencontainers.image.created": p.Date.Format(time.RFC3339),
		},
	}
	return c
}

// layerOfFiles has what changes rarely.
func (p *Plan) layerOfFiles() (v1.Layer, error) {
	license, err := os.ReadFile(filepath.Join(p.Root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	return p.layer([]tarFile{
		{"etc/passwd", []byte("root:x:0:0:root:/:/sbin/nologin\nperceptor:x:65532:65532:Perceptor:/:/sbin/nologin\n"), 0o644},
		{"etc/group", []byte("root:x:0:\nperceptor:x:65532:\n"), 0o644},
		{"etc/ssl/certs/ca-certificates.crt", certificates(), 0o644},
		{"usr/share/doc/perceptor/copyright", license, 0o644},
	})
}

func (p *Plan) layerOfPrograms(programs string) (v1.Layer, error) {
	var files []tarFile
	for _, b := range p.config.Builds {
		content, err := os.ReadFile(filepath.Join(programs, b.Binary))
		if err != nil {
			return nil, err
		}
		files = append(files, tarFile{"usr/bin/" + b.Binary, content, 0o755})
	}
	return p.layer(files)
}

// certificates are the authorities that Mozilla trusts without conditions, which a file
// could not express.
func certificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return b.Bytes()
}

type tarFile struct {
	name    string
	content []byte
	mode    int64
}

// layer returns a layer with files, their folders before them, all of root.
func (p *Plan) layer(files []tarFile) (v1.Layer, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	made := map[string]bool{}
	for _, f := range files {
		for i, c := range f.name {
			if folder := f.name[:i]; c == '/' && !made[folder] {
				made[folder] = true
				if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755, ModTime: p.Date}); err != nil {
					return nil, err
				}
			}
		}
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: p.Date}); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// archiveImage writes an image as one file.
func (p *Plan) archiveImage(image v1.Image, tag, path string) error {
	dir, err := os.MkdirTemp("", "perceptor-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is below the system's folder for temporary files
	index, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	_, version, _ := strings.Cut(tag, ":")
	err = index.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version, "io.containerd.image.name": "docker.io/library/" + tag}))
	if err != nil {
		return err
	}
	if err := writeDockerManifest(image, tag, dir); err != nil {
		return err
	}
	return write(path, func(w io.Writer) error { return p.tarFolder(w, dir) })
}

// writeDockerManifest adds what docker load reads where images are not kept by containerd.
func writeDockerManifest(image v1.Image, tag, dir string) error {
	m, err := image.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	layers := []string{}
	for _, l := range m.Layers {
		layers = append(layers, blob(l.Digest))
	}
	text, err := json.Marshal([]map[string]any{{"Config": blob(m.Config.Digest), "RepoTags": []string{tag}, "Layers": layers}})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o600)
}

func (p *Plan) tarFolder(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return addFile(t, path, filepath.ToSlash(name), 0o644, p.Date)
	})
	return errors.Join(err, t.Close())
}
