package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that the server runs as. PostgreSQL refuses to run as root, so root runs it as
// another user. All other users run it as themselves.
type account struct {
	name string
	cred *syscall.Credential // nil: this process's own user
}

func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "the current user"}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		return account{name: name, cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{uint32(gid)}}}, nil
	}
	return account{}, errors.New("PostgreSQL cannot run as root, and neither the user postgres nor the user nobody exists")
}

// own makes the account the owner of path.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	if err := os.Chown(path, int(a.cred.Uid), int(a.cred.Gid)); err != nil {
		return fmt.Errorf("change owner of %s to %s: %w", path, a.name, err)
	}
	return nil
}

// canEnter checks that the account may enter every directory above path.
func (a account) canEnter(path string) error {
	if a.cred == nil {
		return nil
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if !a.mayPass(info) {
			return fmt.Errorf("root runs PostgreSQL as the user %s, who cannot enter %s: choose a data directory elsewhere, such as /var/lib/perceptor, or allow it with chmod o+x %s", a.name, dir, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func (a account) mayPass(info os.FileInfo) bool {
	mode := info.Mode().Perm()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		switch {
		case stat.Uid == a.cred.Uid:
			return mode&0o100 != 0
		case stat.Gid == a.cred.Gid:
			return mode&0o010 != 0
		}
	}
	return mode&0o001 != 0
}

// attr returns the attributes of the account's processes.
func (a account) attr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: a.cred}
}
