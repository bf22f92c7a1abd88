package main

import (
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/compiler/protogen"
)

// object is an object of JSON. It is written with its names sorted.
type object map[string]any

// document is what is known of the document so far.
type document struct {
	examples   map[string]example
	paths      map[string]object
	schemas    map[string]any
	sources    map[string]string // what each schema is made of
	operations map[string]bool
	tags       []object
}

func newDocument(examples map[string]example) *document {
	return &document{
		examples: examples, paths: map[string]object{}, schemas: map[string]any{}, sources: map[string]string{}, operations: map[string]bool{},
	}
}

// description says what holds for all calls.
const description = "Durable delayed and recurring tasks. 64-bit integers are strings in JSON, durations are seconds with an s (\"3600s\"), " +
	"times are RFC 3339. Values that are not set are left out. Unknown fields are refused. Answers may get further fields, and enums further values."

// whole returns the document.
func (d *document) whole() object {
	d.schemas["Error"] = errorSchema()
	return object{
		"openapi": "3.0.3",
		"info": object{
			"title": "Perceptor", "version": "v1", "description": description,
			"license": object{"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
		},
		"servers":  []object{{"url": "/", "description": "The taskd that serves this document."}},
		"security": []object{{"bearer": []string{}}},
		"tags":     d.tags,
		"paths":    d.paths,
		"components": object{
			"schemas": d.schemas,
			"securitySchemes": object{
				"bearer": object{"type": "http", "scheme": "bearer", "description": "The secret of a token."},
			},
			"responses": object{
				"Error": object{
					"description": "The call failed. The reason in details says why.",
					"content": object{"application/json": object{
						"schema":  reference("Error"),
						"example": errorExample,
					}},
				},
			},
		},
	}
}

// errorSchema is the model of errors: AIP-193.
func errorSchema() object {
	var names []string
	for number := int32(1); code.Code_name[number] != ""; number++ {
		names = append(names, code.Code_name[number])
	}
	detail := object{
		"type": "object", "description": "A message of google.rpc, such as ErrorInfo with reason and domain, BadRequest with fieldViolations, RetryInfo with retryDelay.",
		"properties":           object{"@type": object{"type": "string", "description": "The type of the message."}},
		"required":             []string{"@type"},
		"additionalProperties": true,
	}
	return object{
		"type": "object", "description": "An error, in the form of AIP-193.", "required": []string{"error"},
		"properties": object{"error": object{
			"type": "object", "required": []string{"code", "message", "status"},
			"properties": object{
				"code":    object{"type": "integer", "format": "int32", "description": "The HTTP status."},
				"message": object{"type": "string", "description": "What is wrong, for people. It may change."},
				"status":  object{"type": "string", "enum": names, "description": "The code of the error."},
				"details": object{"type": "array", "items": detail, "description": "For programs: the reason, the fields that are wrong, the delay after which a retry may succeed."},
			},
		}},
	}
}

var errorExample = object{"error": object{
	"code": 404, "message": "no such task: 524739", "status": "NOT_FOUND",
	"details": []object{{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND", "domain": "perceptor"}},
}}

func reference(schema string) object {
	return object{"$ref": "#/components/schemas/" + schema}
}

// service adds the calls of a service that have an HTTP form.
func (d *document) service(s *protogen.Service) error {
	tag := strings.TrimSuffix(string(s.Desc.Name()), "Service")
	calls := 0
	for _, m := range s.Methods {
		n, err := d.method(m, tag)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Desc.FullName(), err)
		}
		calls += n
	}
	if calls > 0 {
		d.tags = append(d.tags, object{"name": tag, "description": words(s.Comments.Leading)})
	}
	return nil
}

// words returns a comment as paragraphs without line breaks.
func words(c protogen.Comments) string {
	paragraphs := strings.Split(strings.TrimSpace(string(c)), "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = strings.Join(strings.Fields(p), " ")
	}
	return strings.Join(paragraphs, "\n\n")
}

// sentence returns the first sentence of a text, without its full stop.
func sentence(text string) string {
	text, _, _ = strings.Cut(text, "\n\n")
	if first, _, ok := strings.Cut(text, ". "); ok {
		text = first
	}
	return strings.TrimSuffix(text, ".")
}
