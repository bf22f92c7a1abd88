package server

import (
	"encoding/json"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/perceptor/perceptor/proto/openapi"
)

// schemas has the schema of the answer of each call by its name in the OpenAPI document, and
// that of errors as "".
var schemas = sync.OnceValues(func() (map[string]*openapi3.Schema, error) {
	d, err := openapi3.NewLoader().LoadFromData(openapi.JSON)
	if err != nil {
		return nil, err
	}
	known := map[string]*openapi3.Schema{"": d.Components.Schemas["Error"].Value}
	for _, item := range d.Paths.Map() {
		for _, op := range item.Operations() {
			known[op.OperationID] = op.Responses.Status(http.StatusOK).Value.Content.Get("application/json").Schema.Value
		}
	}
	return known, nil
})

// checkDescribed checks that the answer of a method is what the OpenAPI document says.
func (b *bundle) checkDescribed(method string, a answer) {
	b.t.Helper()
	name := ""
	if a.http == http.StatusOK {
		name = path.Base(method)
		name = strings.ToLower(name[:1]) + name[1:]
	}
	schema := must(schemas())(b.t)[name]
	if schema == nil {
		b.t.Fatalf("the document has no call %s", name)
	}
	var v any
	if err := json.Unmarshal(a.body, &v); err != nil {
		b.t.Fatalf("%v in %s", err, a.body)
	}
	if err := schema.VisitJSON(v, openapi3.VisitAsResponse()); err != nil {
		b.t.Errorf("the answer of %s is not what the OpenAPI document says: %v\n%s", method, err, a.body)
	}
}
