package compare

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// program is what does a contestant's work: a command line, to which the flags
// of the work are added.
type program struct{ command []string }

const (
	lineLimit = 64 << 10
	lastWords = 2 << 10
)

// run starts the program and reads what it writes until it ends. Its standard
// error goes to a file.
func (p program) run(ctx context.Context, logPath, dsn string, w Work, out *output) error {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.command[0], err)
	}
	defer reader.Close()
	cmd := exec.Command(p.command[0], append(p.command[1:len(p.command):len(p.command)], w.Args()...)...)
	cmd.Env = append(os.Environ(), DSNVariable+"="+dsn)
	cmd.Stdout, cmd.Stderr = writer, log
	process, err := subprocess.Start(cmd, syscall.SIGKILL)
	writer.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.command[0], err)
	}
	defer context.AfterFunc(ctx, func() { _ = process.Kill() })() // it has ended if it cannot be killed
	err = read(reader, out)
	if err != nil {
		err = errors.Join(err, process.Kill())
	}
	<-process.Done()
	if ctx.Err() != nil {
		return fmt.Errorf("it did not end in time: %w%s", ctx.Err(), words(logPath))
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, words(logPath))
	}
	if exit := process.Exit(); exit != "exit status 0" {
		return fmt.Errorf("it ended with %s%s", exit, words(logPath))
	}
	return nil
}

func read(from *os.File, out *output) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, lineLimit)
	for lines.Scan() {
		if err := out.line(lines.Bytes()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// words are the last ones of a log, for an error.
func words(path string) string {
	text, err := os.ReadFile(path)
	text = bytes.TrimSpace(text)
	if err != nil || len(text) == 0 {
		return ""
	}
	return ": " + string(text[max(0, len(text)-lastWords):])
}
