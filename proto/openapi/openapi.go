// Package openapi holds the OpenAPI 3.0 document of the HTTP interface, which taskd serves at
// /v1/openapi.json. tools/openapi generates it from proto/perceptor/v1 and examples.json.
package openapi

import _ "embed"

// JSON is the document. It must not be modified.
//
//go:embed openapi.json
var JSON []byte
