// Command openapi is a plugin of buf that writes one OpenAPI 3.0 document of all services with an
// HTTP form, openapi.json.
//
// It says what the JSON of the protobuf library and of grpc-gateway is: 64-bit integers and
// durations are texts, enums are names, a call with a body has its other fields in the query.
// Names of models are those of the messages without their package. Descriptions are the comments
// of the protos. Examples and what else no proto says come from a file, which the parameter
// examples names.
//
// [document] is the document; schema.go has the models, call.go the calls.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	var flags flag.FlagSet
	examples := flags.String("examples", "", "JSON `file` with examples by call")
	protogen.Options{ParamFunc: flags.Set}.Run(func(p *protogen.Plugin) error {
		p.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		known, err := readExamples(*examples)
		if err != nil {
			return err
		}
		d := newDocument(known)
		for _, f := range p.Files {
			if !f.Generate {
				continue
			}
			for _, s := range f.Services {
				if err := d.service(s); err != nil {
					return err
				}
			}
		}
		for call := range known {
			if !d.operations[call] {
				return fmt.Errorf("the example %s belongs to no call", call)
			}
		}
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(d.whole()); err != nil {
			return err
		}
		_, err = p.NewGeneratedFile("openapi.json", "").Write(text.Bytes())
		return err
	})
}

// example is the request and the answer of a call.
type example struct {
	Request  json.RawMessage `json:"request"`
	Response json.RawMessage `json:"response"`
}

func readExamples(file string) (map[string]example, error) {
	known := map[string]example{}
	if file == "" {
		return known, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return known, json.Unmarshal(text, &known)
}
