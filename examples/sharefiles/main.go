// Command sharefiles shares the files of a directory among several copies of itself.
// One copy reads each file and then moves it to DIR/done. The command needs ZooKeeper
// and only package assign of this repository.
//
//	go run ./examples/sharefiles --zookeeper localhost:2181 --dir /tmp/in &
//	go run ./examples/sharefiles --zookeeper localhost:2181 --dir /tmp/in &
//	go run ./examples/sharefiles --zookeeper localhost:2181 --dir /tmp/in &
//	cp *.txt /tmp/in
//
// The files are divided into 27 items by the first letter of their names. The last
// item has the names that do not begin with a letter. Copies may be started, stopped
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

// others is the item of names that do not begin with a letter.
const others = len(letters)

func main() {
	servers := flag.String("zookeeper", "localhost:2181", "servers, host:port, separated by commas")
	dir := flag.String("dir", "", "directory to share")
	takes := flag.Duration("takes", 0, "additional duration of reading a file, for experiments")
	session := flag.Duration("session", 10*time.Second, "a copy without contact for this long counts as dead")
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

// find returns the unread files of the selected items.
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

// itemOf returns the item that a name belongs to.
func itemOf(name string) int {
	if i := strings.Index(letters, strings.ToLower(name[:1])); i >= 0 {
		return i
	}
	return others
}

// read reads one file and moves it to the directory done.
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
