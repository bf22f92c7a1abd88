package backlog

import (
	"fmt"
	"os"
	"syscall"
)

// What a run needs on disk.
const (
	bytesPerTask = 36       // keys, params, their pages, the locator
	walBytes     = 12 << 30 // max_wal_size, and what a slow checkpoint lets it grow by
	otherBytes   = 3 << 30  // Kafka, the near tier, the history of the firing
)

// CheckDisk returns an error, with both numbers, when dir has no room for n
// tasks with params of so many bytes. dir "" is that of temporary files.
func CheckDisk(dir string, n int64, paramsBytes int) error {
	if dir == "" {
		dir = os.TempDir()
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if need := needed(n, paramsBytes); free < need {
		return fmt.Errorf("%d tasks need %s on disk (%d bytes), and %s has %s free (%d bytes); load fewer, or choose another --data-dir",
			n, gigabytes(need), need, dir, gigabytes(free), free)
	}
	return nil
}

// needed is an estimate on the safe side. A quarter of what params have beyond a
// hundred bytes is taken to be left of them.
func needed(n int64, paramsBytes int) int64 {
	wal := min(walBytes, n*bytesPerTask+1<<30)
	return n*int64(bytesPerTask+max(0, paramsBytes-100)/4) + wal + otherBytes
}

func gigabytes(n int64) string { return fmt.Sprintf("%.1f GB", float64(n)/1e9) }
