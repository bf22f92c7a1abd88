package server

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"

	"github.com/perceptor/perceptor/task"
)

// The params of a line are stored as they were sent. So they must be encoded in the one form that
// [paramsWire] writes: the same params have the same bytes.

// paramsFault is what is wrong with params whose encoding is right.
type paramsFault int

const (
	paramsFine paramsFault = iota
	paramsBreakRule
	paramsMalformed
)

// judgeParams judges encoded params and payload without decoding them.
func judgeParams(wire []byte, limit int) paramsFault {
	verdict, total, n := paramsFine, 0, 0
	var last []byte
	for len(wire) > 0 && wire[0] == entryTag {
		k, v, size := nextParam(wire)
		if size == 0 || n > 0 && bytes.Compare(last, k) >= 0 {
			return paramsMalformed
		}
		if len(k) == 0 || len(k) > task.MaxParamKeyBytes || !isCleanText(k) || !isCleanText(v) {
			verdict = paramsBreakRule
		}
		total, n, last, wire = total+len(k)+len(v), n+1, k, wire[size:]
	}
	if len(wire) > 0 {
		p, ok := payloadIn(wire)
		if !ok {
			return paramsMalformed
		}
		total += p.Size()
		if _, bad := p.Fault(); bad {
			verdict = paramsBreakRule
		}
	}
	if n > task.MaxParams || total > limit {
		verdict = paramsBreakRule
	}
	return verdict
}

// lineParams says what is wrong with params that break a rule.
func (r *reader) lineParams(wire []byte, limit int) {
	params := map[string]string{}
	for len(wire) > 0 && wire[0] == entryTag {
		k, v, size := nextParam(wire)
		params[string(k)], wire = string(v), wire[size:]
	}
	var payload *task.Payload
	if len(wire) > 0 {
		p, _ := payloadIn(wire)
		payload = &p
		if f, bad := p.Fault(); bad {
			r.unlessFaulty(task.Fault{Field: "payload." + f.Field, Message: f.Message})
		}
	}
	if len(params) > task.MaxParams {
		r.unlessFaulty(faultf("params", "has %d entries; at most %d are allowed", len(params), task.MaxParams))
	}
	if f, ok := task.ParamsFault(params, payload.Size(), limit); ok {
		r.unlessFaulty(f)
	}
}

// The tags of the fields of Params, and of its entries.
const (
	entryTag, keyTag, valueTag = 1<<3 | 2, 1<<3 | 2, 2<<3 | 2
	payloadTag, contentTypeTag = 2<<3 | 2, 3<<3 | 2
)

// nextParam reads the first entry of encoded params. A size of 0 says that it is malformed.
func nextParam(wire []byte) (key, value []byte, size int) {
	body, size := tagged(wire, entryTag)
	k, nk := tagged(body, keyTag)
	if size == 0 || nk == 0 {
		return nil, nil, 0
	}
	v, nv := tagged(body[nk:], valueTag)
	if nv == 0 || nk+nv != len(body) {
		return nil, nil, 0
	}
	return k, v, size
}

// payloadIn reads the payload that follows the entries.
func payloadIn(wire []byte) (p task.Payload, ok bool) {
	data, n := tagged(wire, payloadTag)
	if n == 0 {
		return p, false
	}
	p.Data, wire = data, wire[n:]
	if len(wire) == 0 {
		return p, true
	}
	t, n := tagged(wire, contentTypeTag)
	p.ContentType = string(t)
	return p, n == len(wire) && len(t) > 0 && p.StoredType() != ""
}

// tagged returns the content of a field of bytes with a tag of one byte, and the size of the field; 0:
// there is none, or its length is not encoded in the shortest form.
func tagged(wire []byte, tag byte) (content []byte, size int) {
	if len(wire) < 2 || wire[0] != tag {
		return nil, 0
	}
	length, n := binary.Uvarint(wire[1:])
	if n <= 0 || n > 1 && wire[n] == 0 || length > uint64(len(wire)-1-n) {
		return nil, 0
	}
	end := 1 + n + int(length)
	return wire[1+n : end], end
}

// isCleanText reports whether a key or a value is UTF-8 without NUL.
func isCleanText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }
