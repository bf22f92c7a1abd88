package transfer

import (
	"context"
	"errors"
	"io"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// sampleLines is how many lines of a file are read to estimate the rest.
const sampleLines = 50_000

// Plan is what can be said of files before they are imported.
type Plan struct {
	// Files and Bytes are their number and size on disk.
	Files int
	Bytes int64
	// Lines is the number of lines. Exact: they were counted, and not estimated.
	Lines int64
	Exact bool
	// WireBytes is how many bytes a line has in a chunk, compressed.
	WireBytes float64
	// ParamsBytes is how many bytes the params of a line have.
	ParamsBytes float64
	// Keys says that lines have an idempotency_key.
	Keys bool
	// Faults are lines among the sampled ones that cannot be read.
	Faults int
	// First is the first line as a task, or nil.
	First *perceptorv1.Task
}

// NewPlan reads the first lines of the first file, and estimates the others by them. Its error is one that the import
// would have, too.
func NewPlan(ctx context.Context, files []File, o Options) (*Plan, error) {
	p := &Plan{Files: len(files)}
	for _, f := range files {
		p.Bytes += f.Size
	}
	if len(files) == 0 {
		return p, nil
	}
	var read int64
	o.Progress = func(n int64) { read += n }
	s := Open(files[:1], o)
	t, err := p.sample(ctx, s)
	if err := errors.Join(err, s.Close()); err != nil {
		return nil, err
	}
	rows, err := parquetRows(files, o.Format)
	switch {
	case err != nil:
		return nil, err
	case rows > 0:
		p.Lines, p.Exact = rows, true
	case t.ended && len(files) == 1:
		p.Lines, p.Exact = t.lines, true
	case t.ended:
		p.Lines = t.lines * p.Bytes / max(1, files[0].Size)
	default:
		p.Lines = t.lines * p.Bytes / max(1, t.size(read))
	}
	return p, nil
}

// sampled are the first lines of a file.
type sampled struct {
	lines, text int64
	ended       bool
}

// size returns the bytes on disk of the sampled lines: those of their text if the file is not compressed, otherwise
// those that were read, of which a buffer may hold some more.
func (t *sampled) size(read int64) int64 {
	if t.text > 0 && t.text < read {
		return t.text
	}
	return read
}

// sample reads the first lines of a source.
func (p *Plan) sample(ctx context.Context, s Source) (t sampled, err error) {
	b, err := NewBuilder(sampleLines)
	if err != nil {
		return t, err
	}
	var l Line
	for !b.Full() && t.lines < 2*sampleLines {
		err := s.Next(ctx, &l)
		if errors.Is(err, io.EOF) {
			t.ended = true
			break
		}
		t.lines++
		t.text += int64(l.Size)
		if err == nil {
			err = b.Add(s, &l)
		}
		var f *Fault
		switch {
		case err == nil:
			p.Keys = p.Keys || len(l.Key) > 0
			p.ParamsBytes += float64(len(l.Params))
		case errors.As(err, &f):
			p.Faults++
		default:
			return t, err
		}
	}
	if b.Len() == 0 {
		return t, nil
	}
	c, err := b.Take()
	if err != nil {
		return t, err
	}
	p.WireBytes, p.ParamsBytes = float64(len(c.Wire))/float64(c.Lines), p.ParamsBytes/float64(c.Lines)
	x, err := c.Open()
	if err != nil {
		return t, err
	}
	p.First = x.Task(0)
	return t, nil
}

// bytesBeside is what a waiting task takes on disk beside its own data: its share of headers, and of the locator. A
// key takes bytesOfKey more: it is a row, and has an entry in each of two indexes.
const bytesBeside, bytesOfKey = 20, 220

// DiskBytes returns how many bytes the lines will take on the servers, about.
func (p *Plan) DiskBytes() int64 {
	line := bytesBeside + p.WireBytes
	if p.Keys {
		line += bytesOfKey
	}
	return int64(float64(p.Lines) * line)
}
