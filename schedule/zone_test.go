package schedule

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestTablesSayWhatTheZonesSay(t *testing.T) {
	r := seed(t)
	first, last := startOfYear(FirstYear), startOfYear(LastYear+1)
	if n := len(archivedZones()); n < 590 {
		t.Errorf("%d zones, want all", n)
	}
	for name := range archivedZones() {
		z, err := findZone(name)
		if err != nil {
			t.Fatal(err)
		}
		check := func(at int64) {
			if _, want := time.Unix(at, 0).In(z.location).Zone(); z.offsets[z.segment(at)] != int64(want) {
				t.Errorf("%s at %s: offset %d, want %d", name, time.Unix(at, 0).UTC(), z.offsets[z.segment(at)], want)
			}
		}
		for range 100 {
			check(first + r.Int64N(last-first))
		}
		for k, start := range z.starts {
			check(start)
			check(max(start-1, z.starts[0]))
			if k > 0 && (start <= z.starts[k-1] || z.high[k] < z.high[k-1]) {
				t.Errorf("%s: segment %d is out of order", name, k)
			}
		}
		if len(z.starts) > 1000 {
			t.Errorf("%s: %d segments", name, len(z.starts))
		}
	}
}

// timing: T5.2
func TestZonesAreTheEmbeddedOnes(t *testing.T) {
	t.Setenv("ZONEINFO", filepath.Join(t.TempDir(), "none"))
	t.Setenv("TZ", "Asia/Tokyo")
	if _, err := findZone("Europe/Zurich"); err != nil {
		t.Error(err)
	}
	for name, hint := range map[string]string{
		"Local": "", "../etc/passwd": "", "Europe/": "", "Europe": "", "/": "", "+08:00": "", strings.Repeat("x", 10000): "...",
		"europe/london": "is it Europe/London?", "Kolkata": "is it Asia/Kolkata?",
	} {
		_, err := Parse(Standard, "0 0 * * *", name, Options{})
		var broken *Error
		if !errors.As(err, &broken) || broken.Field != "time zone" || !strings.Contains(err.Error(), hint) || len(err.Error()) > 400 {
			t.Errorf("%.50s: %v", name, err)
		}
	}
}

// TestZoneDataIsNotOlderThanGos fails when the Go release has newer zones: run
// go generate in this directory then.
func TestZoneDataIsNotOlderThanGos(t *testing.T) {
	version := ZoneDataVersion()
	if !regexp.MustCompile(`^20\d\d[a-z]$`).MatchString(version) {
		t.Fatalf("the version is %q", version)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "lib", "time")
	script, err := os.ReadFile(filepath.Join(dir, "update.bash"))
	if errors.Is(err, os.ErrNotExist) {
		t.Logf("%s: this Go release carries no zones to compare with", dir)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^DATA=(\w+)$`).FindSubmatch(script)
	if found == nil {
		t.Fatal("update.bash names no version")
	}
	if gos := string(found[1]); version < gos {
		t.Errorf("the embedded zones are of %s, Go has %s: run go generate ./schedule", version, gos)
	} else if version == gos {
		archive, err := os.ReadFile(filepath.Join(dir, "zoneinfo.zip"))
		if err != nil || !bytes.Equal(archive, zoneArchive) {
			t.Errorf("the embedded zones are not those of %s (%v)", version, err)
		}
	}
}
