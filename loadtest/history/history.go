// Package history stores the records of a load run's processes on disk until they are
// checked.
//
// Every process writes one file per part, and the part follows from the task's id. A record
// has some 20 bytes: a tag and variable-length integers, with times as differences from
// each other. [Check] reads part after part, so a run of any length is checked in the
// memory of a 64th of it. Adds that were not acknowledged have no id. They are in a part of
// their own, which is kept in memory.
package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

const (
	parts       = 64
	unanswered  = parts // the part of adds without an id
	bufferBytes = 32 << 10
	recordBytes = 512 // bound on most records; a longer one makes the buffer grow
)

// The first byte of a record is its type.
const (
	tagAdd byte = iota + 1
	tagExecution
	tagReply
	tagFinal
	tagOp
)

// Writer writes the records of one process. Its methods may be called concurrently. It
// keeps the first error, which Close returns.
type Writer struct {
	parts [parts + 1]part
}

// Through makes w write each record to the file at once, so that at most one record is lost
// if the process is killed. It must be called before the first record.
func (w *Writer) Through() {
	for i := range w.parts {
		w.parts[i].through = true
	}
}

type part struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
	err  error
	// through says that no record stays in the buffer.
	through bool
}

// Create returns a writer for files in dir. name must be unique for the process.
func Create(dir, name string) (*Writer, error) {
	w := &Writer{}
	for i := range w.parts {
		file, err := os.OpenFile(filepath.Join(dir, partName(i, name)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			w.Close() //nolint:errcheck // no records to lose
			return nil, fmt.Errorf("create history: %w", err)
		}
		w.parts[i].file, w.parts[i].buf = file, make([]byte, 0, bufferBytes+recordBytes)
	}
	return w, nil
}

func partName(i int, name string) string { return fmt.Sprintf("%02d.%s", i, name) }

// Close writes the buffered records and returns the first error of w.
func (w *Writer) Close() error {
	var errs []error
	for i := range w.parts {
		p := &w.parts[i]
		if p.file == nil {
			continue
		}
		p.flush()
		errs = append(errs, p.err, p.file.Close())
	}
	return errors.Join(errs...)
}

// of returns the part of a task, locked.
func (w *Writer) of(id task.ID) *part {
	i := unanswered
	if id != 0 {
		i = int(uint64(id/task.Shards)+uint64(id%task.Shards)) % parts
	}
	p := &w.parts[i]
	p.mu.Lock()
	return p
}

// put stores the buffer with a further record and unlocks the part.
func (p *part) put(buf []byte) {
	if p.buf = buf; len(buf) >= bufferBytes || p.through {
		p.flush()
	}
	p.mu.Unlock()
}

func (p *part) flush() {
	if _, err := p.file.Write(p.buf); err != nil && p.err == nil {
		p.err = fmt.Errorf("write history: %w", err)
	}
	p.buf = p.buf[:0]
}

// epoch is the origin of absolute times in microseconds: the begin of 2026.
const epoch check.Micros = 1_767_225_600_000_000

// errTorn means that a record ends in the middle.
var errTorn = errors.New("torn record")

// put appends an integer. Integers near 0 take few bytes.
func put[T ~int64 | ~int32 | ~int16 | ~int](b []byte, v T) []byte {
	return binary.AppendVarint(b, int64(v))
}

// putInstant appends an instant. Never takes one byte.
func putInstant(b []byte, i task.Instant) []byte {
	if i == task.Never {
		return put(b, int64(0))
	}
	v := int64(i) - int64(epoch)/1000
	if v >= 0 {
		v++ // 0 stands for Never
	}
	return put(b, v)
}

// record begins a record in the buffer of the part, which must be locked.
func (p *part) record(fields ...byte) []byte {
	b := p.buf
	return append(b, fields...)
}

// Add records the outcome of an add.
func (w *Writer) Add(a check.Add) {
	p := w.of(a.ID)
	b := p.record(tagAdd, byte(a.Answer), byte(a.Type), flag(a.Retained)|flag(a.Terms != nil)<<1|flag(a.Key)<<2|flag(a.Now)<<3)
	b = putInstant(putInstant(put(put(b, a.Number), a.ID), a.Begin), a.End)
	b = put(put(put(b, a.Interval), a.MaxCount), a.Sent-epoch)
	b = put(put(b, a.Answered-a.Sent), a.MaxAttempts)
	if t := a.Terms; t != nil {
		b = putText(putText(b, t.Cron), t.Zone)
		b = put(put(put(put(b, int64(t.Misfire)), t.Grace), t.Limit), t.Spread)
	}
	p.put(b)
}

// putText appends a text with its length before it.
func putText(b []byte, text string) []byte { return append(put(b, len(text)), text...) }

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// Execution records a call of a handler.
func (w *Writer) Execution(e check.Execution) {
	p := w.of(e.ID)
	b := p.record(tagExecution, byte(e.Outcome), flag(e.Permanent)|flag(e.Unfinished)<<1)
	b = putInstant(put(put(put(b, e.Number), e.ID), e.Seq), e.ScheduledAt)
	b = put(put(put(b, e.Missed), e.Start-1000*check.Micros(e.ScheduledAt)), e.End-e.Start)
	b = put(put(b, e.Attempt), int64(e.Listener))
	p.put(put(put(put(b, e.After), e.Version), e.Mark))
}

// Reply records an answer to a start or a report.
func (w *Writer) Reply(r check.Reply) {
	p := w.of(r.ID)
	b := p.record(tagReply, byte(r.Call), byte(r.Code))
	b = put(put(put(b, r.ID), r.Seq), r.Answered-epoch)
	p.put(put(put(b, r.Attempt), int64(r.Listener)))
}

// Final records the state of a task that the API shows at the end.
func (w *Writer) Final(f check.Final) {
	p := w.of(f.ID)
	b := p.record(tagFinal, byte(f.Type), byte(f.State))
	b = putInstant(putInstant(put(put(b, f.ID), f.Number), f.Begin), f.End)
	b = put(put(put(put(b, f.Interval), f.MaxCount), f.Runs), f.Missed)
	p.put(put(put(put(b, f.Open), f.Version), f.Mark))
}

// Op records a change that a caller asked for.
func (w *Writer) Op(o check.Op) {
	p := w.of(o.ID)
	b := p.record(tagOp, byte(o.Change), flag(o.Known))
	b = put(put(put(b, o.ID), o.Sent-epoch), o.Answered-o.Sent)
	b = put(put(put(b, o.Version), o.Mark), o.Interval)
	p.put(put(put(b, o.Seq), o.Request))
}

// reader reads fields of records. After an error it returns zeros.
type reader struct {
	left []byte
	err  error
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.left)
	if n <= 0 {
		r.left, r.err = nil, errTorn
		return 0
	}
	r.left = r.left[n:]
	return v
}

func (r *reader) byte() byte {
	if len(r.left) == 0 {
		r.err = errTorn
		return 0
	}
	v := r.left[0]
	r.left = r.left[1:]
	return v
}

func (r *reader) text() string {
	n := r.int()
	if n < 0 || n > int64(len(r.left)) {
		r.left, r.err = nil, errTorn
		return ""
	}
	text := string(r.left[:n])
	r.left = r.left[n:]
	return text
}

func (r *reader) instant() task.Instant {
	v := r.int()
	if v == 0 {
		return task.Never
	}
	if v > 0 {
		v--
	}
	return task.Instant(v + int64(epoch)/1000)
}

func (r *reader) micros() check.Micros { return check.Micros(r.int()) }

func (r *reader) add() (a check.Add) {
	a.Answer, a.Type = check.Answer(r.byte()), task.Type(r.byte())
	flags := r.byte()
	a.Retained, a.Key, a.Now = flags&1 != 0, flags&4 != 0, flags&8 != 0
	a.Number, a.ID, a.Begin, a.End = r.int(), task.ID(r.int()), r.instant(), r.instant()
	a.Interval, a.MaxCount, a.Sent = time.Duration(r.int()), r.int(), r.micros()+epoch
	a.Answered, a.MaxAttempts = a.Sent+r.micros(), int32(r.int())
	if flags&2 != 0 {
		a.Terms = &check.Terms{
			Cron: r.text(), Zone: r.text(), Misfire: task.Misfire(r.int()), Grace: time.Duration(r.int()),
			Limit: int32(r.int()), Spread: time.Duration(r.int()),
		}
	}
	return a
}

func (r *reader) execution() (e check.Execution) {
	e.Outcome = task.Outcome(r.byte())
	flags := r.byte()
	e.Permanent, e.Unfinished = flags&1 != 0, flags&2 != 0
	e.Number, e.ID, e.Seq, e.ScheduledAt = r.int(), task.ID(r.int()), r.int(), r.instant()
	e.Missed, e.Start = r.int(), r.micros()+1000*check.Micros(e.ScheduledAt)
	e.End = e.Start + r.micros()
	e.Attempt, e.Listener = int32(r.int()), uint16(r.int())
	e.After, e.Version, e.Mark = time.Duration(r.int()), int32(r.int()), r.int()
	return e
}

func (r *reader) reply() (p check.Reply) {
	p.Call, p.Code = check.Call(r.byte()), task.Code(r.byte())
	p.ID, p.Seq, p.Answered = task.ID(r.int()), r.int(), r.micros()+epoch
	p.Attempt, p.Listener = int32(r.int()), uint16(r.int())
	return p
}

func (r *reader) final() (f check.Final) {
	f.Type, f.State = task.Type(r.byte()), task.State(r.byte())
	f.ID, f.Number, f.Begin, f.End = task.ID(r.int()), r.int(), r.instant(), r.instant()
	f.Interval, f.MaxCount, f.Runs, f.Missed = time.Duration(r.int()), r.int(), r.int(), r.int()
	f.Open, f.Version, f.Mark = int32(r.int()), int32(r.int()), r.int()
	return f
}

func (r *reader) op() (o check.Op) {
	o.Change, o.Known = check.Change(r.byte()), r.byte() != 0
	o.ID, o.Sent = task.ID(r.int()), r.micros()+epoch
	o.Answered = o.Sent + r.micros()
	o.Version, o.Mark, o.Interval = int32(r.int()), r.int(), time.Duration(r.int())
	o.Seq, o.Request = r.int(), r.int()
	return o
}

// Sink receives the tasks of a history, such as a [check.Checker].
type Sink interface{ Task(check.Task) }

// Check passes every task of the history in dir to c. All writers must have been closed. A
// record that ends in the middle is an error, except at the end of a file of one of the
// killed writers.
func Check(dir string, c Sink, killed ...string) error {
	a := assembly{dir: dir, killed: killed, checker: c, unanswered: map[int64]*check.Add{}}
	if err := a.load(unanswered); err != nil {
		return err
	}
	for i := range parts {
		if err := a.load(i); err != nil {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(a.tasks)) {
			a.check(a.tasks[id])
		}
	}
	for _, add := range a.unanswered {
		if add.ID == 0 {
			c.Task(check.Task{Add: add})
		}
	}
	return nil
}

// assembly combines the records of tasks, part by part.
type assembly struct {
	dir     string
	killed  []string // names of writers whose last record may be torn
	checker Sink
	// unanswered are the adds without an id, by number.
	unanswered map[int64]*check.Add
	// tasks are the tasks of the current part, by id.
	tasks map[task.ID]*check.Task
}

func (a *assembly) load(part int) error {
	a.tasks = map[task.ID]*check.Task{}
	paths, err := filepath.Glob(filepath.Join(a.dir, partName(part, "*")))
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	for _, path := range paths {
		err := a.loadFile(path)
		if _, name, _ := strings.Cut(filepath.Base(path), "."); errors.Is(err, errTorn) && slices.Contains(a.killed, name) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("read history %s: %w", path, err)
		}
	}
	return nil
}

func (a *assembly) loadFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for r := (reader{left: text}); len(r.left) > 0; {
		switch tag := r.byte(); tag {
		case tagAdd:
			if v := r.add(); r.err == nil {
				a.add(&v)
			}
		case tagExecution:
			if v := r.execution(); r.err == nil {
				t := a.task(v.ID)
				t.Executions = append(t.Executions, v)
			}
		case tagReply:
			if v := r.reply(); r.err == nil {
				t := a.task(v.ID)
				t.Replies = append(t.Replies, v)
			}
		case tagFinal:
			if v := r.final(); r.err == nil {
				a.task(v.ID).Final = &v // the last record of a task is the newest
			}
		case tagOp:
			if v := r.op(); r.err == nil {
				t := a.task(v.ID)
				t.Ops = append(t.Ops, v)
			}
		default:
			return fmt.Errorf("unknown record %d", tag)
		}
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

// task returns the task with the given id. It creates the task if necessary.
func (a *assembly) task(id task.ID) *check.Task {
	t := a.tasks[id]
	if t == nil {
		t = &check.Task{ID: id}
		a.tasks[id] = t
	}
	return t
}

// add stores an add. If several adds were answered with the same id, it keeps the earliest.
func (a *assembly) add(add *check.Add) {
	if add.ID == 0 {
		a.unanswered[add.Number] = add
		return
	}
	if t := a.task(add.ID); t.Add == nil || add.Sent < t.Add.Sent {
		t.Add = add
	}
}

// check looks for the add of a task without one among the unacknowledged adds, each of
// which accounts for one task. Then it passes the task to the checker.
func (a *assembly) check(t *check.Task) {
	if t.Add == nil {
		if len(t.Executions) == 0 && t.Final == nil {
			return // a reply for a task of another load
		}
		if add := a.unanswered[number(t)]; add != nil && add.ID == 0 {
			add.ID = t.ID
			t.Add = add
		}
	}
	a.checker.Task(*t)
}

// number returns the number in the params of a task.
func number(t *check.Task) int64 {
	if len(t.Executions) > 0 {
		return t.Executions[0].Number
	}
	return t.Final.Number
}
