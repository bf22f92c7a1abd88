package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// Exit codes of [Run] if the exit code of the command is not known.
const (
	exitNotStarted = 125
	exitSignalled  = 130
)

// Run starts, concurrently, the shared servers that no environment variable names. It runs command with
// the variables set, stops the servers, and returns the command's exit code. Run forwards SIGINT and
// SIGTERM to the command and stops the servers after the command has ended.
func Run(command []string) int {
	if len(command) == 0 {
		fmt.Fprintln(os.Stderr, "testenv: no command given")
		return exitNotStarted
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	keepInMemory()
	code := runWithServers(ctx, command)
	if err := StopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	return code
}

// keepInMemory makes this process and the command keep temporary data in memory if there is enough. Files that
// the go command builds stay on disk. A TMPDIR that is set is left as it is.
func keepInMemory() {
	dir := memoryDir()
	if dir == "" || os.Getenv("TMPDIR") != "" {
		return
	}
	if os.Getenv("GOTMPDIR") == "" {
		os.Setenv("GOTMPDIR", os.TempDir()) //nolint:errcheck,usetesting // neither is empty
	}
	os.Setenv("TMPDIR", dir) //nolint:errcheck,usetesting // neither is empty
}

func runWithServers(ctx context.Context, command []string) int {
	env, err := startAll(ctx)
	if ctx.Err() != nil {
		return exitSignalled
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return exitNotStarted
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = stopTimeout
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	case ctx.Err() != nil:
		return exitSignalled
	default:
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return exitNotStarted
	}
}

// startAll starts the servers concurrently and returns the environment variables that name them.
func startAll(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	shared.Lock()
	defer shared.Unlock()
	place, err := newScratch()
	if err != nil {
		return nil, err
	}
	shared.dir = place

	var (
		wg   sync.WaitGroup
		env  [4]string
		errs [4]error
	)
	start := func(i int, variable string, f func() (string, error)) {
		if os.Getenv(variable) != "" {
			return
		}
		wg.Go(func() {
			value, err := f()
			env[i], errs[i] = variable+"="+value, err
		})
	}
	start(0, PostgresVariable, func() (value string, err error) {
		if shared.postgres, err = StartPostgres(ctx, serverDir(place, "postgresql"), forTests); err == nil {
			value = shared.postgres.DSN()
		}
		return value, err
	})
	start(1, ZooKeeperVariable, func() (value string, err error) {
		if shared.zookeeper, err = StartZooKeeper(ctx, serverDir(place, "zookeeper")); err == nil {
			value = shared.zookeeper.Addr()
		}
		return value, err
	})
	start(2, KafkaVariable, func() (value string, err error) {
		if shared.kafka, err = StartKafka(ctx, serverDir(place, "kafka")); err == nil {
			value = shared.kafka.Addr()
		}
		return value, err
	})
	start(3, TemplatesVariable, func() (dir string, err error) {
		dir = serverDir(place, "templates")
		return dir, os.Mkdir(dir, 0o755)
	})
	wg.Wait()
	return compact(env[:]), errors.Join(errs[:]...)
}

func compact(values []string) []string {
	var set []string
	for _, value := range values {
		if value != "" {
			set = append(set, value)
		}
	}
	return set
}
