package pack

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The first byte of a blob, which says what the blob holds.
const (
	keysMagic   = 'K'
	paramsMagic = 'P'
)

const (
	version    = 1
	compressed = 1 << 0 // flag: the content is a zstd frame, after its length

	headerBytes = 7   // magic, version, flags, CRC-32C of everything else
	smallBytes  = 512 // content below this is not compressed

	// The most bytes of content. They bound the memory that a decoder allocates.
	maxKeysBytes   = 2 << 20
	maxParamsBytes = MaxParams + 1<<20
)

func maxContent(magic byte) int {
	if magic == keysMagic {
		return maxKeysBytes
	}
	return maxParamsBytes
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(blob []byte) uint32 {
	return crc32.Update(crc32.Checksum(blob[:3], castagnoli), castagnoli, blob[headerBytes:])
}

// The encoders and the decoder are safe for concurrent use; they are made when
// they are first needed.
var (
	fastEncoder   = sync.OnceValue(func() *zstd.Encoder { return newEncoder(zstd.SpeedFastest) })
	normalEncoder = sync.OnceValue(func() *zstd.Encoder { return newEncoder(zstd.SpeedDefault) })
	decoder       = sync.OnceValue(newDecoder)
)

func newEncoder(level zstd.EncoderLevel) *zstd.Encoder {
	// The checksum is ours; a window of a megabyte sees nearly every pack whole.
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(1<<20), zstd.WithSingleSegment(false))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
}

func newDecoder() *zstd.Decoder {
	// WithDecodeAllCapLimit: nothing is written behind the room that was given.
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(maxParamsBytes), zstd.WithDecoderMaxWindow(1<<25))
	if err != nil {
		panic(err)
	}
	return d
}

// seal makes a blob of content.
func seal(magic byte, content []byte, fast bool) ([]byte, error) {
	if len(content) > maxContent(magic) {
		return nil, fmt.Errorf("pack: the content has %d bytes; at most %d are allowed", len(content), maxContent(magic))
	}
	var blob []byte
	if len(content) < smallBytes {
		blob = append(make([]byte, headerBytes, headerBytes+len(content)), content...)
	} else {
		blob = make([]byte, headerBytes, headerBytes+len(content)/2+64)
		blob[2] = compressed
		blob = binary.AppendUvarint(blob, uint64(len(content)))
		e := normalEncoder()
		if fast {
			e = fastEncoder()
		}
		blob = e.EncodeAll(content, blob)
	}
	blob[0], blob[1] = magic, version
	binary.LittleEndian.PutUint32(blob[3:], checksum(blob))
	return blob, nil
}

// open returns the content of a blob. The result may share memory with the blob, or with
// room, which is used if it is large enough.
func open(magic byte, blob, room []byte) ([]byte, error) {
	switch {
	case len(blob) < headerBytes:
		return nil, damaged("has %d bytes; a header has %d", len(blob), headerBytes)
	case blob[0] != magic:
		return nil, damaged("begins with %#x instead of %q", blob[0], magic)
	case blob[1] > version:
		return nil, fmt.Errorf("%w: the blob is of version %d; this program knows version %d", ErrNewer, blob[1], version)
	case blob[1] != version:
		return nil, damaged("is of version %d; this program knows version %d", blob[1], version)
	case blob[2]&^compressed != 0:
		return nil, damaged("has flags %#x; this program knows %#x", blob[2], compressed)
	case len(blob) > maxContent(magic)+1<<16:
		return nil, damaged("has %d bytes; no content is longer than %d", len(blob), maxContent(magic))
	}
	if stored, is := binary.LittleEndian.Uint32(blob[3:]), checksum(blob); stored != is {
		return nil, damaged("has the checksum %08x instead of %08x", is, stored)
	}
	body := blob[headerBytes:]
	if blob[2]&compressed == 0 {
		return body, nil
	}
	return inflate(magic, body, room)
}

func inflate(magic byte, body, room []byte) ([]byte, error) {
	n, used := binary.Uvarint(body)
	if used <= 0 || n > uint64(maxContent(magic)) {
		return nil, damaged("says that its content has %d bytes; at most %d are allowed", n, maxContent(magic))
	}
	if uint64(cap(room)) < n {
		room = make([]byte, 0, n)
	}
	content, err := decoder().DecodeAll(body[used:], room[:0:n])
	if err != nil {
		return nil, damaged("cannot be decompressed: %v", err)
	}
	if uint64(len(content)) != n {
		return nil, damaged("has %d bytes of content instead of %d", len(content), n)
	}
	return content, nil
}

// recovered makes a panic of a reader an error: one pack must not end every process that
// reads it. It must be deferred.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = damaged("makes its reader panic: %v", p)
	}
}

// damaged returns an error that matches ErrDamaged.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: the blob "+format, append([]any{ErrDamaged}, args...)...)
}
