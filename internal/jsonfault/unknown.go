package jsonfault

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/perceptor/perceptor/internal/spelling"
)

// maxName bounds the names that are compared.
const maxName = 40

// Unknown says that a message has no field of a name, and names the field that may be meant.
// what is "field" or another word for it.
func Unknown(what string, m protoreflect.MessageDescriptor, name string) string {
	if near := nearest(m, name); near != "" {
		return "unknown " + what + "; did you mean " + near + "?"
	}
	return "unknown " + what
}

// nearest returns the name of the field that a name is probably a misspelling of: another case
// or another separator, or few other letters. "" if there is none.
func nearest(m protoreflect.MessageDescriptor, name string) string {
	if len(name) > maxName {
		return ""
	}
	plain := letters(name)
	best, distance := "", 1+len(plain)/4
	for i := range m.Fields().Len() {
		field := string(m.Fields().Get(i).Name())
		if d := spelling.Distance(plain, letters(field)); d < distance || d == distance && best == "" {
			best, distance = field, d
		}
	}
	return best
}

// letters returns a name without what spellings differ in.
func letters(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(name))
}
