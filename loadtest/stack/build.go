package stack

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	modulePath = "github.com/perceptor/perceptor"
	buildLimit = 5 * time.Minute
)

// build compiles commands of this module into dir. The working directory must
// lie in the module.
func build(ctx context.Context, dir string, commands ...string) error {
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	args := append([]string{"build", "-buildvcs=false", "-o", dir + string(filepath.Separator)}, buildFlags...)
	for _, c := range commands {
		args = append(args, modulePath+"/cmd/"+c)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %v: %w: %s", commands, err, bytes.TrimSpace(out))
	}
	return nil
}
