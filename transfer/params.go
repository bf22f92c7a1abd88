package transfer

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// param is an entry of params.
type param struct{ key, value []byte }

// The tags of the fields of a map entry, and of the entries of Params.
const (
	tagEntry = 1<<3 | byte(protowire.BytesType)
	tagKey   = tagEntry
	tagValue = 2<<3 | byte(protowire.BytesType)
)

// appendParam appends an entry of a message of the type Params. key is the encoded field of the
// key.
func appendParam(wire, key, value []byte) []byte {
	size := len(key) + 1 + protowire.SizeBytes(len(value))
	wire = protowire.AppendVarint(append(wire, tagEntry), uint64(size))
	wire = protowire.AppendVarint(append(append(wire, key...), tagValue), uint64(len(value)))
	return append(wire, value...)
}

// keyField returns the encoded field of a key.
func keyField(dst, key []byte) []byte {
	return protowire.AppendBytes(append(dst, tagKey), key)
}

// appendParams sorts entries and appends them as a message. It returns false if a key is
// there twice.
func appendParams(wire []byte, list []param) ([]byte, bool) {
	byKey := func(a, b param) int { return bytes.Compare(a.key, b.key) }
	if !slices.IsSortedFunc(list, byKey) {
		slices.SortFunc(list, byKey)
	}
	for i, p := range list {
		if i > 0 && bytes.Equal(p.key, list[i-1].key) {
			return wire, false
		}
		size := 2 + protowire.SizeBytes(len(p.key)) + protowire.SizeBytes(len(p.value))
		wire = protowire.AppendVarint(append(wire, tagEntry), uint64(size))
		wire = protowire.AppendBytes(append(wire, tagKey), p.key)
		wire = protowire.AppendBytes(append(wire, tagValue), p.value)
	}
	return wire, true
}

// paramValue returns the value of a key in a message of the type Params.
func paramValue(wire []byte, key string) ([]byte, bool) {
	for len(wire) > 0 {
		entry, n := protowire.ConsumeBytes(wire[1:])
		if n < 0 {
			return nil, false
		}
		wire = wire[1+n:]
		k, n := protowire.ConsumeBytes(entry[1:])
		if n < 0 || string(k) != key {
			continue
		}
		v, n := protowire.ConsumeBytes(entry[1+n+1:])
		return v, n >= 0
	}
	return nil, false
}
