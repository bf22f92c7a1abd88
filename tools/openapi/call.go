package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
)

// method adds the calls of a method, one for each of its HTTP rules, and returns their number.
func (d *document) method(m *protogen.Method, tag string) (int, error) {
	rule, _ := proto.GetExtension(m.Desc.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil {
		return 0, nil
	}
	rules := append([]*annotations.HttpRule{rule}, rule.AdditionalBindings...)
	for _, r := range rules {
		if err := d.call(m, tag, r, rules); err != nil {
			return 0, err
		}
	}
	return len(rules), nil
}

// binding returns the verb and the path of a rule.
func binding(r *annotations.HttpRule) (verb, path string) {
	switch p := r.Pattern.(type) {
	case *annotations.HttpRule_Get:
		return "get", p.Get
	case *annotations.HttpRule_Post:
		return "post", p.Post
	case *annotations.HttpRule_Patch:
		return "patch", p.Patch
	case *annotations.HttpRule_Put:
		return "put", p.Put
	case *annotations.HttpRule_Delete:
		return "delete", p.Delete
	}
	return "", ""
}

// inPath matches the parameters of a path.
var inPath = regexp.MustCompile(`\{([a-z_.]+)\}`)

// pathFields returns the fields that rules have in their paths.
func pathFields(rules ...*annotations.HttpRule) (fields []string) {
	for _, r := range rules {
		_, path := binding(r)
		for _, m := range inPath.FindAllStringSubmatch(path, -1) {
			fields = append(fields, m[1])
		}
	}
	return fields
}

// call adds the call of one rule. all are the rules of the method.
func (d *document) call(m *protogen.Method, tag string, r *annotations.HttpRule, all []*annotations.HttpRule) error {
	verb, template := binding(r)
	if verb == "" {
		return fmt.Errorf("a rule has no verb")
	}
	op := object{"tags": []string{tag}, "operationId": callName(m, template)}
	if d.operations[op["operationId"].(string)] {
		return fmt.Errorf("two calls are called %s", op["operationId"])
	}
	d.operations[op["operationId"].(string)] = true
	about := words(m.Comments.Leading)
	op["summary"], op["description"] = sentence(about), about
	parameters, path, err := d.parameters(m, r, all, template)
	if err != nil {
		return err
	}
	if len(parameters) > 0 {
		op["parameters"] = parameters
	}
	shown := d.examples[op["operationId"].(string)]
	if r.Body != "" {
		body, err := d.body(m, r, all)
		if err != nil {
			return err
		}
		if shown.Request != nil {
			body["content"].(object)["application/json"].(object)["example"] = shown.Request
		}
		op["requestBody"] = body
	}
	answer, err := d.message(m.Output)
	if err != nil {
		return err
	}
	content := object{"schema": answer}
	if shown.Response != nil {
		content["example"] = shown.Response
	}
	op["responses"] = object{
		"200":     object{"description": "The call succeeded.", "content": object{"application/json": content}},
		"default": object{"$ref": "#/components/responses/Error"},
	}
	if d.paths[path] == nil {
		d.paths[path] = object{}
	}
	d.paths[path][verb] = op
	return nil
}

// callName returns the name of a call: that of its method, with ByKey where a key names the task.
func callName(m *protogen.Method, path string) string {
	name := string(m.Desc.Name())
	name = strings.ToLower(name[:1]) + name[1:]
	if strings.Contains(path, "ByKey/") {
		name += "ByKey"
	}
	return name
}

// parameters returns the parameters of a call, and its path with their names. A field within
// another has its own name alone: the paths /tasks/{id} and /tasks/{task.id} are the same.
func (d *document) parameters(m *protogen.Method, r *annotations.HttpRule, all []*annotations.HttpRule, path string) ([]object, string, error) {
	var list []object
	var fault error
	path = inPath.ReplaceAllStringFunc(path, func(text string) string {
		f := fieldAt(m.Input, strings.Trim(text, "{}"))
		p, err := d.parameter(f, "path")
		if err != nil {
			fault = err
			return text
		}
		p["required"] = true
		list = append(list, p)
		return "{" + f.Desc.JSONName() + "}"
	})
	if r.Body == "*" || fault != nil {
		return list, path, fault
	}
	for _, f := range m.Input.Fields {
		name := string(f.Desc.Name())
		if name == r.Body || slices.Contains(pathFields(all...), name) {
			continue
		}
		more, err := d.inQuery(f)
		if err != nil {
			return nil, "", err
		}
		list = append(list, more...)
	}
	return list, path, nil
}

// inQuery returns the query parameters that set a field: one, or one for each field of a message, or none.
func (d *document) inQuery(f *protogen.Field) (list []object, err error) {
	fields, outer := []*protogen.Field{f}, ""
	if !inQuery(f) && !f.Desc.IsList() && !f.Desc.IsMap() {
		fields, outer = f.Message.Fields, f.Desc.JSONName()+"."
	}
	for _, field := range fields {
		if !inQuery(field) {
			continue
		}
		p, err := d.parameter(field, "query")
		if err != nil {
			return nil, err
		}
		p["name"] = outer + field.Desc.JSONName()
		if behaves(field, annotations.FieldBehavior_REQUIRED) {
			p["required"] = true
		}
		list = append(list, p)
	}
	return list, nil
}

// inQuery reports whether a field can be a query parameter: those that JSON writes as one value,
// and lists of them.
func inQuery(f *protogen.Field) bool {
	if f.Message == nil {
		return true
	}
	switch f.Message.Desc.FullName() {
	case "google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask":
		return !f.Desc.IsList()
	}
	return false
}

// fieldAt returns a field by its path.
func fieldAt(m *protogen.Message, path string) (field *protogen.Field) {
	for step := range strings.SplitSeq(path, ".") {
		i := slices.IndexFunc(m.Fields, func(f *protogen.Field) bool { return string(f.Desc.Name()) == step })
		field = m.Fields[i]
		m = field.Message
	}
	return field
}

func (d *document) parameter(f *protogen.Field, in string) (object, error) {
	schema, err := d.field(f)
	if err != nil {
		return nil, err
	}
	p := object{"name": f.Desc.JSONName(), "in": in, "schema": schema}
	if schema["description"] != nil {
		p["description"] = schema["description"]
		delete(schema, "description")
	}
	delete(schema, "readOnly")
	if one, ok := schema["allOf"].([]object); ok && len(schema) == 1 {
		p["schema"] = one[0]
	}
	return p, nil
}

// body returns the body of a call: one field of the request, or all that are not in the path.
func (d *document) body(m *protogen.Method, r *annotations.HttpRule, all []*annotations.HttpRule) (object, error) {
	var schema object
	var err error
	required := true
	switch without := pathFields(all...); {
	case r.Body != "*":
		schema, err = d.message(fieldAt(m.Input, r.Body).Message)
	case len(without) > 0:
		schema, err = d.model(m.Input, string(m.Desc.Name())+"Body", without)
	default:
		schema, err = d.message(m.Input)
	}
	if r.Body == "*" {
		required = slices.ContainsFunc(m.Input.Fields, func(f *protogen.Field) bool {
			return behaves(f, annotations.FieldBehavior_REQUIRED) && !slices.Contains(pathFields(all...), string(f.Desc.Name()))
		})
	}
	return object{"required": required, "content": object{"application/json": object{"schema": schema}}}, err
}
