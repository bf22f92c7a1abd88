package store

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

func TestArraysAreEncodedAsPgxDoes(t *testing.T) {
	ours, theirs := pgtype.NewMap(), pgtype.NewMap()
	registerArrays(ours)
	seven := int64(7)
	for _, test := range []struct {
		oid   uint32
		value any
	}{
		{pgtype.Int2ArrayOID, []int16{0, 1, -1, math.MaxInt16, math.MinInt16}},
		{pgtype.Int2ArrayOID, []int16{}},
		{pgtype.Int2ArrayOID, []int16(nil)},
		{pgtype.Int4ArrayOID, []int32{0, -1, math.MaxInt32}},
		{pgtype.Int8ArrayOID, []int64{0, -1, math.MaxInt64, math.MinInt64}},
		{pgtype.Int8ArrayOID, []int{1, 2}}, // a type that the codec of pgx encodes
		{pgtype.Int8ArrayOID, []*int64{&seven, nil, &seven}},
		{pgtype.Int8ArrayOID, []*int64{&seven}},
		{pgtype.BoolArrayOID, []bool{true, false}},
		{pgtype.TextArrayOID, []string{"", "ä", "two words"}},
		{pgtype.ByteaArrayOID, [][]byte{{}, {0, 0xff}, nil, {1}}},
		{pgtype.ByteaArrayOID, [][]byte{{0xff, 0xff}, {}}},
	} {
		t.Run(fmt.Sprintf("%T %v", test.value, test.value), func(t *testing.T) {
			if f := ours.FormatCodeForOID(test.oid); f != pgtype.BinaryFormatCode {
				t.Errorf("format %d, want binary", f)
			}
			got, err := ours.Encode(test.oid, pgtype.BinaryFormatCode, test.value, []byte("before"))
			if err != nil {
				t.Fatal(err)
			}
			want, err := theirs.Encode(test.oid, pgtype.BinaryFormatCode, test.value, []byte("before"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
				t.Errorf("got  %x\nwant %x", got, want)
			}
			text, err := ours.Encode(test.oid, pgtype.TextFormatCode, test.value, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want, _ := theirs.Encode(test.oid, pgtype.TextFormatCode, test.value, nil); !bytes.Equal(text, want) {
				t.Errorf("as text: %s, want %s", text, want)
			}
		})
	}
}

func BenchmarkArrays(b *testing.B) {
	list := make([]int64, 1000)
	for _, which := range []string{"ours", "theirs"} {
		b.Run(which, func(b *testing.B) {
			m := pgtype.NewMap()
			if which == "ours" {
				registerArrays(m)
			}
			var buf []byte
			for b.Loop() {
				buf, _ = m.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, list, buf[:0])
			}
		})
	}
}
