package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// sizeUnits are the units of sizes, the longer names before those that end them.
var sizeUnits = []struct {
	name  string
	bytes float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// parseSize reads a number of bytes, with or without a unit. It must be above 0.
func parseSize(value any) (bytes int64, ok bool) {
	text := strings.TrimSpace(fmt.Sprint(value))
	for _, u := range sizeUnits {
		number, is := strings.CutSuffix(text, u.name)
		if !is {
			continue
		}
		x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		x *= u.bytes
		if err != nil || !(x >= 1 && x < math.MaxInt64) {
			return 0, false
		}
		return int64(x), true
	}
	return 0, false
}
