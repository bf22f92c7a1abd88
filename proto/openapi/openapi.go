// Package openapi holds the OpenAPI 2.0 document of the HTTP interface, which
// is generated from proto/perceptor/v1 and served by taskd at /v1/openapi.json.
package openapi

import _ "embed"

// JSON is the document. It must not be modified.
//
//go:embed perceptor.swagger.json
var JSON []byte
