package openapi_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/perceptor/perceptor/proto/openapi"
	_ "github.com/perceptor/perceptor/proto/perceptor/v1"
)

//go:embed examples.json
var examples []byte

func document(t *testing.T) *openapi3.T {
	t.Helper()
	d, err := openapi3.NewLoader().LoadFromData(openapi.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDocumentAndItsExamplesAreValid(t *testing.T) {
	t.Parallel()
	if err := document(t).Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		t.Error(err)
	}
}

// methods calls f for each method with an HTTP form, and each of its rules.
func methods(f func(m protoreflect.MethodDescriptor, rule *annotations.HttpRule)) {
	protoregistry.GlobalFiles.RangeFilesByPackage("perceptor.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			list := file.Services().Get(i).Methods()
			for j := range list.Len() {
				rule, _ := proto.GetExtension(list.Get(j).Options(), annotations.E_Http).(*annotations.HttpRule)
				if rule == nil {
					continue
				}
				f(list.Get(j), rule)
				for _, more := range rule.AdditionalBindings {
					f(list.Get(j), more)
				}
			}
		}
		return true
	})
}

var parameter = regexp.MustCompile(`\{(?:[a-z_]+\.)*([a-z_]+)\}`)

func TestEveryCallIsInTheDocumentWithAllItsParameters(t *testing.T) {
	t.Parallel()
	d, calls := document(t), 0
	methods(func(m protoreflect.MethodDescriptor, rule *annotations.HttpRule) {
		verb, path := "POST", rule.GetPost()
		if rule.GetGet() != "" {
			verb, path = "GET", rule.GetGet()
		} else if rule.GetPatch() != "" {
			verb, path = "PATCH", rule.GetPatch()
		}
		inPath := map[string]bool{}
		path = parameter.ReplaceAllStringFunc(path, func(p string) string {
			name := camel(parameter.FindStringSubmatch(p)[1])
			inPath[name] = true
			return "{" + name + "}"
		})
		item := d.Paths.Value(path)
		if item == nil || item.GetOperation(verb) == nil {
			t.Errorf("%s %s of %s is missing", verb, path, m.FullName())
			return
		}
		calls++
		op := item.GetOperation(verb)
		if (rule.Body != "") != (op.RequestBody != nil) {
			t.Errorf("%s %s: a body is %v", verb, path, op.RequestBody != nil)
		}
		for name := range inPath {
			if p := op.Parameters.GetByInAndName("path", name); p == nil || !p.Required {
				t.Errorf("%s %s: the parameter %s of the path is missing", verb, path, name)
			}
		}
		if rule.Body == "" && len(op.Parameters) < m.Input().Fields().Len()-1 {
			t.Errorf("%s %s: %d parameters for %d fields", verb, path, len(op.Parameters), m.Input().Fields().Len())
		}
	})
	operations := 0
	for _, item := range d.Paths.Map() {
		operations += len(item.Operations())
	}
	if calls != operations {
		t.Errorf("%d calls, and %d operations", calls, operations)
	}
	if p := d.Paths.Value("/v1/tasks/{id}").Patch.Parameters.GetByInAndName("query", "updateMask"); p == nil {
		t.Error("an update has no updateMask")
	}
}

// camel returns the JSON name of a field.
func camel(name string) string {
	words := strings.Split(name, "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

func TestModelsHaveTheNamesAndTypesOfTheJSON(t *testing.T) {
	t.Parallel()
	d := document(t)
	task := d.Components.Schemas["Task"].Value
	for field, want := range map[string]string{
		"id": `{"description":`, "maxCount": `"format":"int64"`, "beginTime": `"format":"date-time"`, "interval": `"pattern":"^-?[0-9]+`,
		"type": `"$ref":"#/components/schemas/TaskType"`, "params": `"additionalProperties":{"type":"string"}`, "state": `"readOnly":true`,
	} {
		text, err := json.Marshal(task.Properties[field])
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s is %s, want %s", field, text, want)
		}
	}
	for field, schema := range d.Components.Schemas["ListTasksResponse"].Value.Properties {
		required := strings.Join(d.Components.Schemas["ListTasksResponse"].Value.Required, " ")
		if schema.Value.Type.Is("array") != strings.Contains(required, field) {
			t.Errorf("%s of a list of tasks: required are %s", field, required)
		}
	}
	failure := d.Components.Schemas["Error"].Value.Properties["error"].Value
	if got := strings.Join(failure.Required, " "); got != "code message status" {
		t.Errorf("an error has %s", got)
	}
}

// TestExamplesAreWhatTheServiceReadsAndWrites decodes each as its message: unknown fields and
// wrong types are refused.
func TestExamplesAreWhatTheServiceReadsAndWrites(t *testing.T) {
	t.Parallel()
	var all map[string]struct{ Request, Response json.RawMessage }
	if err := json.Unmarshal(examples, &all); err != nil {
		t.Fatal(err)
	}
	decode := func(name string, text json.RawMessage, m protoreflect.MessageDescriptor) {
		known, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 0 {
			if err := protojson.Unmarshal(text, known.New().Interface()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	methods(func(m protoreflect.MethodDescriptor, rule *annotations.HttpRule) {
		name := strings.ToLower(string(m.Name())[:1]) + string(m.Name())[1:]
		e, ok := all[name]
		if !ok {
			return
		}
		request := m.Input()
		if rule.Body != "*" && rule.Body != "" {
			request = request.Fields().ByTextName(rule.Body).Message()
		}
		decode(name+" request", e.Request, request)
		decode(name+" response", e.Response, m.Output())
	})
}
