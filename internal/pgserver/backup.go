package pgserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// BaseBackup copies the running server's data with pg_basebackup into dir, which it creates. A server
// started on dir has all transactions that were committed before the call. If standby is not empty, that
// server is a standby under this name: it follows the log of this one.
func (s *Server) BaseBackup(ctx context.Context, dir, standby string) error {
	if err := s.newDir(dir); err != nil {
		return fmt.Errorf("back up PostgreSQL: %w", err)
	}
	source := "host=127.0.0.1 port=" + strconv.Itoa(s.port) + " user=" + superuser
	if s.ca != "" { // without a certificate, which would be looked for in the home of another user
		source += " sslmode=require sslcert=/nonexistent"
	}
	args := []string{"--pgdata", dir, "--wal-method", "stream", "--checkpoint", "fast", "--no-sync"}
	if standby != "" {
		source += " application_name=" + standby
		args = append(args, "--write-recovery-conf")
	}
	program, err := s.binaries.program("pg_basebackup")
	if err != nil {
		return fmt.Errorf("back up PostgreSQL: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, append(args, "--dbname", source)...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+s.password)
	cmd.Dir = dir
	cmd.SysProcAttr = s.account.attr()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("back up PostgreSQL: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// program returns the path of a program of the installation. Dir may have links to some programs only.
func (b Binaries) program(name string) (string, error) {
	path := filepath.Join(b.Dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	server, err := filepath.EvalSymlinks(filepath.Join(b.Dir, "postgres"))
	if err != nil {
		return "", err
	}
	path = filepath.Join(filepath.Dir(server), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: the program %s", ErrNotFound, name)
	}
	return path, nil
}

// Copy copies the data directory of a server that is not running to dir, which it creates.
func Copy(ctx context.Context, data, dir string) error {
	out, err := exec.CommandContext(ctx, "cp", "-a", data, dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy data directory: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// newDir makes an empty directory that belongs to the server's user.
func (s *Server) newDir(dir string) error {
	if err := s.account.canEnter(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return s.account.own(dir)
}
