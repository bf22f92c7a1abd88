// Command sharefiles reads files from a directory together with its other copies:
// each file is read by one of them and then moved to DIR/done. It needs ZooKeeper
// and package assign, and nothing else of this repository.
//
//	go run ./examples/sharefiles --zookeeper localhost:2181 --dir /tmp/in &
//	go run ./examples/sharefiles --zookeeper localhost:2181 --dir /tmp/in &
//	go run ./examples/sharefiles --zookeeper localhost:2181 --dir /tmp/in &
//	cp *.txt /tmp/in
//
// The work is divided by the first letter of a file's name into 27 items, the
// last of which is for names that begin with none. Copies may be started, stopped
// and killed at any time.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/loop"
)

const letters = "abcdefghijklmnopqrstuvwxyz"

// others is the item of names that begin with no letter.
const others = len(letters)

func main() {
	servers := flag.String("zookeeper", "localhost:2181", "servers, host:port, separated by commas")
	dir := flag.String("dir", "", "directory to share")
	takes := flag.Duration("takes", 0, "how long reading a file takes, for trying things out")
	session := flag.Duration("session", 10*time.Second, "after this long without a sign a copy counts as dead")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, strings.Split(*servers, ","), *session, reader{*dir, *takes})
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, servers []string, session time.Duration, r reader) error {
	if err := os.MkdirAll(filepath.Join(r.dir, "done"), 0o755); err != nil {
		return err
	}
	files, err := loop.New(loop.Config[string]{Select: r.find, Execute: r.read, Workers: 2})
	if err != nil {
		return err
	}
	member, err := assign.NewZooKeeper(assign.Config{
		Servers: servers, Root: "/sharefiles", Items: items(), SessionTimeout: session, Figures: files.Figures,
	}, files)
	if err != nil {
		return err
	}
	return loop.Run(ctx, member, files)
}

func items() []assign.Item {
	all := []assign.Item{{ID: others}}
	for i, letter := range letters {
		all = append(all, assign.Item{ID: i, Param: string(letter)})
	}
	return all
}

// A reader reads the files of a directory.
type reader struct {
	dir   string
	takes time.Duration
}

// find lists files that are to be read, of the items that this copy has.
func (r reader) find(_ context.Context, s loop.Selection) ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		mine := slices.ContainsFunc(s.Items, func(it assign.Item) bool { return it.ID == itemOf(e.Name()) })
		if mine && e.Type().IsRegular() && len(names) < s.Fetch {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// itemOf is the item that a name belongs to.
func itemOf(name string) int {
	if i := strings.Index(letters, strings.ToLower(name[:1])); i >= 0 {
		return i
	}
	return others
}

// read reads one file and moves it away.
func (r reader) read(ctx context.Context, name string) error {
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		return err
	}
	select {
	case <-time.After(r.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := os.Rename(filepath.Join(r.dir, name), filepath.Join(r.dir, "done", name)); err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes\n", name, len(text))
	return nil
}
