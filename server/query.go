package server

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/perceptor/perceptor/internal/jsonfault"
	"github.com/perceptor/perceptor/task"
)

func init() {
	// The query parser is a global of the library, so it is set once.
	runtime.NewServeMux(runtime.SetQueryParameterParser(&strictQuery{}))
}

// A route is a verb and a path that belong to a method.
type route struct {
	verb, path string // the path as in the rule: /v1/tasks/{id}
	query      bool   // a field of the request is neither in the body nor in the path
}

// allRoutes has those of all methods.
var allRoutes = func() (all []route) {
	for full := range access {
		name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", "."))
		d, _ := protoregistry.GlobalFiles.FindDescriptorByName(name)
		m, ok := d.(protoreflect.MethodDescriptor)
		if !ok {
			continue
		}
		rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
		for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
			verb, path := binding(r)
			all = append(all, route{verb, path, takesQuery(m.Input(), r.GetBody(), path)})
		}
	}
	return all
}()

// binding returns the verb and the path of a rule.
func binding(r *annotations.HttpRule) (verb, path string) {
	switch {
	case r.GetGet() != "":
		return http.MethodGet, r.GetGet()
	case r.GetPatch() != "":
		return http.MethodPatch, r.GetPatch()
	}
	return http.MethodPost, r.GetPost()
}

// withQuery has the routes that query parameters belong to, by verb and pattern of the path as the library writes it. For other
// routes the library would ignore query parameters.
var withQuery = func() map[string]bool {
	calls := map[string]bool{}
	for _, r := range allRoutes {
		calls[r.verb+" "+strings.ReplaceAll(r.path, "}", "=*}")] = r.query
	}
	return calls
}()

// fits reports whether an escaped path is one of the route.
func (r *route) fits(path string) bool {
	return slices.EqualFunc(strings.Split(r.path, "/"), strings.Split(path, "/"), func(rule, segment string) bool {
		before, rest, isField := strings.Cut(rule, "{")
		if !isField {
			return rule == segment
		}
		_, after, _ := strings.Cut(rest, "}") // a verb, as in {id}:pause
		return strings.HasPrefix(segment, before) && strings.HasSuffix(segment, after) && len(segment) > len(before)+len(after)
	})
}

// verbsOf returns the verbs that an escaped path has.
func verbsOf(path string) (verbs []string) {
	for _, r := range allRoutes {
		if r.fits(path) {
			verbs = append(verbs, r.verb)
		}
	}
	slices.Sort(verbs)
	return slices.Compact(verbs)
}

// takesQuery reports whether a request has a field that is neither in the body nor in the path.
func takesQuery(request protoreflect.MessageDescriptor, body, path string) bool {
	for i := range request.Fields().Len() {
		name := string(request.Fields().Get(i).Name())
		if body != "*" && name != body && !strings.Contains(path, "{"+name+"}") {
			return true
		}
	}
	return false
}

// queryFault refuses a query that cannot be parsed.
func queryFault(r *http.Request) error {
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		return malformed("the query of the URL is damaged: a % needs two hexadecimal digits, and ; is written %3B")
	}
	return nil
}

// refuseQuery refuses the query of a call that takes none.
func refuseQuery(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, inPath map[string]string) {
		pattern, _ := runtime.HTTPPattern(r.Context())
		if given := r.URL.Query(); len(given) > 0 && !withQuery[r.Method+" "+pattern.String()] {
			writeError(w, undecoded(noParameters(r.Method, given)))
			return
		}
		next(w, r, inPath)
	}
}

// noParameters returns the faults of the query of a call that takes none.
func noParameters(verb string, given url.Values) (faults []task.Fault) {
	text := "this call takes no query parameters"
	if verb != http.MethodGet {
		text += "; its fields belong in the body"
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		faults = append(faults, faultf(shortened(key), "%s", text))
	}
	return faults[:min(len(faults), maxViolations)]
}

// strictQuery refuses query parameters that are not fields of the request. The library decides
// about each value. It names neither the field nor what is wrong in the words of the API.
type strictQuery struct{ runtime.DefaultQueryParser }

// Parse fills msg from values.
func (q *strictQuery) Parse(msg proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	var faults []task.Fault
	given := map[string]int{}
	m := msg.ProtoReflect().Descriptor()
	for key, list := range values {
		path, field := queryField(m, key)
		if field == nil {
			faults = append(faults, strayParameter(m, key))
			continue
		}
		given[path] += len(list)
		outer, _, _ := strings.Cut(path, ".")
		switch n := given[path]; {
		case filter.HasCommonPrefix([]string{outer}):
			faults = append(faults, faultf(path, "belongs in the body or the path, not in the query"))
		case n > 1 && !field.IsList():
			faults = append(faults, faultf(path, "is given %d times", n))
		default:
			faults = append(faults, q.values(msg, field, path, key, list, filter)...)
		}
	}
	if len(faults) > 0 {
		slices.SortFunc(faults, func(a, b task.Fault) int { return cmp.Compare(a.Field, b.Field) })
		return undecodable(faults...)
	}
	return nil
}

// values puts the values of a parameter into msg one by one, so that a fault has its index.
func (q *strictQuery) values(msg proto.Message, field protoreflect.FieldDescriptor, name, key string, list []string, filter *utilities.DoubleArray) (faults []task.Fault) {
	for i, v := range list {
		path := name
		if field.IsList() {
			path = fmt.Sprintf("%s[%d]", name, i)
		}
		// The library takes texts of any bytes.
		bad := strings.ToValidUTF8(v, "") != v
		if bad || q.DefaultQueryParser.Parse(msg, url.Values{key: {v}}, filter) != nil {
			faults = append(faults, task.Fault{Field: path, Message: jsonfault.Wrong(field, v)})
		}
	}
	return faults
}

// queryField returns the field that a parameter sets, and its path, or nil. The path may lead to a field of a message in the
// request, as in expected.id.
func queryField(m protoreflect.MessageDescriptor, key string) (path string, field protoreflect.FieldDescriptor) {
	outer, inner, nested := strings.Cut(key, ".")
	field = fieldNamed(m, outer)
	if nested {
		if field == nil || field.Message() == nil || isText(field.Message()) || field.IsMap() || field.IsList() {
			return "", nil
		}
		path, field = string(field.Name())+".", fieldNamed(field.Message(), inner)
	}
	if field == nil || field.Message() != nil && !isText(field.Message()) || field.IsMap() {
		return "", nil
	}
	return path + string(field.Name()), field
}

// isParameter reports whether a parameter sets a field.
func isParameter(m protoreflect.MessageDescriptor, key string) bool {
	_, field := queryField(m, key)
	return field != nil
}

// fieldNamed returns the field with a name of either form, or nil.
func fieldNamed(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if field := m.Fields().ByTextName(name); field != nil {
		return field
	}
	return m.Fields().ByJSONName(name)
}

// strayParameter is the fault of a parameter that sets no field.
func strayParameter(m protoreflect.MessageDescriptor, key string) task.Fault {
	key = shortened(key)
	outer, _, _ := strings.Cut(key, ".")
	if f := m.Fields().ByTextName(outer); f != nil && f.Message() != nil {
		return faultf(key, "cannot be a query parameter")
	}
	return faultf(key, "%s", jsonfault.Unknown("query parameter", m, key))
}

// isText reports whether JSON writes a message as a string.
func isText(m protoreflect.MessageDescriptor) bool {
	switch m.FullName() {
	case "google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask":
		return true
	}
	return false
}
