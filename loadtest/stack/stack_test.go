package stack

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fake is a server that does nothing.
type fake struct {
	Server
	stopped func() error
}

func (f fake) Stop(context.Context) error { return f.stopped() }

func TestPartsAreFoundByTheirKind(t *testing.T) {
	s := &Stack{}
	for _, name := range []string{"postgres", "dispatcher-1", "dispatcher-2"} {
		s.add(name, fake{})
	}
	for name, want := range map[string]string{"postgres": "postgres", "dispatcher": "dispatcher-1", "dispatcher-2": "dispatcher-2"} {
		if p, err := s.Part(name); err != nil || p.Name != want {
			t.Errorf("Part(%s) = %q, %v, want %q", name, p.Name, err, want)
		}
	}
	if _, err := s.Part("kafka"); err == nil || !strings.Contains(err.Error(), "dispatcher-2") {
		t.Errorf("the error of an unknown part does not name the parts: %v", err)
	}
	if _, err := (&Stack{}).Part("kafka"); err == nil {
		t.Error("Part of an external stack returns no error")
	}
}

func TestCloseStopsEverythingLastFirstAndGoesOnAfterErrors(t *testing.T) {
	var stopped []string
	s := &Stack{}
	for _, name := range []string{"postgres", "kafka", "taskd-1"} {
		s.add(name, fake{stopped: func() error {
			stopped = append(stopped, name)
			if name == "kafka" {
				return errors.New("it hangs")
			}
			return nil
		}})
	}
	err := s.Close(context.Background())
	if err == nil || !strings.Contains(err.Error(), "stop kafka: it hangs") {
		t.Errorf("unexpected error: %v", err)
	}
	if want := []string{"taskd-1", "kafka", "postgres"}; !slices.Equal(stopped, want) {
		t.Errorf("stopped parts = %v, want %v", stopped, want)
	}
	if err := s.Close(context.Background()); err != nil || len(stopped) != 3 {
		t.Errorf("a second Close stopped parts again: %v, %v", stopped, err)
	}
}

func TestOurProgramsAreConfiguredByNothingFromOutside(t *testing.T) {
	t.Setenv("PERCEPTOR_TEST_POSTGRES_DSN", "postgres://elsewhere")
	t.Setenv("OTHER", "kept")
	env := plainEnviron()
	if slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "PERCEPTOR_") }) {
		t.Errorf("a variable of Perceptor's configuration was kept: %v", env)
	}
	if !slices.Contains(env, "OTHER=kept") {
		t.Error("another variable was removed")
	}
}

func TestAnExternalStackNeedsAddressAndToken(t *testing.T) {
	if s, err := External(ExternalOptions{Address: "127.0.0.1:7070", Token: "secret"}); err != nil || s.Address == "" {
		t.Errorf("External = %+v, %v", s, err)
	}
	for _, o := range []ExternalOptions{{}, {Address: "127.0.0.1:7070"}, {Token: "secret"}} {
		_, err := External(o)
		if err == nil {
			t.Errorf("External(%+v) returns no error", o)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains the token: %v", err)
		}
	}
}

func TestTheBannerTellsAddressAndToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	text := "Perceptor devel, ready.\n\n  gRPC       127.0.0.1:123\n  HTTP       http://127.0.0.1:124\n  token      pct_x_y\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Stack{}
	if err := s.readBanner(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if s.Address != "127.0.0.1:123" || s.Token != "pct_x_y" {
		t.Errorf("readBanner found address %q and token %q", s.Address, s.Token)
	}
}

// sleeper returns a program that runs until it is killed or stopped.
func sleeper(t *testing.T) *program {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	return &program{name: "sleeper", asks: http.DefaultClient, path: path, args: []string{"600"}, logPath: filepath.Join(t.TempDir(), "log")}
}

func TestAProgramThatIsNeverReadyIsAnErrorWithItsLastWords(t *testing.T) {
	p := sleeper(t)
	p.path, p.args = "/bin/sh", []string{"-c", "echo no such table; exit 3"}
	p.readyURL = "http://127.0.0.1:1/readyz"
	err := p.start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no such table") {
		t.Errorf("unexpected error: %v", err)
	}
	if err := p.died(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("died() = %v, want an error with the exit status", err)
	}
}

func TestOnlyAnEndThatNobodyAskedForIsReported(t *testing.T) {
	for name, end := range map[string]func(*program) error{
		"kill": (*program).Kill,
		"stop": func(p *program) error { return p.Stop(t.Context()) },
		"stop of a paused program": func(p *program) error {
			if err := p.Pause(); err != nil {
				return err
			}
			return p.Stop(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := sleeper(t)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			p.readyURL = "http://127.0.0.1:1/readyz"
			if err := p.start(ctx); err == nil {
				t.Fatal("start returned nil for a program that never answers")
			}
			if err := p.died(); err != nil {
				t.Fatalf("died() of a running program = %v, want nil", err)
			}
			// sleep always ends by a signal.
			if err := end(p); err != nil {
				t.Fatal(err)
			}
			if err := p.died(); err != nil {
				t.Errorf("died() after Stop or Kill = %v, want nil", err)
			}
		})
	}
}
