package recordset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/perceptor/perceptor/record"
)

// recordSet returns a batch with records from an offset on.
func recordSet(tb testing.TB, first int64, attributes protocol.Attributes, values ...string) []byte {
	tb.Helper()
	var records []protocol.Record
	for _, v := range values {
		records = append(records, protocol.Record{Value: protocol.NewBytes([]byte(v))})
	}
	return encodeSet(tb, first, attributes, records...)
}

func encodeSet(tb testing.TB, first int64, attributes protocol.Attributes, records ...protocol.Record) []byte {
	tb.Helper()
	var buf bytes.Buffer
	set := protocol.RecordSet{Version: 2, Attributes: attributes, Records: protocol.NewRecordReader(records...)}
	if _, err := set.WriteTo(&buf); err != nil {
		tb.Fatal(err)
	}
	b := buf.Bytes()[4:]
	binary.BigEndian.PutUint64(b, uint64(first))
	return b
}

// sum gives a batch the right checksum again.
func sum(batch []byte) []byte {
	binary.BigEndian.PutUint32(batch[crcAt:], crc32.Checksum(batch[crcFrom:], castagnoli))
	return batch
}

// TestRecordsAreReadAsTheLibraryReadsThem compares random record sets.
func TestRecordsAreReadAsTheLibraryReadsThem(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not a secret
	some := func() []byte {
		if r.IntN(4) == 0 {
			return nil
		}
		return bytes.Repeat([]byte{byte(r.IntN(256))}, r.IntN(300))
	}
	for _, codec := range []protocol.Attributes{0, protocol.Gzip, protocol.Snappy, protocol.Lz4, protocol.Zstd} {
		var set []byte
		offset := int64(1000)
		for range 20 {
			var records []protocol.Record
			for range 1 + r.IntN(5) {
				rec := protocol.Record{Key: protocol.NewBytes(some()), Value: protocol.NewBytes(some())}
				for range r.IntN(4) {
					rec.Headers = append(rec.Headers, protocol.Header{Key: []string{record.HeaderID, record.HeaderSignature, "other"}[r.IntN(3)], Value: some()})
				}
				records = append(records, rec)
			}
			set = append(set, encodeSet(t, offset, codec, records...)...)
			offset += int64(len(records))
		}
		left := int64(2 * MaxUnpacked)
		batches, next, err := Read(set, 0, &left)
		if err != nil || next != offset {
			t.Fatalf("codec %d: the next offset is %d, %v; want %d", codec, next, err, offset)
		}
		const from = 1007
		var got []Record
		for _, b := range batches {
			for m, err := range b.Records(from) {
				if err != nil {
					t.Fatal(err)
				}
				m.Headers = append([]record.Header(nil), m.Headers...)
				got = append(got, m)
			}
		}
		if diff := cmp.Diff(byLibrary(t, set, from), got, emptyIsNil); diff != "" {
			t.Errorf("codec %d (-library +own)\n%s", codec, diff)
		}
	}
}

// emptyIsNil takes values without bytes for equal.
var emptyIsNil = cmp.Transformer("text", func(b []byte) string { return string(b) })

// byLibrary reads a record set by Kafka's library.
func byLibrary(tb testing.TB, set []byte, from int64) (all []Record) {
	tb.Helper()
	var read protocol.RecordSet
	if _, err := read.ReadFrom(bytes.NewBuffer(append(binary.BigEndian.AppendUint32(nil, uint32(len(set))), set...))); err != nil {
		tb.Fatal(err)
	}
	for {
		r, err := read.Records.ReadRecord()
		if err != nil {
			return all
		}
		value, err := protocol.ReadAll(r.Value)
		if err != nil {
			tb.Fatal(err)
		}
		m := Record{Offset: r.Offset, Value: value}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, record.Header(h))
		}
		if r.Offset >= from {
			all = append(all, m)
		}
	}
}

// TestBatchesThatAreNotAsTheServiceMakesThem are read around, or read again.
func TestBatchesThatAreNotAsTheServiceMakesThem(t *testing.T) {
	change := func(set []byte, f func([]byte)) []byte { f(set); return set }
	whole := func() []byte { return recordSet(t, 5, 0, "a", "b") }
	for name, test := range map[string]struct {
		set  []byte
		want string // records, an error, and the offset that is read next
	}{
		"nothing":          {nil, "3"},
		"whole":            {whole(), "a@5 b@6 7"},
		"cut off":          {whole()[:len(whole())-1], "3"},
		"a begin":          {whole()[:10], "3"},
		"another format":   {change(whole(), func(b []byte) { b[magicAt] = 1 }), "not in message format 2, 6"},
		"short":            {change(whole(), func(b []byte) { binary.BigEndian.PutUint32(b[lengthAt:], 8) }), "not in message format 2, 6"},
		"damaged":          {change(whole(), func(b []byte) { b[len(b)-1]++ }), "checksum 3"},
		"a mark":           {change(whole(), func(b []byte) { b[attributesAt+1] |= controlBit; sum(b) }), "7"},
		"unknown codec":    {change(whole(), func(b []byte) { b[attributesAt+1] = 7; sum(b) }), "codec 7 is not known, 7"},
		"not packed":       {change(whole(), func(b []byte) { b[attributesAt+1] = 4; sum(b) }), "cannot be unpacked, 7"},
		"too many records": {change(whole(), func(b []byte) { binary.BigEndian.PutUint32(b[countAt:], 1<<30); sum(b) }), "a@5 b@6 malformed, 7"},
		"no records":       {change(whole(), func(b []byte) { binary.BigEndian.PutUint32(b[countAt:], 1<<31); sum(b) }), "7"},
		"long record":      {change(whole(), func(b []byte) { b[recordsAt] = 120; sum(b) }), "malformed, 7"},
		"offset beyond":    {change(whole(), func(b []byte) { b[recordsAt+3] = 20; sum(b) }), "malformed, 7"},
		"offset before":    {change(whole(), func(b []byte) { b[recordsAt+3] = 1; sum(b) }), "malformed, 7"},
		"many headers":     {encodeSet(t, 5, 0, protocol.Record{Headers: make([]protocol.Header, maxHeaders+1)}), "malformed, 6"},
	} {
		left := int64(2 * MaxUnpacked)
		batches, next, err := Read(test.set, 3, &left)
		var got []string
		for _, b := range batches {
			for m, broken := range b.Records(3) {
				if broken != nil {
					err = broken
					continue
				}
				got = append(got, fmt.Sprintf("%s@%d", m.Value, m.Offset))
			}
		}
		for _, part := range []string{"not in message format 2", "checksum", "codec 7 is not known", "cannot be unpacked", "malformed"} {
			if err != nil && strings.Contains(err.Error(), part) {
				got = append(got, part)
				break
			}
		}
		var unreadable *UnreadableError
		if errors.As(err, &unreadable) {
			got[len(got)-1] += ","
			next = unreadable.Next
		}
		if got := strings.Join(append(got, fmt.Sprint(next)), " "); got != test.want {
			t.Errorf("%s: %s (%v), want %s", name, got, err, test.want)
		}
	}
}

// TestARecordSetIsCutBeforeTheBatchForWhichTooFewBytesAreLeft and what is before is read.
func TestARecordSetIsCutBeforeTheBatchForWhichTooFewBytesAreLeft(t *testing.T) {
	large := strings.Repeat("\x00", MaxUnpacked-1000)
	set := slices.Concat(recordSet(t, 0, protocol.Zstd, large), recordSet(t, 1, protocol.Zstd, large), recordSet(t, 2, protocol.Zstd, large))
	left := int64(2 * MaxUnpacked)
	all, next, err := Read(set, 0, &left)
	if len(all) != 2 || next != 2 || err != nil || left < 0 {
		t.Errorf("%d batches, the next at %d, %v, %d bytes left; want 2, 2", len(all), next, err, left)
	}
}

// FuzzRecords: whatever a broker answers, records are read or refused, and offsets do not go back.
func FuzzRecords(f *testing.F) {
	f.Add(recordSet(f, 5, 0, "a", "b"))
	f.Add(recordSet(f, 5, protocol.Zstd, "a"))
	f.Fuzz(func(t *testing.T, set []byte) {
		if len(set) > recordsAt {
			set = sum(set)
		}
		left := int64(2 * MaxUnpacked)
		batches, next, _ := Read(set, 3, &left)
		if next < 3 || left < 0 {
			t.Errorf("the next offset is %d, %d bytes are left", next, left)
		}
		for _, b := range batches {
			for m, err := range b.Records(3) {
				if err == nil && (m.Offset < 3 || m.Offset >= b.next || len(m.Headers) > maxHeaders) {
					t.Errorf("offset %d of a batch up to %d, %d headers", m.Offset, b.next, len(m.Headers))
				}
			}
		}
		_, _, _ = Cut(set, 11)
	})
}

// BenchmarkRecords reads the records of an answer.
func BenchmarkRecords(b *testing.B) {
	var records []protocol.Record
	for range 200 {
		r := protocol.Record{Key: protocol.NewBytes([]byte("1234567")), Value: protocol.NewBytes(make([]byte, 250))}
		for range 11 {
			r.Headers = append(r.Headers, protocol.Header{Key: record.HeaderScheduledAt, Value: []byte("1234567890123")})
		}
		records = append(records, r)
	}
	set := encodeSet(b, 0, 0, records...)
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			left := int64(2 * MaxUnpacked)
			batches, _, err := Read(set, 0, &left)
			if err != nil {
				b.Fatal(err)
			}
			for i := range batches {
				for _, err := range batches[i].Records(0) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(records)), "ns/record")
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			byLibrary(b, set, 0)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(records)), "ns/record")
	})
}
