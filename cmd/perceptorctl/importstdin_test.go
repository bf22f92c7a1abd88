package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAnImportOfSilentInputEndsWithItsContext(t *testing.T) {
	silent, writer := io.Pipe()
	defer writer.Close() //nolint:errcheck // a pipe in memory
	ctx, cancel := context.WithCancel(t.Context())
	r := &endingReader{ctx: ctx, from: silent}
	go func() {
		_, _ = writer.Write([]byte("a line\n"))
		cancel()
	}()
	got, err := io.ReadAll(r)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("read %q, %v; want the end of the context", got, err)
	}
}

func TestAReaderThatMayEndReadsEverything(t *testing.T) {
	want := strings.Repeat("0123456789", 100_000)
	got, err := io.ReadAll(&endingReader{ctx: t.Context(), from: strings.NewReader(want)})
	if err != nil || string(got) != want {
		t.Errorf("read %d bytes, %v; want %d", len(got), err, len(want))
	}
}
