// Command testenv runs another command beside a real PostgreSQL, ZooKeeper and Kafka:
//
//	testenv run -- go test ./...
//
// It starts the three, names them to the command by PERCEPTOR_TEST_POSTGRES_DSN, PERCEPTOR_TEST_ZOOKEEPER
// and PERCEPTOR_TEST_KAFKA, stops them when the command has ended, and exits with the command's code. A
// server whose variable is set already is used and not started.
package main

import (
	"fmt"
	"os"

	"github.com/perceptor/perceptor/internal/testenv"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "run" {
		args = args[1:]
		if len(args) > 0 && args[0] == "--" {
			args = args[1:]
		}
		if len(args) > 0 {
			os.Exit(testenv.Run(args))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: testenv run -- command [argument ...]")
	os.Exit(2)
}
