package task

import (
	"fmt"
	"strings"
)

// TraceParentBytes is the length of a trace context in the format of W3C, version 00.
const TraceParentBytes = 55

// TraceParentFault says why a trace context is invalid, or returns "". The format is
// version 00 of https://www.w3.org/TR/trace-context: "00-TRACEID-SPANID-FLAGS".
func TraceParentFault(s string) string {
	hex := func(part string) bool {
		return strings.Trim(part, "0123456789abcdef") == ""
	}
	if len(s) != TraceParentBytes || s[:3] != "00-" || s[35] != '-' || s[52] != '-' ||
		!hex(s[3:35]) || !hex(s[36:52]) || !hex(s[53:]) {
		return fmt.Sprintf("%.60q is not a W3C traceparent of version 00", s)
	}
	if strings.Trim(s[3:35], "0") == "" || strings.Trim(s[36:52], "0") == "" {
		return fmt.Sprintf("%q has an id that is all zeros", s)
	}
	return ""
}

// Sampled reports whether the trace of a valid context is recorded.
func Sampled(traceParent string) bool {
	return strings.IndexByte("13579bdf", traceParent[TraceParentBytes-1]) >= 0
}
