package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// diskBytes is the size of a limited disk. It holds the tables of all databases of a server,
// and some log.
const diskBytes = 600 << 20

// limitDisk gives the server a disk of limited size. It must be called before the server's start.
func (r *Replicas) limitDisk() (unmount func() error, err error) {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	unmount, err = mountDisk(r.dir, diskBytes)
	r.limited = err == nil
	return unmount, err
}

// Limited reports whether the server has a disk of limited size.
func (r *Replicas) Limited() bool { return r.limited }

func (r *Replicas) ballast() string { return filepath.Join(r.dir, "ballast") }

// FillDisk takes all free space of the limited disk, and makes the server need some.
func (r *Replicas) FillDisk(ctx context.Context) error {
	if !r.limited {
		return fmt.Errorf("the disk of %s has no limit", r.name)
	}
	if err := fillDisk(r.ballast()); err != nil {
		return err
	}
	for end := time.Now().Add(readyWait); time.Now().Before(end); {
		err := onServer(ctx, r.Primary().DSN(), func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SELECT pg_switch_wal() FROM pg_logical_emit_message(true, 'fill', 'x')")
			return err
		})
		if err != nil || ctx.Err() != nil {
			return ctx.Err() // the server has failed, as it should
		}
		if err := fillDisk(r.ballast()); err != nil {
			return err
		}
	}
	return errors.New("the server needs no disk")
}

// FreeDisk gives the space of FillDisk back. The server may have to be started again.
func (r *Replicas) FreeDisk() error { return os.Remove(r.ballast()) }

// DiskErrors returns how often the server's log tells that the disk is full.
func (r *Replicas) DiskErrors() int {
	text, err := os.ReadFile(r.Primary().LogPath())
	if err != nil {
		return 0
	}
	return strings.Count(string(text), "No space left on device")
}
