package migrate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Item is one schedule of another scheduler.
type Item struct {
	// Name is its name there.
	Name string
	// Task is the task that stands for it, in the form of AddTask. nil: none does, and Reason says why.
	Task   *perceptorv1.Task
	Reason string
	// Next is the instant of its next run, Last that of its last run, and Runs the number of its runs. 0: none, or
	// not known.
	Next, Last task.Instant
	Runs       int64
	Paused     bool
	// Notes say what Perceptor does differently, for people.
	Notes []string
}

// Anchor returns the origin of the grid on which an interval goes on, which is the last run. 0: the task has no
// interval, or has not run.
func (i *Item) Anchor() task.Instant {
	if i.Runs == 0 || i.Task.GetInterval() == nil {
		return 0
	}
	return i.Last
}

func (i *Item) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(i.Notes, text) {
		i.Notes = append(i.Notes, text)
	}
}

// without returns the item of a schedule for which no task stands.
func without(name, format string, args ...any) *Item {
	return &Item{Name: name, Reason: fmt.Sprintf(format, args...)}
}

// keyOf returns the idempotency_key of a name: the name itself if it can be one, otherwise a digest of it.
func keyOf(scheduler, name string) string {
	key := scheduler + ":" + name
	if len(key) <= task.MaxKeyBytes && !strings.ContainsFunc(key, func(r rune) bool { return r < '!' || r > '~' }) {
		return key
	}
	sum := sha256.Sum256([]byte(name))
	return scheduler + ":sha256:" + hex.EncodeToString(sum[:])
}

// kindFault says why a name cannot be a kind; "" if it can.
func kindFault(kind string) string {
	if fault := task.NameFault(kind, task.MaxKindBytes); fault != "" {
		return fmt.Sprintf("the name %q cannot be a kind: %s", kind, fault)
	}
	return ""
}

func instant(ms int64) *timestamppb.Timestamp { return timestamppb.New(time.UnixMilli(ms).UTC()) }

// zoneFault says why a time zone of Java is none of the IANA; "" if it is.
func zoneFault(zone string) string {
	if _, err := time.LoadLocation(zone); err != nil || zone == "" || zone == "Local" {
		return fmt.Sprintf("the time zone %q is not an IANA name", zone)
	}
	return ""
}
