package transfer

import (
	"bytes"
	"encoding/hex"
	"unicode/utf8"

	"github.com/perceptor/perceptor/task"
)

// fast reads a line of the usual form: an object whose params are texts. It returns false
// for every other line, also for a wrong one; slow reads it then. The terms are the text of their fields, so
// those of most lines need not be parsed.
func (s *jsonSource) fast(l *Line, raw []byte) bool {
	x := &s.scan
	*x = scanner{text: raw, unescaped: x.unescaped[:0]}
	l.Begin, l.Key, l.State = s.defaultBegin, nil, State{}
	s.list, s.terms, s.running = s.list[:0], s.terms[:0], false
	s.fields.reset()
	if !x.accept('{') || !utf8.Valid(raw) {
		return false
	}
	for first := true; !x.accept('}'); first = false {
		if !first && !x.accept(',') {
			return false
		}
		begin := x.mark()
		name, good := x.string()
		if !good || !x.accept(':') || !s.fastField(l, name, begin) {
			return false
		}
	}
	if !x.ended() {
		return false
	}
	if s.running {
		l.State.Runs = max(0, l.State.Runs-1) // as stateOf does
	}
	s.addGiven()
	wire, distinct := appendParams(s.wire[:0], s.list)
	s.wire = wire
	l.Params, l.Terms = wire, s.terms
	return distinct
}

// The fields that a line may have only once, as bits.
const (
	seenBegin = 1 << iota
	seenKey
	seenParams
	seenState
	seenRuns
	seenMissed
	seenPaused
	seenScheduled
	seenAnchor
	seenRead
	seenOther // the first of some more
)

// fastField reads the value of a field, whose name begins at a position.
func (s *jsonSource) fastField(l *Line, name []byte, begin int) bool {
	x := &s.scan
	switch string(name) {
	case "beginTime", "begin_time":
		return x.once(seenBegin) && x.instant(&l.Begin, true)
	case "idempotencyKey", "idempotency_key":
		return x.once(seenKey) && x.plain(&l.Key)
	case "params":
		return x.once(seenParams) && s.fastParams()
	}
	number, known := termNumbers[string(name)]
	if !known {
		return s.fastOutput(l, name)
	}
	// Whether the text is valid, its template shows.
	if !x.skip() || !s.fields.once(number) {
		return false
	}
	text := x.text[begin:x.at]
	s.fields.now = append(s.fields.now, fieldText{number, text})
	s.terms = append(append(s.terms, ','), text...)
	return true
}

// fastParams reads an object of texts.
func (s *jsonSource) fastParams() bool {
	x := &s.scan
	if !x.accept('{') {
		return false
	}
	for first := true; !x.accept('}'); first = false {
		if !first && !x.accept(',') {
			return false
		}
		key, good := x.string()
		if !good || !x.accept(':') {
			return false
		}
		value, good := x.string()
		if !good {
			return false
		}
		s.list = append(s.list, param{key, value})
	}
	return true
}

// fastOutput reads a field that the service sets.
func (s *jsonSource) fastOutput(l *Line, name []byte) bool {
	x, unused, text := &s.scan, task.Instant(0), []byte(nil)
	switch string(name) {
	case "id":
		return x.once(seenOther) && x.count(nil)
	case "state":
		return x.once(seenState) && s.fastState()
	case "runCount", "run_count":
		return x.once(seenRuns) && x.count(s.wanted(&l.State.Runs))
	case "missedCount", "missed_count":
		return x.once(seenMissed) && x.count(s.wanted(&l.State.Missed))
	case "paused":
		return x.once(seenPaused) && x.bool(&l.State.Paused, s.restore)
	case "scheduledTime", "scheduled_time":
		if !s.restore {
			return x.once(seenScheduled) && x.instant(&unused, false)
		}
		return x.once(seenScheduled) && x.instant(&l.State.Scheduled, false)
	case "dueTime", "due_time":
		return x.once(seenOther<<1) && x.instant(&unused, false)
	case "createTime", "create_time":
		return x.once(seenOther<<2) && x.instant(&unused, false)
	case "version":
		return x.once(seenOther<<3) && x.small()
	case "attempt":
		return x.once(seenOther<<4) && x.small()
	case "openRunCount", "open_run_count":
		return x.once(seenOther<<5) && x.small()
	case "backfillOf", "backfill_of":
		return x.once(seenOther<<6) && x.count(nil)
	case "backfillId", "backfill_id":
		return x.once(seenOther<<7) && x.count(nil)
	case "replayOf", "replay_of":
		return x.once(seenOther<<8) && x.plain(&text)
	case "finishTime", "finish_time":
		return x.once(seenOther<<9) && x.instant(&unused, false)
	case "readTime", "read_time":
		return x.once(seenRead) && x.instant(&unused, false)
	case "anchorTime", "anchor_time":
		if !s.restore {
			return x.once(seenAnchor) && x.instant(&unused, false)
		}
		return x.once(seenAnchor) && x.instant(&l.State.Anchor, false)
	}
	return false
}

// wanted returns where a count of an export goes: nowhere, unless tasks are restored.
func (s *jsonSource) wanted(n *int64) *int64 {
	if !s.restore {
		return nil
	}
	return n
}

// fastState reads the state. With restore that of a finished task is a fault, which slow tells.
func (s *jsonSource) fastState() bool {
	state, good := s.scan.string()
	if !good {
		return false
	}
	switch string(state) {
	case "SCHEDULED":
		return true
	case "RUNNING":
		s.running = s.restore
		return true
	case "COMPLETED", "CANCELLED", "FAILED":
		return !s.restore
	}
	return false
}

// scanner reads simple JSON. Its methods return false for all else, and the position is of no use then.
type scanner struct {
	text      []byte
	at        int
	seen      uint32
	unescaped []byte
}

// once returns false if a field was there before.
func (x *scanner) once(bit uint32) bool {
	before := x.seen
	x.seen |= bit
	return before&bit == 0
}

// blank passes over white space.
func (x *scanner) blank() {
	for x.at < len(x.text) {
		switch x.text[x.at] {
		case ' ', '\t', '\r', '\n':
			x.at++
		default:
			return
		}
	}
}

// mark returns the position of the next token.
func (x *scanner) mark() int {
	x.blank()
	return x.at
}

// accept passes over a character if it comes next.
func (x *scanner) accept(c byte) bool {
	x.blank()
	if x.at < len(x.text) && x.text[x.at] == c {
		x.at++
		return true
	}
	return false
}

func (x *scanner) ended() bool {
	x.blank()
	return x.at == len(x.text)
}

// special marks the bytes that end the plain part of a text.
var special = func() (t [256]bool) {
	for c := range 0x20 {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}()

// string reads a text. The bytes are those of the line, or of a buffer that lives as long.
func (x *scanner) string() ([]byte, bool) {
	if !x.accept('"') {
		return nil, false
	}
	from := x.at
	for i := from; i < len(x.text); i++ {
		if c := x.text[i]; special[c] {
			switch c {
			case '"':
				x.at = i + 1
				return x.text[from:i:i], true
			case '\\':
				return x.escaped(from, i)
			}
			return nil, false
		}
	}
	return nil, false
}

// escapes has what follows a backslash, without u.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escaped reads a text whose first backslash is at i.
func (x *scanner) escaped(from, i int) ([]byte, bool) {
	// Texts of the same line refer to the buffer, so it is never moved while it has enough room.
	if need := len(x.unescaped) + len(x.text); need > cap(x.unescaped) {
		x.unescaped = make([]byte, 0, 2*need)
	}
	begin := len(x.unescaped)
	for ; i < len(x.text); i++ {
		c := x.text[i]
		if !special[c] {
			continue
		}
		x.unescaped = append(x.unescaped, x.text[from:i]...)
		switch {
		case c == '"':
			x.at = i + 1
			return x.unescaped[begin:len(x.unescaped):len(x.unescaped)], true
		case c != '\\' || i+1 >= len(x.text):
			return nil, false
		case x.text[i+1] == 'u':
			r, good := character(x.text[i+2:])
			if !good {
				return nil, false
			}
			x.unescaped = utf8.AppendRune(x.unescaped, r)
			i += 1 + hexDigits
		case escapes[x.text[i+1]] == 0:
			return nil, false
		default:
			i++
			x.unescaped = append(x.unescaped, escapes[x.text[i]])
		}
		from = i + 1
	}
	return nil, false
}

// hexDigits is the number of digits of a code after \u.
const hexDigits = 4

// character reads the code of a character, as exports have it for the end of a line. A half of a pair is none.
func character(text []byte) (rune, bool) {
	if len(text) < hexDigits {
		return 0, false
	}
	var code [hexDigits / 2]byte
	if _, err := hex.Decode(code[:], text[:hexDigits]); err != nil {
		return 0, false
	}
	r := rune(code[0])<<8 | rune(code[1])
	return r, utf8.ValidRune(r)
}

// plain reads a text into to.
func (x *scanner) plain(to *[]byte) bool {
	text, good := x.string()
	*to = text
	return good
}

// instant reads a time. own says that it is checked.
func (x *scanner) instant(to *task.Instant, own bool) bool {
	text, good := x.string()
	if !good {
		return false
	}
	ms, _, good := parseDateTime(text, true)
	if !good || ms < 0 || task.Instant(ms) >= task.LastInstant && own {
		return false
	}
	*to = task.Instant(ms)
	return true
}

// count reads a number of at most 18 digits, which may be a text. to may be nil.
func (x *scanner) count(to *int64) bool {
	quoted := x.accept('"')
	n, from := int64(0), x.at
	for x.at < len(x.text) && x.text[x.at] >= '0' && x.text[x.at] <= '9' && x.at-from < 19 {
		n = n*10 + int64(x.text[x.at]-'0')
		x.at++
	}
	length := x.at - from
	if length == 0 || length > 18 || length > 1 && x.text[from] == '0' || quoted && !x.closes() || !quoted && !x.endsValue() {
		return false
	}
	if to != nil {
		*to = n
	}
	return true
}

// small reads a number of at most 9 digits.
func (x *scanner) small() bool {
	var n int64
	return x.count(&n) && n < 1e9
}

// closes passes over a quote that comes at once.
func (x *scanner) closes() bool {
	if x.at < len(x.text) && x.text[x.at] == '"' {
		x.at++
		return true
	}
	return false
}

// endsValue reports whether a number or word ends here.
func (x *scanner) endsValue() bool {
	return x.at < len(x.text) && bytes.IndexByte([]byte(",}] \t\r\n"), x.text[x.at]) >= 0
}

// bool reads true or false; take says that it counts.
func (x *scanner) bool(to *bool, take bool) bool {
	x.blank()
	for _, word := range []string{"true", "false"} {
		if bytes.HasPrefix(x.text[x.at:], []byte(word)) {
			x.at += len(word)
			if take {
				*to = word == "true"
			}
			return x.endsValue()
		}
	}
	return false
}

// skip passes over a value. It checks only that brackets and texts are closed.
func (x *scanner) skip() bool {
	x.blank()
	depth := 0
	for x.at < len(x.text) {
		switch c := x.text[x.at]; c {
		case '"':
			if !x.skipString() {
				return false
			}
			if depth == 0 {
				return true
			}
			continue
		case '{', '[':
			depth++
		case '}', ']', ',':
			if depth == 0 {
				return true // the end of a number or word
			}
			if c != ',' {
				depth--
				if depth == 0 {
					x.at++
					return true
				}
			}
		}
		x.at++
	}
	return false
}

func (x *scanner) skipString() bool {
	for i := x.at + 1; i < len(x.text); i++ {
		switch x.text[i] {
		case '"':
			x.at = i + 1
			return true
		case '\\':
			i++
		}
	}
	return false
}
