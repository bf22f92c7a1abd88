package store

import (
	"context"
	_ "embed"
	"time"
)

//go:embed clock.sql
var clockSQL string

// clockReadings is how often a clock is read. The answer that came fastest tells it best.
const clockReadings = 3

// ClockAhead reads the clock of the server of database d. It is ahead of this machine's by ahead (behind, if negative), and
// by at most within more or less than that, which is half of the time of the answer.
func (c *Cluster) ClockAhead(ctx context.Context, d int) (ahead, within time.Duration, err error) {
	for i := range clockReadings {
		var micros int64
		asked := time.Now()
		if err := c.Pool(d).QueryRow(ctx, clockSQL).Scan(&micros); err != nil {
			return 0, 0, err
		}
		half := time.Since(asked) / 2
		if i == 0 || half < within {
			ahead, within = time.UnixMicro(micros).Sub(asked.Add(half)), half
		}
	}
	return ahead, within, nil
}
