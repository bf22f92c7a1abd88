package release

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
)

// Archive writes the archive of the programs in a folder, and returns its path.
func (p *Plan) Archive(of Platform, programs, into string) (string, error) {
	a := p.config.Archives[0]
	name, err := p.expand(a.NameTemplate, of.names())
	if err != nil {
		return "", err
	}
	path := filepath.Join(into, name+".tar.gz")
	return path, write(path, func(w io.Writer) error {
		zip := gzip.NewWriter(w)
		t := tar.NewWriter(zip)
		for _, b := range p.config.Builds {
			if err := addFile(t, filepath.Join(programs, b.Binary), name+"/"+b.Binary, 0o755, p.Date); err != nil {
				return err
			}
		}
		if err := p.addFiles(t, a.Files, name); err != nil {
			return err
		}
		return errors.Join(t.Close(), zip.Close())
	})
}

// addFiles adds the files of the clone that the description names.
func (p *Plan) addFiles(t *tar.Writer, all []config.File, below string) error {
	for _, f := range all {
		paths, err := filepath.Glob(filepath.Join(p.Root, f.Source))
		if err != nil || len(paths) == 0 {
			return fmt.Errorf(".goreleaser.yaml: %s matches no file: %w", f.Source, errors.Join(err, os.ErrNotExist))
		}
		for _, path := range paths {
			name, err := filepath.Rel(p.Root, path)
			if err != nil {
				return err
			}
			if err := addFile(t, path, below+"/"+filepath.ToSlash(name), 0o644, p.Date); err != nil {
				return err
			}
		}
	}
	return nil
}

func addFile(t *tar.Writer, path, name string, mode int64, at time.Time) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: at}); err != nil {
		return err
	}
	_, err = t.Write(content)
	return err
}

// Deb writes the Debian package of the programs in a folder, and returns its path.
func (p *Plan) Deb(of Platform, programs, into string) (string, error) {
	n := p.config.NFPMs[0]
	name, err := p.expand(n.FileNameTemplate, of.names())
	if err != nil {
		return "", err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: n.PackageName, Arch: of.Arch, Platform: of.OS, Version: p.Version, VersionSchema: "semver", Section: n.Section, Maintainer: n.Maintainer,
		Description: n.Description, Vendor: n.Vendor, License: n.License, MTime: p.Date,
		Overridables: nfpm.Overridables{
			Depends: n.Dependencies, Recommends: n.Recommends, Contents: p.contents(n, programs),
			Scripts: nfpm.Scripts{
				PostInstall: p.at(n.Scripts.PostInstall), PreRemove: p.at(n.Scripts.PreRemove), PostRemove: p.at(n.Scripts.PostRemove),
			},
		},
	})
	if err := nfpm.PrepareForPackager(info, n.Formats[0]); err != nil {
		return "", err
	}
	packager, err := nfpm.Get(n.Formats[0])
	if err != nil {
		return "", err
	}
	path := filepath.Join(into, name+".deb")
	return path, write(path, func(w io.Writer) error { return packager.Package(info, w) })
}

func (p *Plan) contents(n config.NFPM, programs string) files.Contents {
	var all files.Contents
	for _, b := range p.config.Builds {
		all = append(all, &files.Content{Source: filepath.Join(programs, b.Binary), Destination: n.Bindir + "/" + b.Binary, FileInfo: &files.ContentFileInfo{Mode: 0o755}})
	}
	for _, c := range n.Contents {
		all = append(all, &files.Content{
			Source: p.at(c.Source), Destination: c.Destination, Type: c.Type,
			FileInfo: &files.ContentFileInfo{Mode: c.FileInfo.Mode, Owner: c.FileInfo.Owner, Group: c.FileInfo.Group, MTime: p.Date},
		})
	}
	return all
}

// at returns the path of a file of the clone; "" stays.
func (p *Plan) at(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Join(p.Root, path)
}

// Checksums writes the SHA-256 sums of files, as sha256sum --check reads them, and returns
// the path.
func (p *Plan) Checksums(paths []string, into string) (string, error) {
	var b strings.Builder
	for _, path := range slices.Sorted(slices.Values(paths)) {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), filepath.Base(path))
	}
	path := filepath.Join(into, p.config.Checksum.NameTemplate)
	return path, os.WriteFile(path, []byte(b.String()), 0o644)
}

// write creates a file with what f writes.
func write(path string, f func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f(file), file.Close())
}
