package server

import (
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// foreignWords matches the words of libraries, which callers must not see.
var foreignWords = regexp.MustCompile(`proto:|strconv|(^|[^.])json:|(?i:syntax)|unexpected|invalid value for|\(line |google\.protobuf|invalid character|unmarshal|parsing|mismatch|runtime|reflect|EOF|parameter:`)

// wrongValues have a value of each form of JSON, so that each field has some that it does not take.
var wrongValues = []string{`{}`, `[]`, `"x y"`, `1.5`, `1e400`, `true`, `[{}]`, `[null]`, `[[]]`, `{"k":{}}`, `{"k":7}`, `"\ud800"`, "\"\xff\"", `"99999999999999999999"`, `{"no such":1}`}

// httpRules returns the HTTP rules of all methods, by the method's name.
func httpRules(t testing.TB) map[protoreflect.MethodDescriptor][]*annotations.HttpRule {
	t.Helper()
	rules := map[protoreflect.MethodDescriptor][]*annotations.HttpRule{}
	for full := range access {
		name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", "."))
		d := must(protoregistry.GlobalFiles.FindDescriptorByName(name))(t).(protoreflect.MethodDescriptor)
		if rule, _ := proto.GetExtension(d.Options(), annotations.E_Http).(*annotations.HttpRule); rule != nil {
			rules[d] = append([]*annotations.HttpRule{rule}, rule.AdditionalBindings...)
		}
	}
	return rules
}

// checkRefusal checks that an error of a decoder names a field below a path, in our own words.
func checkRefusal(t *testing.T, err error, path, of string) {
	t.Helper()
	a := unpacked(status.Convert(decodingError("", status.Error(codes.InvalidArgument, err.Error()))))
	if a.code != codes.InvalidArgument || a.reason != "MALFORMED_REQUEST" || len(a.faults) != 1 || foreignWords.MatchString(a.message) {
		t.Errorf("%s: %s %s %q", of, a.code, a.reason, a.message)
	}
	for field := range a.faults {
		rest, ok := strings.CutPrefix(field, path)
		if !ok || rest != "" && !strings.ContainsAny(rest[:1], ".[") {
			t.Errorf("%s: the fault is in %q, want %q", of, field, path)
		}
	}
}

func TestWrongJSONInAnyFieldOfAnyRequestIsRefusedByItsPathInPlainWords(t *testing.T) {
	j, fields := newStrictJSON(), 0
	for method, rules := range httpRules(t) {
		if rules[0].Body == "" {
			continue
		}
		request := must(protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName()))(t)
		target, prefix, inner := func() any { return request.New().Interface() }, "", method.Input()
		if body := rules[0].Body; body != "*" {
			field := method.Input().Fields().ByTextName(body)
			message := must(protoregistry.GlobalTypes.FindMessageByName(field.Message().FullName()))(t)
			pointer := reflect.TypeOf(message.New().Interface())
			target, prefix, inner = func() any { return reflect.New(pointer).Interface() }, body, field.Message()
		}
		everyField(inner, prefix, `%s`, func(path, form string) {
			fields++
			refused := 0
			for _, value := range wrongValues {
				text := strings.Replace(form, `%s`, value, 1)
				if err := j.decode([]byte(text), target()); err != nil {
					refused++
					checkRefusal(t, err, path, string(method.Name())+" "+text)
				}
			}
			if refused == 0 {
				t.Errorf("%s of %s takes everything", path, method.Name())
			}
		})
	}
	if fields < 300 {
		t.Errorf("only %d fields were tried", fields)
	}
}

// everyField calls f for each field of a message and of all below it, with its path, and with a
// JSON text in which %s stands for its value.
func everyField(m protoreflect.MessageDescriptor, path, form string, f func(path, form string)) {
	for i := range m.Fields().Len() {
		field := m.Fields().Get(i)
		inner := string(field.Name())
		if path != "" {
			inner = path + "." + inner
		}
		// Every other field is spelled as in JSON.
		name := []string{string(field.Name()), field.JSONName()}[i%2]
		text := strings.Replace(form, `%s`, `{"`+name+`": %s}`, 1)
		if field.Message() != nil && field.Message().FullName() == "google.protobuf.Value" {
			f(inner, strings.Replace(text, `%s`, `{"a":"\udc00","b":%s}`, 1))
			continue
		}
		f(inner, text)
		switch {
		case field.Message() == nil || field.IsMap() || field.Message().ParentFile().Package() != m.ParentFile().Package():
		case field.IsList():
			everyField(field.Message(), inner+"[1]", strings.Replace(text, `%s`, `[{},%s]`, 1), f)
		default:
			everyField(field.Message(), inner, text, f)
		}
	}
}

func TestWrongQueryParametersOfAnyCallAreRefusedInPlainWords(t *testing.T) {
	parameters := 0
	for method, rules := range httpRules(t) {
		if rules[0].Body == "*" {
			continue
		}
		message := must(protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName()))(t)
		for i := range method.Input().Fields().Len() {
			field := method.Input().Fields().Get(i)
			parameters++
			for _, value := range []string{"x y", "\xff", "99999999999999999999", "2026-13-01", "NaNa"} {
				err := (&strictQuery{}).Parse(message.New().Interface(), map[string][]string{field.JSONName(): {value}}, utilities.NewDoubleArray(nil))
				switch {
				case err != nil && !isParameter(method.Input(), field.JSONName()):
					checkRefusal(t, err, field.JSONName(), string(method.Name()))
				case err != nil:
					checkRefusal(t, err, string(field.Name()), fmt.Sprintf("%s %s=%s", method.Name(), field.Name(), value))
				case value == "\xff":
					t.Errorf("%s takes %s that is no UTF-8", method.Name(), field.Name())
				}
			}
		}
	}
	if parameters < 60 {
		t.Errorf("only %d parameters were tried", parameters)
	}
}

func TestWrongPathParametersOfAnyCallAreRefusedInPlainWords(t *testing.T) {
	b := setup(t)
	parameter, numbers := regexp.MustCompile(`\{([a-z_.]+)\}`), 0
	for method, rules := range httpRules(t) {
		for _, rule := range rules {
			verb, path := http.MethodPost, rule.GetPost()
			if rule.GetGet() != "" {
				verb, path = http.MethodGet, rule.GetGet()
			} else if rule.GetPatch() != "" {
				verb, path = http.MethodPatch, rule.GetPatch()
			}
			in := parameter.FindStringSubmatch(path)
			if in == nil || !slices.Contains([]protoreflect.Kind{protoreflect.Int64Kind, protoreflect.Int32Kind}, requestField("/"+string(method.Parent().FullName())+"/"+string(method.Name()), in[1]).Kind()) {
				continue
			}
			numbers++
			for value, want := range map[string]string{"x%20y": `"x y" is not a whole number`, "99999999999999999999": "is not between"} {
				a := b.fetch("acme-secret", verb, strings.Replace(path, in[0], value, 1), "{}", nil)
				if a.http != http.StatusBadRequest || !strings.Contains(a.faults[in[1]], want) || foreignWords.MatchString(a.message) {
					t.Errorf("%s %s: %d %s", verb, path, a.http, a.body)
				}
			}
		}
	}
	if numbers < 15 {
		t.Errorf("only %d parameters were tried", numbers)
	}
}

func TestRequestsThatNoMethodCanReadAreRefusedInPlainWords(t *testing.T) {
	b := setup(t)
	for name, header := range map[string][2]string{
		"a timeout": {"Grpc-Timeout", "soon"}, "a type of the body": {"Content-Type", "text; x"},
	} {
		r := must(http.NewRequest(http.MethodPost, "http://memory/v1/tasks", strings.NewReader(`{"kind":"k","nonsense":1}`)))(t)
		r.Header.Set(header[0], header[1])
		if a := b.do("acme-secret", r, nil); a.http != http.StatusBadRequest || a.reason != "MALFORMED_REQUEST" || foreignWords.MatchString(a.message) {
			t.Errorf("%s: %d %s", name, a.http, a.body)
		}
	}
}
