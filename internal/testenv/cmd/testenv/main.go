// Command testenv runs another command beside a real PostgreSQL, ZooKeeper and Kafka:
//
//	testenv run -- go test ./...
//
// It starts the three servers and names them to the command in the variables PERCEPTOR_TEST_POSTGRES_DSN,
// PERCEPTOR_TEST_ZOOKEEPER and PERCEPTOR_TEST_KAFKA. When the command has ended, it stops the servers and
// exits with the command's exit code. A server whose variable is already set is used and not started.
//
// On Linux, the servers and the command keep temporary data in memory if /dev/shm has 8 GiB free and the machine
// has 12 GiB available. Set TMPDIR to keep it elsewhere.
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
