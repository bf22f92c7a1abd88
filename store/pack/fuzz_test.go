package pack

import (
	"encoding/binary"
	"errors"
	"testing"
)

func appendUvarint(v uint64) []byte { return binary.AppendUvarint(nil, v) }

// FuzzDecode gives the decoder blobs as they are, and contents behind a header
// that is right, so that the parts behind the checksum are reached.
func FuzzDecode(f *testing.F) {
	for _, n := range []int{1, 5, 100} {
		p := mustEncode(f, typical(n, uint64(n)), true)
		keys, err := open(keysMagic, p.Keys, nil)
		if err != nil {
			f.Fatal(err)
		}
		params, err := open(paramsMagic, p.Params, nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p.Keys, p.Params)
		f.Add(keys, params)
	}
	f.Fuzz(func(t *testing.T, keys, params []byte) {
		check := func(keys, params []byte) {
			rows, err := Decode(keys, params)
			if err != nil && !errors.Is(err, ErrDamaged) {
				t.Fatalf("err = %v, which is not ErrDamaged", err)
			}
			if err != nil {
				return
			}
			if len(rows) < 1 || len(rows) > MaxTasks {
				t.Fatalf("%d rows", len(rows))
			}
			last := rows[len(rows)-1]
			one, err := FindOne(keys, last.Tenant, last.ID)
			if err == nil {
				err = one.FillParams(params)
			}
			if err != nil {
				t.Fatalf("a task of a pack that can be read: %v", err)
			}
			again := mustEncode(t, rows, true)
			if _, err := Decode(again.Keys, again.Params); err != nil {
				t.Fatalf("what was read cannot be packed and read again: %v", err)
			}
		}
		check(keys, params)
		if len(keys) <= maxKeysBytes && len(params) <= maxParamsBytes {
			check(reseal(t, keysMagic, keys), reseal(t, paramsMagic, params))
		}
	})
}
