package jsonfault

import (
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/perceptor/perceptor/internal/spelling"
)

// maxName bounds the names that are compared.
const maxName = 40

// maxHints bounds how many fields are named.
const maxHints = 3

// Unknown says that a message has no field of a name, and names the field that may be meant.
// what is "field" or another word for it.
func Unknown(what string, m protoreflect.MessageDescriptor, name string) string {
	if len(name) > maxName {
		return "unknown " + what
	}
	hints := nearest(m, name)
	if hints == nil {
		hints = longer(m, name)
	}
	if len(hints) == 0 || len(hints) > maxHints {
		return "unknown " + what
	}
	return "unknown " + what + "; did you mean " + strings.Join(hints, " or ") + "?"
}

// nearest returns the name of the field that a name is probably a misspelling of: another case
// or another separator, or few other letters. nil if there is none.
func nearest(m protoreflect.MessageDescriptor, name string) []string {
	plain := letters(name)
	var best []string
	distance := 1 + len(plain)/4
	for i := range m.Fields().Len() {
		field := string(m.Fields().Get(i).Name())
		if d := spelling.Distance(plain, letters(field)); d < distance || d == distance && best == nil {
			best, distance = []string{field}, d
		}
	}
	return best
}

// longer returns the names of the fields that have a name as one of their words, as begin_time
// has begin, and that callers may set.
func longer(m protoreflect.MessageDescriptor, name string) (fields []string) {
	for i := range m.Fields().Len() {
		field := m.Fields().Get(i)
		words := strings.Split(string(field.Name()), "_")
		if len(words) > 1 && slices.Contains(words, strings.ToLower(name)) && !isOutput(field) {
			fields = append(fields, string(field.Name()))
		}
	}
	return fields
}

// isOutput reports whether only the service sets a field.
func isOutput(field protoreflect.FieldDescriptor) bool {
	behavior, _ := proto.GetExtension(field.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(behavior, annotations.FieldBehavior_OUTPUT_ONLY)
}

// letters returns a name without what spellings differ in.
func letters(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(name))
}
