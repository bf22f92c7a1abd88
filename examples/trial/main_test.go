package trial

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/perceptor/perceptor/internal/dev"
)

// TestMain runs the tests beside the installation whose tokens are in the environment, as
// in docs/tutorials. Without them, as in `make test`, it runs an installation of its own.
func TestMain(m *testing.M) {
	if os.Getenv("PERCEPTOR_ADMIN_TOKEN") != "" {
		os.Exit(m.Run())
	}
	code := 1
	err := withInstallation(func(i dev.Info) {
		os.Setenv("PERCEPTOR_ADDRESS", i.GRPC)
		os.Setenv("PERCEPTOR_TOKEN", i.Token)
		os.Setenv("PERCEPTOR_ADMIN_TOKEN", i.Admin)
		code = m.Run()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// withInstallation calls f beside an installation with a virtual clock.
func withInstallation(f func(dev.Info)) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready, done := make(chan dev.Info, 1), make(chan error, 1)
	go func() {
		done <- dev.Run(ctx, dev.Options{
			Ephemeral: true, VirtualClock: dev.FrozenClock, Version: "test", Out: io.Discard, Log: slog.New(slog.DiscardHandler),
			Ready: func(i dev.Info) { ready <- i },
		})
	}()
	select {
	case i := <-ready:
		f(i)
		cancel()
		return <-done
	case err := <-done:
		return err
	}
}
