package recordset

import (
	"bytes"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/perceptor/perceptor/record"
)

func TestBatchIsReadByTheLibrary(t *testing.T) {
	for _, codec := range []compress.Codec{nil, compress.Gzip.Codec(), compress.Snappy.Codec(), compress.Lz4.Codec(), compress.Zstd.Codec()} {
		for _, n := range []int{1, 2, 63, 64, 65, 300} {
			set, size := New(0), 0
			for i := range n {
				value := bytes.Repeat([]byte{byte(i)}, i)
				headers := []record.Header{{Key: "h", Value: []byte("x")}, {Key: "empty"}}
				before := len(set)
				set = Append(set, i, []byte("key"), value, headers)
				size = RecordSize(i, []byte("key"), value, headers)
				if got := len(set) - before; got != size+varintSize(int64(size)) {
					t.Fatalf("record %d takes %d bytes, want RecordSize %d and its prefix", i, got, size)
				}
			}
			set, err := Seal(set, n, 1_700_000_000_123, codec)
			if err != nil {
				t.Fatal(err)
			}
			checkBatch(t, set, n)
		}
	}
}

func checkBatch(t *testing.T, set []byte, n int) {
	t.Helper()
	var rs protocol.RecordSet
	if _, err := rs.ReadFrom(bytes.NewReader(set)); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r, err := rs.Records.ReadRecord()
		if err != nil {
			t.Fatalf("record %d of %d: %v", i, n, err)
		}
		key, _ := protocol.ReadAll(r.Key)
		value, _ := protocol.ReadAll(r.Value)
		if string(key) != "key" || !bytes.Equal(value, bytes.Repeat([]byte{byte(i)}, i)) || len(r.Headers) != 2 ||
			r.Offset != int64(i) || r.Time.UnixMilli() != 1_700_000_000_123 {
			t.Fatalf("record %d has key %q, %d value bytes, headers %v, offset %d, time %s", i, key, len(value), r.Headers, r.Offset, r.Time)
		}
	}
}
