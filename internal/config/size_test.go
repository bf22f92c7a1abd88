package config

import "testing"

func TestASizeHasAUnitOrIsANumberOfBytes(t *testing.T) {
	for value, want := range map[any]int64{
		"500GB": 500e9, "1.5TiB": 3 << 39, "64 MiB": 64 << 20, "8kB": 8000, "7KiB": 7 << 10, "10B": 10, 4096: 4096, "1TB": 1e12,
		"": 0, "GB": 0, "-1GB": 0, "5PB": 0, "NaN": 0, "1e30": 0, "5 GB free": 0, true: 0,
	} {
		if got, ok := parseSize(value); got != want || ok != (want > 0) {
			t.Errorf("%v: %d, %v, want %d", value, got, ok, want)
		}
	}
}
