package jsonfault

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// What callers write for values that JSON has no form of its own for.
const (
	durationRule = `is not a duration; write seconds with an s, such as "3600s"`
	instantRule  = `is not an instant; write RFC 3339, such as "2026-11-25T10:00:00Z"`
	maskRule     = `is not a list of fields; write their names as in JSON with commas between them, such as "maxCount,endTime"`
	valueRule    = "has a name twice in one object, or a number that is too large; send the JSON as data"
	base64Rule   = `is not bytes in base64, such as "aGVsbG8="`
	halfPairRule = `has an escape from \ud800 to \udfff that is half of a pair`
)

// Wrong says why a text, such as a query parameter, is no value of a field.
func Wrong(field protoreflect.FieldDescriptor, text string) string {
	if !utf8.ValidString(text) {
		return "contains invalid UTF-8"
	}
	return wrong(field, strconv.Quote(cut(text)), text)
}

// wrongJSON says why a value of JSON is no value of a field.
func wrongJSON(field protoreflect.FieldDescriptor, value []byte) string {
	value = bytes.TrimSpace(value)
	switch {
	case !utf8.Valid(value):
		return "contains invalid UTF-8"
	case kindOf(value) == 'n':
		return "null is not allowed here"
	case halfPair(string(value)):
		return halfPairRule
	case field.Kind() == protoreflect.StringKind:
		return shown(value) + ` is not a text; write it in double quotes, such as "42"`
	}
	text := string(value)
	if kindOf(value) == '"' {
		_ = json.Unmarshal(value, &text) // it is JSON
	}
	return wrong(field, shown(value), text)
}

// wrong says why a text is no value of a field. It names the text as shown.
func wrong(field protoreflect.FieldDescriptor, shown, text string) string {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return shown + " is not true or false"
	case protoreflect.EnumKind:
		return shown + " is not one of " + namesOf(field.Enum())
	case protoreflect.BytesKind:
		return shown + " " + base64Rule
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return shown + " is not a number, or too large"
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return shown + " " + rangeRule(field.Message(), text)
	}
	return shown + " " + integerRule(field.Kind(), text)
}

var seconds = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,9})?s$`)

// rangeRule is messageRule for a text that may be well written and out of range.
func rangeRule(m protoreflect.MessageDescriptor, text string) string {
	rule := messageRule(m)
	if rule == durationRule && seconds.MatchString(text) {
		return "is not between -315576000000s and 315576000000s"
	}
	t, err := time.Parse(time.RFC3339, text)
	switch {
	case rule != instantRule || err != nil:
		return rule
	case t.UTC().Year() < 1 || t.UTC().Year() > 9999:
		return "is not of the years 1 to 9999"
	}
	return "has more than nine digits after the second"
}

func messageRule(m protoreflect.MessageDescriptor) string {
	switch m.FullName() {
	case "google.protobuf.Timestamp":
		return instantRule
	case "google.protobuf.Duration":
		return durationRule
	case "google.protobuf.FieldMask":
		return maskRule
	case "google.protobuf.Value":
		return valueRule
	}
	return "is not an object"
}

// integer matches the texts of whole numbers of a sensible length.
var integer = regexp.MustCompile(`^[+-]?[0-9]{1,100}$`)

func integerRule(kind protoreflect.Kind, text string) string {
	bits, signed := 64, true
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		bits = 32
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		bits, signed = 32, false
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		signed = false
	}
	if !integer.MatchString(text) {
		return "is not a whole number"
	}
	low, high := new(big.Int), new(big.Int).Lsh(big.NewInt(1), uint(bits))
	if signed {
		high.Rsh(high, 1)
		low.Neg(high)
	}
	high.Sub(high, big.NewInt(1))
	if n, ok := new(big.Int).SetString(text, 10); ok && n.Cmp(low) >= 0 && n.Cmp(high) <= 0 {
		return "has a plus sign or a leading zero; leave it out"
	}
	return fmt.Sprintf("is not between %s and %s", low, high)
}

// namesOf lists the values of an enum. The one for "not set" is left out.
func namesOf(e protoreflect.EnumDescriptor) string {
	var names []string
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		if v.Number() != 0 || !strings.HasSuffix(string(v.Name()), "UNSPECIFIED") {
			names = append(names, string(v.Name()))
		}
	}
	return strings.Join(names, ", ")
}

// isObject reports whether JSON writes a field as an object with fields of its own.
func isObject(field protoreflect.FieldDescriptor) bool {
	return field.Message() != nil && !field.IsMap() && messageRule(field.Message()) == "is not an object"
}

// takesNull reports whether null is a value of a field. For all others it means "not set".
func takesNull(field protoreflect.FieldDescriptor) bool {
	return field.Message() != nil && field.Message().FullName() == "google.protobuf.Value"
}

// halfPair reports whether a JSON text has an escape that is half of a pair.
func halfPair(text string) bool {
	for i := 0; i+1 < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		first, size := escaped(text[i:])
		if first >= 0xdc00 && first < 0xe000 {
			return true
		}
		if first >= 0xd800 && first < 0xdc00 {
			if second, _ := escaped(text[i+size:]); second < 0xdc00 || second >= 0xe000 {
				return true
			}
			size *= 2
		}
		i += size - 1
	}
	return false
}

// escaped returns the code of the escape at the beginning of a text, and its length. The code is
// 0 for escapes without digits, and where there is none.
func escaped(text string) (code uint64, size int) {
	if len(text) < 6 || text[:2] != `\u` {
		return 0, 2
	}
	code, _ = strconv.ParseUint(text[2:6], 16, 32)
	return code, 6
}

// maxShown bounds what is shown of a value, in bytes.
const maxShown = 60

// shown returns the beginning of a value.
func shown(value []byte) string {
	var compact bytes.Buffer
	if json.Compact(&compact, value) != nil {
		return cut(string(value))
	}
	return cut(compact.String())
}

// cut shortens a text, and makes it valid UTF-8.
func cut(text string) string {
	if len(text) > maxShown {
		text = text[:maxShown] + "…"
	}
	return strings.ToValidUTF8(text, string(utf8.RuneError))
}
