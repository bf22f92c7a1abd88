package main

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// modelName returns the name of a message or an enum without its package: TaskType for
// perceptor.v1.Task.Type.
func modelName(d protoreflect.Descriptor) string {
	return strings.ReplaceAll(strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+"."), ".", "")
}

// add adds a model, once.
func (d *document) add(name, source string, make func() object) error {
	if other, ok := d.sources[name]; ok {
		if other != source {
			return fmt.Errorf("%s and %s are both called %s", other, source, name)
		}
		return nil
	}
	d.sources[name] = source // a model may contain itself
	d.schemas[name] = make()
	return nil
}

// message returns the schema of a message.
func (d *document) message(m *protogen.Message) (object, error) {
	switch m.Desc.FullName() {
	case "google.protobuf.Timestamp":
		return object{"type": "string", "format": "date-time", "example": "2026-11-25T10:00:00Z"}, nil
	case "google.protobuf.Duration":
		return object{"type": "string", "pattern": `^-?[0-9]+(\.[0-9]{1,9})?s$`, "example": "3600s"}, nil
	case "google.protobuf.FieldMask":
		return object{"type": "string", "example": "maxCount,endTime"}, nil
	case "google.protobuf.Value":
		return object{}, nil // any JSON
	case "google.protobuf.Any":
		return object{"type": "object", "additionalProperties": true}, nil
	}
	return d.model(m, modelName(m.Desc), nil)
}

// model adds a message without some of its fields, and returns a reference to it.
func (d *document) model(m *protogen.Message, name string, without []string) (object, error) {
	var fault error
	err := d.add(name, string(m.Desc.FullName()), func() object {
		properties, required := object{}, []string{}
		for _, f := range m.Fields {
			if slices.Contains(without, string(f.Desc.Name())) {
				continue
			}
			schema, err := d.field(f)
			if err != nil {
				fault = err
			}
			properties[f.Desc.JSONName()] = schema
			if always(m, f) {
				required = append(required, f.Desc.JSONName())
			}
		}
		out := object{"type": "object", "properties": properties}
		if text := words(m.Comments.Leading); text != "" {
			out["description"] = text
		}
		if len(required) > 0 {
			out["required"] = required
		}
		return out
	})
	if err == nil {
		err = fault
	}
	return reference(name), err
}

// always reports whether a message always has a field: what a request needs, and lists of
// answers. Resources are part of updates, too, which have only what changes.
func always(m *protogen.Message, f *protogen.Field) bool {
	switch name := string(m.Desc.Name()); {
	case strings.HasSuffix(name, "Request"):
		return behaves(f, annotations.FieldBehavior_REQUIRED)
	case strings.HasSuffix(name, "Response"):
		return f.Desc.IsList()
	}
	return false
}

func behaves(f *protogen.Field, b annotations.FieldBehavior) bool {
	list, _ := proto.GetExtension(f.Desc.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(list, b)
}

// field returns the schema of a field with its description.
func (d *document) field(f *protogen.Field) (object, error) {
	var schema object
	var err error
	switch {
	case f.Desc.IsMap():
		var value object
		value, err = d.value(f.Message.Fields[1])
		schema = object{"type": "object", "additionalProperties": value}
	case f.Desc.IsList():
		var item object
		item, err = d.value(f)
		schema = object{"type": "array", "items": item}
	default:
		schema, err = d.value(f)
	}
	if err != nil {
		return nil, err
	}
	more := object{}
	if text := words(f.Comments.Leading); text != "" {
		more["description"] = text
	}
	if behaves(f, annotations.FieldBehavior_OUTPUT_ONLY) {
		more["readOnly"] = true
	}
	if schema["$ref"] != nil && len(more) > 0 { // a reference has nothing beside it
		schema = object{"allOf": []object{schema}}
	}
	for name, v := range more {
		schema[name] = v
	}
	return schema, nil
}

// value returns the schema of one value of a field.
func (d *document) value(f *protogen.Field) (object, error) {
	switch f.Desc.Kind() {
	case protoreflect.BoolKind:
		return object{"type": "boolean"}, nil
	case protoreflect.StringKind:
		return object{"type": "string"}, nil
	case protoreflect.BytesKind:
		return object{"type": "string", "format": "byte"}, nil
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return object{"type": "number", "format": f.Desc.Kind().String()}, nil
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return object{"type": "integer", "format": "int32"}, nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return object{"type": "integer", "format": "int64"}, nil
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return object{"type": "string", "format": "int64"}, nil
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return object{"type": "string", "format": "uint64"}, nil
	case protoreflect.EnumKind:
		return d.enum(f.Enum)
	}
	return d.message(f.Message)
}

// enum adds an enum, and returns a reference to it.
func (d *document) enum(e *protogen.Enum) (object, error) {
	name := modelName(e.Desc)
	err := d.add(name, string(e.Desc.FullName()), func() object {
		var names []string
		var text strings.Builder
		text.WriteString(words(e.Comments.Leading))
		for _, v := range e.Values {
			names = append(names, string(v.Desc.Name()))
			if about := words(v.Comments.Leading); about != "" {
				fmt.Fprintf(&text, "\n\n%s: %s", v.Desc.Name(), about)
			}
		}
		return object{"type": "string", "enum": names, "description": strings.TrimSpace(text.String())}
	})
	return reference(name), err
}
