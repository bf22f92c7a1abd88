// Package jsonfault says in plain words what is wrong with JSON that should be a message of the
// API: which field, which value, and what to write instead.
//
// The protobuf library decides what is right. It stops at the first fault, gives a line and a
// column instead of a path, and names its own types, which callers do not know. So a text that
// it has refused is walked here along the fields of the message: [Faults] gives each part to the
// library alone, descends into those that it refuses, and describes the smallest of them. A part
// that the library takes costs one more decoding, so a large text with few faults costs about as
// much as three decodings.
//
// Paths have the names of the proto files, as all other faults of the API do, however the JSON
// spells them: tasks[3].end_time, params["k"].
package jsonfault
