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

// Sizes of limited disks. That of a PostgreSQL server holds the tables of all its databases, and
// some log.
const diskBytes, brokerDiskBytes = 600 << 20, 400 << 20

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

func (r *Replicas) ballast() string { return ballastIn(r.dir) }

// ballastIn returns the name of the file that takes the space of a disk.
func ballastIn(dir string) string { return filepath.Join(dir, "ballast") }

// limitBrokerDisk gives the last broker a disk of limited size if the machine allows that. It
// must be called before the broker's start.
func (c *Cluster) limitBrokerDisk(dir string, progress func(string)) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unmount, err := mountDisk(dir, brokerDiskBytes)
	if err != nil {
		progress("without a limited disk of a broker: " + err.Error())
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.brokerDisk = dir
	c.onClose(func(context.Context) error { return unmount() })
	return nil
}

// BrokerDiskLimited reports whether the last broker has a disk of limited size.
func (c *Cluster) BrokerDiskLimited() bool { return c.brokerDisk != "" }

// FillBrokerDisk takes all free space of the last broker's disk. The broker ends itself with the
// next record.
func (c *Cluster) FillBrokerDisk() error { return fillDisk(ballastIn(c.brokerDisk)) }

// FreeBrokerDisk gives the space of FillBrokerDisk back. The broker must be started again.
func (c *Cluster) FreeBrokerDisk() error { return os.Remove(ballastIn(c.brokerDisk)) }

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
