package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/perceptor/perceptor/task"
)

// StandardOutput is the path of [NewLines] that stands for standard output.
const StandardOutput = "-"

// Lines is the sink that appends each event to a file as one line of JSON. When the file was
// renamed or removed, as programs that rotate logs do, it makes a new one.
type Lines struct {
	path string
	out  *os.File // for StandardOutput
	file *os.File
	// writing gets the result of the write that has begun, nil if there is none. While it
	// runs, it owns file.
	writing chan error
}

// NewLines returns a sink for the file at path, or for standard output. It opens nothing.
func NewLines(path string) *Lines { return &Lines{path: path, out: os.Stdout} }

// CheckFile opens the file at path, or makes it, so that a file that cannot be written is known before the first
// event. It leaves standard output, pipes and devices alone, whose other end may not be there yet.
func CheckFile(path string) error {
	if is, err := os.Stat(path); path == StandardOutput || err == nil && !is.Mode().IsRegular() && !is.IsDir() {
		return nil
	}
	l := NewLines(path)
	return errors.Join(l.open(), l.Close())
}

// Name implements [Sink].
func (l *Lines) Name() string { return "lines" }

// line is an event as a line of JSON. The names are those of the API.
type line struct {
	EventTime string             `json:"event_time"`
	ID        int64              `json:"id,string"`
	Tenant    string             `json:"tenant,omitempty"`
	Actor     string             `json:"actor,omitempty"`
	Operator  bool               `json:"operator,omitempty"`
	Source    string             `json:"source,omitempty"`
	Action    string             `json:"action"`
	Object    string             `json:"object,omitempty"`
	Result    string             `json:"result"`
	RequestID string             `json:"request_id,omitempty"`
	Changes   []task.AuditChange `json:"changes,omitempty"`
}

// Write implements [Sink]. The events of one call are written at once, so that the lines of
// several processes do not mix. A write to a pipe that nobody reads, or to a disk that hangs,
// cannot be interrupted: Write returns when ctx ends, and the next call, which has the same
// events, waits for that write and returns its result.
func (l *Lines) Write(ctx context.Context, events []task.AuditEvent) error {
	if l.writing == nil {
		text, err := linesOf(events)
		if err != nil {
			return err
		}
		done := make(chan error, 1)
		l.writing = done
		go func() { done <- l.append(text) }()
	}
	select {
	case err := <-l.writing:
		l.writing = nil
		return err
	case <-ctx.Done():
		return fmt.Errorf("audit.file: a write has not ended: %w", ctx.Err())
	}
}

func linesOf(events []task.AuditEvent) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	for _, v := range events {
		err := e.Encode(line{
			EventTime: v.At.String(), ID: v.ID, Tenant: v.TenantName, Actor: v.Actor, Operator: v.Operator, Source: v.Source,
			Action: v.Action, Object: v.Object, Result: v.Result, RequestID: v.RequestID, Changes: v.Changes,
		})
		if err != nil {
			return nil, fmt.Errorf("encode audit event: %w", err)
		}
	}
	return text.Bytes(), nil
}

func (l *Lines) append(text []byte) error {
	if err := l.open(); err != nil {
		return err
	}
	_, err := l.file.Write(text)
	return err
}

// open makes file the one at the path.
func (l *Lines) open() error {
	if l.path == StandardOutput {
		l.file = l.out
		return nil
	}
	if l.file != nil {
		is, err := os.Stat(l.path)
		was, _ := l.file.Stat()
		if err == nil && os.SameFile(is, was) {
			return nil
		}
		_ = l.file.Close() // its lines are written
		l.file = nil
	}
	file, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	l.file = file
	return nil
}

// Close closes the file, unless a write hangs. Later calls of Write open it again.
func (l *Lines) Close() error {
	if l.writing != nil || l.file == nil || l.path == StandardOutput {
		return nil
	}
	file := l.file
	l.file = nil
	return file.Close()
}
