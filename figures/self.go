package figures

import (
	"encoding/json"

	"github.com/perceptor/perceptor/task"
)

// The kinds of processes.
const (
	Dispatcher = "dispatcher"
	Taskd      = "taskd"
)

// Self is what a process says about itself each interval.
type Self struct {
	Kind    string       `json:"kind"`
	Name    string       `json:"name"`
	Host    string       `json:"host"`
	Version string       `json:"version"`
	Started task.Instant `json:"started"`
	// Of a dispatcher: how many shards and which chores it owns, the records in its memory,
	// whether it claims nothing, and the tenants whose topics fail, at most MaxBroken.
	Shards  int     `json:"shards,omitempty"`
	Chores  []int   `json:"chores,omitempty"`
	Records int     `json:"records,omitempty"`
	Stopped bool    `json:"stopped,omitempty"`
	Broken  []int32 `json:"broken,omitempty"`
}

// MaxBroken bounds Self.Broken.
const MaxBroken = 1000

// Encode returns the stored form.
func (s *Self) Encode() []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // numbers and strings
	}
	return text
}

// DecodeSelf reads the stored form.
func DecodeSelf(data []byte) (s Self, err error) { return s, json.Unmarshal(data, &s) }
