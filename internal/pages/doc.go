// Package pages reads the Markdown pages of the repository as GitHub shows them: their
// links, anchors and blocks of code. Its tests hold the pages to the files that they
// name: every link leads somewhere, every page has a way in, and code that a page
// takes from a file is what the file says. Tests of the examples run the commands of
// the tutorials.
//
// A block of code is taken from a file if a comment above it names the file, and
// declarations of it, or none for the whole file:
//
//	<!-- code: examples/hello/main.go run greet -->
//
// `go generate ./internal/pages` writes the code of the files into the pages, and the index of
// the decisions.
package pages

//go:generate go test -run TestCodeOnPagesIsThatOfItsFile|TestTheIndexOfDecisionsIsCurrent . -write
