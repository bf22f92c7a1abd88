// Command googleapis writes the imported google/api and google/rpc proto files
// below a directory, so that buf finds them without a network.
//
// The files are printed from the descriptors that are compiled into the
// genproto modules pinned in this directory's go.mod: the sources themselves are
// not kept in the repository, and go.sum proves what they are printed from.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "google.golang.org/genproto/googleapis/api/annotations"
	_ "google.golang.org/genproto/googleapis/rpc/status"
)

// wanted lists what proto/ imports, directly or not.
var wanted = []string{
	"google/api/annotations.proto",
	"google/api/field_behavior.proto",
	"google/api/http.proto",
	"google/rpc/status.proto",
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: googleapis DIRECTORY")
	}
	for _, path := range wanted {
		if err := write(os.Args[1], path); err != nil {
			log.Fatal(err)
		}
	}
}

func write(directory, path string) error {
	file, err := protoregistry.GlobalFiles.FindFileByPath(path)
	if err != nil {
		return fmt.Errorf("find %s: %w", path, err)
	}
	text, err := new(protoprint.Printer).PrintProtoToString(file)
	if err != nil {
		return fmt.Errorf("print %s: %w", path, err)
	}
	target := filepath.Join(directory, filepath.FromSlash(path))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, []byte(text), 0o644)
}
