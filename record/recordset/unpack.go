package recordset

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
)

var errTooLarge = fmt.Errorf("it has more than %d bytes then", MaxUnpacked)

// unpack returns the records of a batch, or errTooLarge if they have more than most bytes.
func unpack(codec compress.Compression, packed []byte, most int64) ([]byte, error) {
	if codec == compress.Zstd {
		return unpackZstd(packed, most)
	}
	c := codec.Codec()
	if c == nil {
		return nil, fmt.Errorf("codec %d is not known", codec)
	}
	r := c.NewReader(bytes.NewReader(packed))
	defer r.Close() //nolint:errcheck // nothing is written
	return readMost(r, most)
}

// readMost reads all of r, or returns errTooLarge if that is more than most bytes.
func readMost(r io.Reader, most int64) ([]byte, error) {
	all, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(all)) > most {
		return nil, errTooLarge
	}
	return all, err
}

// zstdDecoders are decoders whose windows are bounded: a batch may ask for one of any size.
var zstdDecoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(MaxUnpacked))
	if err != nil {
		panic(err) // the options are wrong
	}
	return d
}}

func unpackZstd(packed []byte, most int64) ([]byte, error) {
	d := zstdDecoders.Get().(*zstd.Decoder)
	defer zstdDecoders.Put(d)
	if err := d.Reset(bytes.NewReader(packed)); err != nil {
		return nil, err
	}
	all, err := readMost(d, most)
	_ = d.Reset(nil) // packed is of no more use
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return nil, errTooLarge
	}
	return all, err
}
