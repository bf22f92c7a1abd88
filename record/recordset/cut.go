package recordset

import (
	"encoding/binary"
	"errors"
)

// Cut takes the record sets out of the answer to a fetch, whose version is one from 4 to 11. It returns the answer without
// them, and them by partition, of one topic.
func Cut(answer []byte, version int16) (rest []byte, records map[int32][]byte, err error) {
	records = map[int32][]byte{}
	r, kept := reader{rest: answer}, 0
	r.take(4 + 4) // number of the request, throttle time
	if version >= 7 {
		r.take(2 + 4) // error, session
	}
	for topics := r.int32(); topics > 0 && !r.failed; topics-- {
		r.take(int(int16(r.uint16()))) // name
		for partitions := r.int32(); partitions > 0 && !r.failed; partitions-- {
			partition := r.int32()
			r.take(2 + 8 + 8) // error, high watermark, last stable offset
			if version >= 5 {
				r.take(8) // start of the log
			}
			r.take(16 * int(max(r.int32(), 0))) // aborted transactions
			if version >= 11 {
				r.take(4) // preferred replica
			}
			rest = append(append(rest, answer[kept:len(answer)-len(r.rest)]...), 0, 0, 0, 0)
			records[partition] = r.take(int(max(r.int32(), 0)))
			kept = len(answer) - len(r.rest)
		}
	}
	if r.failed {
		return nil, nil, errors.New("the answer of the broker to a fetch is malformed")
	}
	return append(rest, answer[kept:]...), records, nil
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}
