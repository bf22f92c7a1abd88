// Package release builds what a release consists of, as ../.goreleaser.yaml says: programs,
// archives, packages and checksums; and the OCI image. goreleaser itself builds releases; this
// package builds the same on a machine where goreleaser or a container engine is not at hand,
// so that the description is tried with each change and not first with a tag.
//
// It knows the parts of goreleaser's configuration that the file uses, and refuses templates
// with other names.
package release
