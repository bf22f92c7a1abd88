package main

import (
	"context"
	"io"
	"sync"
)

// endingReader reads until its context ends, too: a read from a terminal or a pipe that is silent cannot be
// interrupted. It reads nothing before its first Read, and it may then have read more than it has returned.
type endingReader struct {
	ctx   context.Context //nolint:containedctx // Read has none
	from  io.Reader
	begin sync.Once
	lines *io.PipeReader
}

// Read implements [io.Reader].
func (r *endingReader) Read(p []byte) (int, error) {
	r.begin.Do(func() {
		lines, into := io.Pipe()
		r.lines = lines
		context.AfterFunc(r.ctx, func() { _ = into.CloseWithError(r.ctx.Err()) }) // which never fails
		go func() {
			_, err := io.Copy(into, r.from)
			_ = into.CloseWithError(err)
		}()
	})
	return r.lines.Read(p)
}
