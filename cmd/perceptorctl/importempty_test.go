package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// emptied is a service of imports that counts those which are open.
type emptied struct {
	perceptorv1.UnimplementedImportServiceServer
	open, created int
}

func (e *emptied) CreateImport(context.Context, *perceptorv1.CreateImportRequest) (*perceptorv1.Import, error) {
	e.open++
	e.created++
	return &perceptorv1.Import{Id: 17, State: perceptorv1.Import_OPEN}, nil
}

func (e *emptied) AbortImport(context.Context, *perceptorv1.AbortImportRequest) (*perceptorv1.Import, error) {
	e.open--
	return &perceptorv1.Import{Id: 17, State: perceptorv1.Import_ABORTED}, nil
}

func (e *emptied) FinishImport(context.Context, *perceptorv1.FinishImportRequest) (*perceptorv1.Import, error) {
	e.open--
	return &perceptorv1.Import{Id: 17, State: perceptorv1.Import_FINISHED}, nil
}

// TestAnImportOfNothingIsNotLeftOpen: nobody would resume it.
func TestAnImportOfNothingIsNotLeftOpen(t *testing.T) {
	t.Chdir(t.TempDir())
	s := &emptied{}
	api(t, func(g *grpc.Server) { perceptorv1.RegisterImportServiceServer(g, s) })
	for _, format := range []string{"csv", "jsonl"} {
		cmd, out := newCommand(), &bytes.Buffer{}
		cmd.SetIn(strings.NewReader(""))
		cmd.SetOut(out)
		cmd.SetErr(out)
		cmd.SetArgs([]string{"import", "-", "--format", format, "--kind", "a", "--type", "one-shot", "--no-space-check"})
		code := cli.Run(t.Context(), cmd)
		if s.open != 0 || format == "csv" && (code == 0 || !strings.Contains(out.String(), "nothing was imported, and import 17 is aborted: ") || strings.Contains(out.String(), "resume")) {
			t.Errorf("%s ended with %d, %d imports are open: %s", format, code, s.open, out)
		}
	}
	if s.created != 2 {
		t.Errorf("%d imports were created, want 2", s.created)
	}
}
