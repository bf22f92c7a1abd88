package schedule

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// The zone data is embedded, not taken from the machine or the Go release. So
// an expression means the same on every machine and changes only when these
// files change.
//
//go:generate sh -c "cp $(go env GOROOT)/lib/time/zoneinfo.zip . && sed -n s/^DATA=//p $(go env GOROOT)/lib/time/update.bash > zoneinfo.version"
var (
	//go:embed zoneinfo.zip
	zoneArchive []byte
	//go:embed zoneinfo.version
	zoneVersion string
)

// ZoneDataVersion returns the release of the IANA time zone database in this
// package, such as "2025c".
func ZoneDataVersion() string { return strings.TrimSpace(zoneVersion) }

// FirstYear and LastYear bound the local time of all instants.
const (
	FirstYear = 1970
	LastYear  = 2199
)

const secondsPerDay = 24 * 60 * 60

// zone is a time zone as a table of segments with a constant offset. It is
// immutable.
type zone struct {
	location *time.Location
	// starts has the instants, in seconds since 1970, at which the segments
	// begin. Each segment ends where the next one begins; the last never ends.
	starts []int64
	// offsets has the seconds to add to an instant for its local time.
	offsets []int64
	// high has, for each segment, the first local time that no clock of the
	// zone has shown by the end of the segment: the latest end of this and all
	// earlier segments. It never decreases.
	high []int64
}

// zones caches zones. Its size is bounded by the number of names in the
// archive.
var zones sync.Map // of string to *zone

// findZone returns the zone with a name. The empty name is UTC.
func findZone(name string) (*zone, error) {
	if name == "" {
		name = "UTC"
	}
	if z, ok := zones.Load(name); ok {
		return z.(*zone), nil
	}
	location, err := loadLocation(name)
	if err != nil {
		return nil, err
	}
	z, _ := zones.LoadOrStore(name, newZone(location))
	return z.(*zone), nil
}

// CheckZone returns an [*Error] unless name is the name of a time zone. The
// empty name is UTC.
func CheckZone(name string) error {
	_, err := findZone(name)
	return err
}

// archivedZones opens the embedded archive once.
var archivedZones = sync.OnceValue(func() map[string]*zip.File {
	r, err := zip.NewReader(bytes.NewReader(zoneArchive), int64(len(zoneArchive)))
	if err != nil {
		panic(fmt.Sprintf("schedule: the embedded zones are damaged: %v", err))
	}
	files := make(map[string]*zip.File, len(r.File))
	for _, f := range r.File {
		if !f.FileInfo().IsDir() {
			files[f.Name] = f
		}
	}
	return files
})

func loadLocation(name string) (*time.Location, error) {
	f, ok := archivedZones()[name]
	if !ok {
		return nil, unknownZone(name)
	}
	r, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("open time zone %s: %w", name, err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read time zone %s: %w", name, err)
	}
	return time.LoadLocationFromTZData(name, data)
}

// unknownZone suggests names that differ in case or have the same end.
func unknownZone(name string) error {
	rule := "is not the name of a time zone, such as UTC or Europe/London (IANA " + ZoneDataVersion() + ")"
	_, wanted, found := strings.Cut(name, "/")
	if !found {
		wanted = name
	}
	var near []string
	for known := range archivedZones() {
		_, last, _ := strings.Cut(known, "/")
		if strings.EqualFold(known, name) || wanted != "" && strings.EqualFold(last, wanted) {
			near = append(near, known)
		}
	}
	if len(near) > 0 {
		slices.Sort(near)
		rule += "; is it " + strings.Join(near, " or ") + "?"
	}
	return &Error{Field: "time zone", Value: name, Position: -1, Rule: rule}
}

// newZone builds the table of a location, from before [FirstYear] to after
// [LastYear].
func newZone(location *time.Location) *zone {
	z := &zone{location: location}
	first := startOfYear(FirstYear) - 2*secondsPerDay
	last := startOfYear(LastYear+1) + 2*secondsPerDay
	for at := first; at < last; {
		t := time.Unix(at, 0).In(location)
		_, offset := t.Zone()
		if n := len(z.offsets); n == 0 || z.offsets[n-1] != int64(offset) {
			z.starts = append(z.starts, at)
			z.offsets = append(z.offsets, int64(offset))
		}
		_, end := t.ZoneBounds()
		if end.IsZero() {
			break
		}
		next := end.Unix()
		if next <= at { // so it may be said of the last day of a leap year
			next = at + secondsPerDay
		}
		at = next
	}
	z.markHigh()
	return z
}

// markHigh computes z.high.
func (z *zone) markHigh() {
	z.high = make([]int64, len(z.starts))
	for k := range z.starts {
		z.high[k] = max(z.endLocal(k), z.highBefore(k))
	}
}

// startOfYear returns the first second of a year, in seconds since 1970.
func startOfYear(year int) int64 { return dayNumber(year, 1) * secondsPerDay }

// startLocal returns the local time at which a segment begins, endLocal the
// first one after it.
func (z *zone) startLocal(k int) int64 { return z.starts[k] + z.offsets[k] }

func (z *zone) endLocal(k int) int64 {
	if k+1 == len(z.starts) {
		return math.MaxInt64
	}
	return z.starts[k+1] + z.offsets[k]
}

// highBefore returns the first local time that no clock has shown before a
// segment.
func (z *zone) highBefore(k int) int64 {
	if k == 0 {
		return z.startLocal(0)
	}
	return z.high[k-1]
}

// segment returns the number of the segment of an instant, which must not be
// before the table.
func (z *zone) segment(at int64) int {
	k, found := slices.BinarySearch(z.starts, at)
	if found {
		return k
	}
	return k - 1
}

// Location returns a time zone of the embedded data. The empty name is UTC. The error is
// an [*Error].
func Location(name string) (*time.Location, error) {
	z, err := findZone(name)
	if err != nil {
		return nil, err
	}
	return z.location, nil
}
