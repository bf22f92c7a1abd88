// Command checksite checks the links of a built site. `make site` runs it.
//
//	go run ./internal/pages/checksite bin/site
package main

import (
	"fmt"
	"os"

	"github.com/perceptor/perceptor/internal/pages"
)

// fewest is the number of pages below which something is wrong with the build.
const fewest = 50

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: checksite FOLDER")
		os.Exit(2)
	}
	n, faults, err := pages.CheckSite(os.Args[1])
	for _, fault := range faults {
		fmt.Fprintln(os.Stderr, fault)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case n < fewest:
		fmt.Fprintf(os.Stderr, "%s has %d pages, fewer than %d\n", os.Args[1], n, fewest)
		os.Exit(1)
	case len(faults) > 0:
		os.Exit(1)
	}
	fmt.Printf("%s: %d pages, all links lead somewhere\n", os.Args[1], n)
}
