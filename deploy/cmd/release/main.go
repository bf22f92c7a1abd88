// Command release builds what a release consists of without goreleaser, and the OCI image:
//
//	release snapshot    programs, archives, packages and checksums into bin/dist
//	release deb         the Debian package of this machine's processor into bin/release
//	release image       the image into bin/release/perceptor-image.tar
//	release notes       the part of CHANGELOG.md about a version, to standard output
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"

	"github.com/perceptor/perceptor/deploy/release"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal("release: ", err)
	}
}

type flags struct{ root, version, arch, tag string }

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say what to build: snapshot, deb, image or notes")
	}
	var f flags
	set := flag.NewFlagSet(args[0], flag.ContinueOnError)
	set.StringVar(&f.root, "root", "..", "top of the clone")
	set.StringVar(&f.version, "version", "", "version, such as v1.2.3 (default: that of a snapshot)")
	set.StringVar(&f.arch, "arch", runtime.GOARCH, "processor: amd64 or arm64")
	set.StringVar(&f.tag, "tag", "perceptor:latest", "name of the image")
	if err := set.Parse(args[1:]); err != nil {
		return err
	}
	root, err := filepath.Abs(f.root)
	if err != nil {
		return err
	}
	p, err := release.NewPlan(ctx, root, f.version)
	if err != nil {
		return err
	}
	switch args[0] {
	case "snapshot":
		return snapshot(ctx, p)
	case "deb", "image":
		return single(ctx, p, args[0], f)
	case "notes":
		text, err := p.Notes()
		fmt.Print(text)
		return err
	}
	return fmt.Errorf("%s is none of snapshot, deb, image, notes", args[0])
}

// snapshot builds everything for all platforms.
func snapshot(ctx context.Context, p *release.Plan) error {
	dist := filepath.Join(p.Root, "bin", "dist")
	var made []string
	for _, to := range p.Platforms() {
		programs := filepath.Join(dist, to.String())
		if err := p.Build(ctx, to, programs); err != nil {
			return err
		}
		path, err := p.Archive(to, programs, dist)
		if err != nil {
			return err
		}
		made = append(made, path)
		if to.OS != "linux" {
			continue
		}
		if path, err = p.Deb(to, programs, dist); err != nil {
			return err
		}
		made = append(made, path)
	}
	path, err := p.Checksums(made, dist)
	for _, m := range append(made, path) {
		fmt.Println(m)
	}
	return err
}

// single builds one thing for one processor.
func single(ctx context.Context, p *release.Plan, what string, f flags) error {
	to := release.Platform{OS: "linux", Arch: f.arch}
	into := filepath.Join(p.Root, "bin", "release")
	programs := filepath.Join(into, to.String())
	if err := p.Build(ctx, to, programs); err != nil {
		return err
	}
	if what == "deb" {
		path, err := p.Deb(to, programs, into)
		fmt.Println(path)
		return err
	}
	path := filepath.Join(into, "perceptor-image.tar")
	if f.arch != runtime.GOARCH {
		path = filepath.Join(into, "perceptor-image-"+f.arch+".tar")
	}
	fmt.Println(path)
	return p.Image(to, programs, f.tag, path)
}
