package task

import (
	"fmt"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/perceptor/perceptor/internal/jsonsyntax"
)

// Payload is what a task passes to its handler beside its params: at least one byte, and its
// content type.
type Payload struct {
	Data []byte
	// ContentType is the media type of Data. "" stands for [DefaultContentType].
	ContentType string
}

const (
	// DefaultContentType is the media type of payloads whose caller gives none.
	DefaultContentType = "application/octet-stream"
	// JSONContentType is the media type of JSON.
	JSONContentType = "application/json"
	// MaxContentTypeBytes bounds a content type.
	MaxContentTypeBytes = 255
)

// Size returns the bytes that count against the limit of params; 0 for none.
func (p *Payload) Size() int {
	if p == nil {
		return 0
	}
	return len(p.Data)
}

// StoredType returns the content type as it is stored and delivered: "" for the default.
func (p *Payload) StoredType() string {
	if p.ContentType == DefaultContentType {
		return ""
	}
	return p.ContentType
}

// Fault returns the first broken rule, and false if there is none. The field is relative to
// the payload. The limit of params and payload together is not checked.
func (p *Payload) Fault() (Fault, bool) {
	if len(p.Data) == 0 {
		return Fault{"data", "is empty; a task without a payload has no payload"}, true
	}
	if msg := ContentTypeFault(p.ContentType); msg != "" {
		return Fault{"content_type", msg}, true
	}
	if IsJSON(p.ContentType) {
		if msg := jsonFault(p.Data); msg != "" {
			return Fault{"data", fmt.Sprintf("is not JSON, which its content type %.80s promises: %s", p.ContentType, msg)}, true
		}
	}
	return Fault{}, false
}

// under returns a fault of the payload with its path in a task or a patch.
func (f Fault) under(parent string) Fault { return Fault{parent + "." + f.Field, f.Message} }

// ContentTypeFault says why a content type is invalid, or returns "". The empty one is valid.
func ContentTypeFault(t string) string {
	if t == "" {
		return ""
	}
	if len(t) > MaxContentTypeBytes {
		return fmt.Sprintf("has %d bytes; at most %d are allowed", len(t), MaxContentTypeBytes)
	}
	for i := range len(t) {
		if t[i] < ' ' || t[i] > '~' {
			return fmt.Sprintf("%q has characters other than printable ASCII", t)
		}
	}
	if base, _, err := mime.ParseMediaType(t); err != nil || !strings.Contains(base, "/") || strings.HasPrefix(base, "/") {
		return fmt.Sprintf("%q is not a media type such as application/json or text/csv; charset=utf-8", t)
	}
	return ""
}

// IsJSON reports whether data of a content type is JSON: application/json, and types with the
// suffix +json of RFC 6839.
func IsJSON(contentType string) bool {
	base, _, _ := strings.Cut(contentType, ";")
	base = strings.ToLower(strings.TrimSpace(base))
	return base == JSONContentType || strings.HasSuffix(base, "+json")
}

// IsText reports whether people can read data of a content type: text, JSON and XML.
func IsText(contentType string) bool {
	base, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	base = strings.TrimSpace(base)
	return strings.HasPrefix(base, "text/") || base == "application/xml" || strings.HasSuffix(base, "+xml") || IsJSON(contentType)
}

// jsonFault says where data is not JSON in UTF-8, or returns "".
func jsonFault(data []byte) string {
	if fault := jsonsyntax.Fault(data); fault != "" {
		return fault
	}
	if utf8.Valid(data) { // the library reads texts that are not
		return ""
	}
	at := 0
	for at < len(data) {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	return fmt.Sprintf("no UTF-8 at byte %d", at+1)
}
