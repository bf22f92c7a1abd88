package figures

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Place is the place of a number in [Figures]. The numbers are stored by place: a place never
// gets another meaning.
type Place int

// Numbers that count. Added, Fired and Redelivered have one place for each [task.Type].
const (
	Added       Place = 0
	Fired       Place = 4
	Redelivered Place = 8
	Succeeded   Place = 12
	Failed      Place = 13
	Snoozed     Place = 14
	HandedBack  Place = 15
	Missed      Place = 16
	Dead        Place = 17

	// Lateness and Handled have one place for each class of durations.
	Lateness Place = 20
	Handled  Place = Lateness + Classes

	gauges Place = Handled + Classes
)

// Numbers that describe the end of the interval. The backlog of a tenant is the sum over
// processes, of which each measures other databases.
const (
	// Due is the number of tasks that are due and not claimed.
	Due = gauges + iota
	// DueMore is 1 if there are more than Due.
	DueMore
	// DueSince is how long the oldest one has been due, in ms.
	DueSince
	// Asked is when Kafka was asked for the next two, in ms since 1970; 0: it was not.
	Asked
	// Members is the number of listeners, and Lag the number of unread records.
	Members
	Lag
	size
)

// Figures are the figures of one tenant in one interval. The zero value has none.
type Figures struct {
	n [size]int64
	// Unhandled are runs that were handed back because their kind has no handler, by kind.
	Unhandled map[string]int64
}

// Of returns the number at a place.
func (f *Figures) Of(p Place) int64 { return f.n[p] }

// Set sets the number at a place.
func (f *Figures) Set(p Place, n int64) { f.n[p] = n }

// Count adds n at a place.
func (f *Figures) Count(p Place, n int64) { f.n[p] += n }

// Observe counts n durations in the classes that begin at a place.
func (f *Figures) Observe(p Place, d time.Duration, n int64) { f.n[p+Place(class(d))] += n }

// unhandled counts runs of a kind without a handler.
func (f *Figures) unhandled(kind string, n int64) {
	if f.Unhandled == nil {
		f.Unhandled = map[string]int64{}
	}
	if _, has := f.Unhandled[kind]; has || len(f.Unhandled) < kinds {
		f.Unhandled[kind] += n
	}
}

// Add adds the counts of another interval, or of another process. It leaves the description of
// the end of the interval.
func (f *Figures) Add(o *Figures) {
	for p := range gauges {
		f.n[p] += o.n[p]
	}
	for kind, n := range o.Unhandled {
		f.unhandled(kind, n)
	}
}

// Join adds the description of the end of the interval that another process has made: what it
// says about other databases or other questions.
func (f *Figures) Join(o *Figures) {
	f.n[Due] += o.n[Due]
	for _, p := range []Place{DueMore, DueSince} {
		f.n[p] = max(f.n[p], o.n[p])
	}
	if o.n[Asked] > f.n[Asked] {
		copy(f.n[Asked:], o.n[Asked:])
	}
}

// busy orders tenants by what a process has to say about them.
func (f *Figures) busy() (n int64) {
	for p := range Lateness {
		n += f.n[p]
	}
	return n + f.n[Due] + f.n[Lag]
}

// ByType returns the place of a type.
func (p Place) ByType(t task.Type) Place {
	if t < 0 || t > 3 {
		t = 0
	}
	return p + Place(t)
}

// version begins the stored form of figures.
const version = 1

var errFigures = errors.New("figures: not in a form that this program can read")

// Encode returns the stored form: the version; for each number that is not 0 the distance from
// the place of the previous one and the number, as uvarints, and a distance of 0 at the end; then
// for each kind without a handler the length of its name, the name and the count.
func (f *Figures) Encode() []byte {
	out, last := []byte{version}, Place(-1)
	for p, n := range f.n {
		if n > 0 {
			out = binary.AppendUvarint(out, uint64(Place(p)-last))
			out = binary.AppendUvarint(out, uint64(n))
			last = Place(p)
		}
	}
	out = append(out, 0)
	for kind, n := range f.Unhandled {
		out = binary.AppendUvarint(out, uint64(len(kind)))
		out = append(out, kind...)
		out = binary.AppendUvarint(out, uint64(n))
	}
	return out
}

// Decode reads the stored form. It passes over places that a newer program has added.
func Decode(data []byte) (*Figures, error) {
	if len(data) == 0 || data[0] != version {
		return nil, errFigures
	}
	r, f := reader{data[1:]}, &Figures{}
	for p := Place(-1); ; {
		gap, ok := r.number()
		if ok && gap == 0 {
			break
		}
		n, ok := r.number()
		if !ok || gap > math.MaxInt16 {
			return nil, errFigures
		}
		if p += Place(gap); p < size {
			f.n[p] = n
		}
	}
	for len(r.rest) > 0 {
		length, _ := r.number()
		if length > int64(len(r.rest)) {
			return nil, errFigures
		}
		kind := string(r.rest[:length])
		r.rest = r.rest[length:]
		n, ok := r.number()
		if !ok {
			return nil, errFigures
		}
		f.unhandled(kind, n)
	}
	return f, nil
}

// reader reads uvarints.
type reader struct{ rest []byte }

func (r *reader) number() (n int64, ok bool) {
	v, length := binary.Uvarint(r.rest)
	if length <= 0 || v > math.MaxInt64 {
		r.rest = nil
		return 0, false
	}
	r.rest = r.rest[length:]
	return int64(v), true
}
