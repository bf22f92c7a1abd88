package store

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// Statements pass lists as binary arrays. pgx encodes an array value by value through an interface,
// and an added task has 20 values, a result 8. For the types that statements use, the codecs here
// append the same bytes in one loop, 3 to 6 times as fast. The codecs of pgx encode all other types
// and decode every type.

// registerArrays replaces the array codecs in the type map of a connection.
func registerArrays(m *pgtype.Map) {
	fixed(m, pgtype.Int2ArrayOID, pgtype.Int2OID, func(b []byte, v int16) []byte {
		return append(b, 0, 0, 0, 2, byte(v>>8), byte(v))
	})
	fixed(m, pgtype.Int4ArrayOID, pgtype.Int4OID, func(b []byte, v int32) []byte {
		return append(b, 0, 0, 0, 4, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	})
	fixed(m, pgtype.Int8ArrayOID, pgtype.Int8OID, appendInt8)
	fixed(m, pgtype.Int8ArrayOID, pgtype.Int8OID, func(b []byte, v *int64) []byte {
		if v == nil {
			return append(b, 0xff, 0xff, 0xff, 0xff) // NULL
		}
		return appendInt8(b, *v)
	})
	fixed(m, pgtype.BoolArrayOID, pgtype.BoolOID, func(b []byte, v bool) []byte {
		if v {
			return append(b, 0, 0, 0, 1, 1)
		}
		return append(b, 0, 0, 0, 1, 0)
	})
	fixed(m, pgtype.TextArrayOID, pgtype.TextOID, func(b []byte, v string) []byte {
		return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
	})
	fixed(m, pgtype.ByteaArrayOID, pgtype.ByteaOID, func(b []byte, v []byte) []byte {
		if v == nil {
			return append(b, 0xff, 0xff, 0xff, 0xff)
		}
		return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
	})
}

func appendInt8(b []byte, v int64) []byte {
	return append(b, 0, 0, 0, 8, byte(v>>56), byte(v>>48), byte(v>>40), byte(v>>32), byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// fixed registers a codec for []T in m. It wraps the codec that m has for the array type.
func fixed[T any](m *pgtype.Map, array, element uint32, add func([]byte, T) []byte) {
	t, ok := m.TypeForOID(array)
	if !ok {
		panic(fmt.Sprintf("pgx does not know the array type %d", array))
	}
	m.RegisterType(&pgtype.Type{Name: t.Name, OID: array, Codec: &arrayCodec[T]{Codec: t.Codec, element: element, add: add}})
}

// arrayCodec encodes []T. The embedded codec does everything else.
type arrayCodec[T any] struct {
	pgtype.Codec
	element uint32
	add     func([]byte, T) []byte // appends the length and the value
}

// PlanEncode implements [pgtype.Codec].
func (c *arrayCodec[T]) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.([]T); ok && format == pgtype.BinaryFormatCode {
		return c
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

// Encode implements [pgtype.EncodePlan].
func (c *arrayCodec[T]) Encode(value any, b []byte) ([]byte, error) {
	list, ok := value.([]T)
	switch {
	case !ok:
		return nil, fmt.Errorf("encode an array: %T is not %T", value, list)
	case list == nil:
		return nil, nil // NULL
	}
	b = append(b, 0, 0, 0, 1) // dimensions
	nulls := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, c.element)
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	b = append(b, 0, 0, 0, 1) // the first index
	for _, v := range list {
		at := len(b)
		if b = c.add(b, v); b[at] == 0xff {
			b[nulls+3] = 1
		}
	}
	return b, nil
}
