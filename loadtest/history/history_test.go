package history

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// fill sets every field of a struct to a random value of its type.
func fill(v reflect.Value, rnd *rand.Rand) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(rnd.IntN(2) == 1)
		case reflect.Uint8:
			f.SetUint(rnd.Uint64N(math.MaxUint8))
		case reflect.Uint16:
			f.SetUint(rnd.Uint64N(math.MaxUint16))
		case reflect.Int16: // types, states, outcomes, codes: one byte each
			f.SetInt(rnd.Int64N(math.MaxInt8))
		case reflect.Int32:
			f.SetInt(int64(int32(rnd.Uint32())))
		case reflect.String:
			f.SetString(strconv.FormatUint(rnd.Uint64(), 36))
		case reflect.Pointer:
			if rnd.IntN(2) == 1 {
				f.Set(reflect.New(f.Type().Elem()))
				fill(f.Elem(), rnd)
			}
		default:
			f.SetInt(rnd.Int64N(math.MaxInt64))
		}
	}
}

func TestEveryFieldOfARecordComesBackFromDisk(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	want := map[task.ID][5]any{}
	for n := range 500 {
		var (
			a check.Add
			e check.Execution
			p check.Reply
			f check.Final
			o check.Op
		)
		id := task.ID(1000 + n)
		for _, v := range []any{&a, &e, &p, &f, &o} {
			fill(reflect.ValueOf(v).Elem(), rnd)
		}
		a.ID, e.ID, p.ID, f.ID, o.ID = id, id, id, id, id
		w.Add(a)
		w.Execution(e)
		w.Reply(p)
		w.Final(f)
		w.Op(o)
		want[id] = [5]any{a, e, p, f, o}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for i := range parts {
		a := assembly{dir: dir, unanswered: map[int64]*check.Add{}}
		if err := a.load(i); err != nil {
			t.Fatal(err)
		}
		for id, k := range a.tasks {
			seen++
			if len(k.Executions) != 1 || len(k.Replies) != 1 || len(k.Ops) != 1 {
				t.Fatalf("wrong task %d: %+v", id, k)
			}
			if got := [5]any{*k.Add, k.Executions[0], k.Replies[0], *k.Final, k.Ops[0]}; !reflect.DeepEqual(got, want[id]) {
				t.Fatalf("task = %+v, want %+v", got, want[id])
			}
		}
	}
	if seen != len(want) {
		t.Errorf("got %d tasks, want %d", seen, len(want))
	}
}

const begin = task.Instant(1_800_000_000_000)

// write records a one-shot task from two processes.
func write(adder, listener *Writer, number int64, id task.ID, answer check.Answer) {
	a := check.Add{Number: number, Answer: answer, Type: task.OneShot, Begin: begin, End: task.Never, MaxCount: 1}
	if answer == check.Acknowledged {
		a.ID = id
	}
	adder.Add(a)
	if id == 0 {
		return
	}
	start := check.Of(begin).Add(time.Millisecond)
	listener.Execution(check.Execution{Number: number, ID: id, Seq: 1, Attempt: 1, ScheduledAt: begin, Start: start, End: start, Outcome: task.Success})
	listener.Reply(check.Reply{ID: id, Seq: 1, Attempt: 1, Call: check.Report, Code: task.Accepted, Answered: start})
	adder.Final(check.Final{ID: id, Number: number, Type: task.OneShot, State: task.Running, Begin: begin, End: task.Never, MaxCount: 1, Runs: 1, Open: 1})
	adder.Final(check.Final{ID: id, Number: number, Type: task.OneShot, State: task.Completed, Begin: begin, End: task.Never, MaxCount: 1, Runs: 1})
}

func checked(t *testing.T, records func(adder, listener *Writer)) check.Result {
	t.Helper()
	dir := t.TempDir()
	adder, err := Create(dir, "loadtest")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := Create(dir, "listener")
	if err != nil {
		t.Fatal(err)
	}
	records(adder, listener)
	if err := adder.Close(); err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	c := check.New(check.Config{Quiet: check.Of(begin + 1000), Finals: true, Replies: true})
	if err := Check(dir, c); err != nil {
		t.Fatal(err)
	}
	return c.Result()
}

func TestRecordsOfSeveralProcessesMeetInTheirTask(t *testing.T) {
	r := checked(t, func(adder, listener *Writer) {
		for n := range int64(2000) {
			write(adder, listener, n, task.ID(512*n+512+n%512), check.Acknowledged)
		}
	})
	if r.Total() != 0 || r.Figures.Tasks != 2000 || r.Figures.Runs != 2000 {
		t.Errorf("got %d tasks, %d runs, violations %v", r.Figures.Tasks, r.Figures.Runs, r.Examples)
	}
}

func TestATaskOfAnUnansweredAddIsFoundByItsNumber(t *testing.T) {
	r := checked(t, func(adder, listener *Writer) {
		write(adder, listener, 1, 513, check.NotKnown)
		write(adder, listener, 2, 0, check.NotKnown)
		write(adder, listener, 3, 0, check.Refused)
	})
	if r.Total() != 0 || r.Figures.NotKnown != 2 || r.Figures.Refused != 1 || r.Figures.Runs != 1 {
		t.Errorf("figures = %+v, violations %v", r.Figures, r.Examples)
	}
}

func TestAnAddThatStoredTwiceIsFound(t *testing.T) {
	r := checked(t, func(adder, listener *Writer) {
		write(adder, listener, 1, 513, check.NotKnown)
		write(adder, listener, 1, 1025, check.NotKnown)
	})
	if r.Violations[check.Phantom] != 1 {
		t.Errorf("found %v, want one violation of kind phantom", r.Examples)
	}
}

func TestARefusedTaskThatFiresIsFound(t *testing.T) {
	r := checked(t, func(adder, listener *Writer) { write(adder, listener, 1, 513, check.Refused) })
	if r.Violations[check.Phantom] != 1 {
		t.Errorf("found %v, want one violation of kind phantom", r.Examples)
	}
}

func TestADamagedHistoryIsAnError(t *testing.T) {
	for name, content := range map[string][]byte{"torn": {tagAdd, 1, 2, 3}, "unknown": {99}} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, partName(7, "x")), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Check(dir, check.New(check.Config{})); err == nil {
			t.Errorf("%s record: Check returned no error", name)
		}
	}
}

func TestWhatAKilledProcessHasSeenIsThereButForItsLastRecord(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, "killed")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // the test reads the files before
	w.Through()
	write(w, w, 1, 513, check.Acknowledged)
	locked := w.of(513)
	locked.mu.Unlock()
	torn, err := os.OpenFile(locked.file.Name(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := torn.Write([]byte{tagExecution, 1, 0, 2}); err != nil {
		t.Fatal(err)
	}
	if err := torn.Close(); err != nil {
		t.Fatal(err)
	}
	c := check.New(check.Config{Quiet: check.Of(begin + 1000), Finals: true, Replies: true})
	if err := Check(dir, c, "killed"); err != nil {
		t.Fatal(err)
	}
	if r := c.Result(); r.Total() != 0 || r.Figures.Runs != 1 {
		t.Errorf("got %d runs, violations %v", r.Figures.Runs, r.Examples)
	}
	if err := Check(dir, check.New(check.Config{}), "other"); err == nil {
		t.Error("Check returned no error for a torn record of a process that was not killed")
	}
}
