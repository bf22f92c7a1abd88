package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/perceptor/perceptor/task"
)

// A page token is a cursor behind a hash of the request's filters, so that it
// cannot be used with other filters. The hash is not a signature: a cursor is
// validated like every other input.
const (
	tokenVersion   = 1
	tokenHashBytes = 8
	maxTokenBytes  = 200
)

// pageHash hashes the call, the tenant and the filters. The page size is not
// included, because it may change from page to page.
func pageHash(parts ...string) []byte {
	h := sha256.New()
	for _, p := range parts {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write([]byte(p))
	}
	return h.Sum(nil)[:tokenHashBytes]
}

// pageToken returns the token of the page after cursor; "" if there is none.
func pageToken(hash []byte, cursor string) string {
	if cursor == "" {
		return ""
	}
	raw := append(append([]byte{tokenVersion}, hash...), cursor...)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// cursorOf is the inverse of [pageToken].
func cursorOf(hash []byte, token string) (string, *task.Fault) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token[:min(len(token), maxTokenBytes)])
	if err != nil || len(token) > maxTokenBytes || len(raw) <= 1+tokenHashBytes || raw[0] != tokenVersion {
		return "", &task.Fault{Field: "page_token", Message: "was not issued by this service"}
	}
	if !bytes.Equal(raw[1:1+tokenHashBytes], hash) {
		return "", &task.Fault{Field: "page_token", Message: "belongs to a call with other fields or of another tenant"}
	}
	cursor := string(raw[1+tokenHashBytes:])
	if task.NameFault(cursor, maxTokenBytes) != "" {
		return "", &task.Fault{Field: "page_token", Message: "was not issued by this service"}
	}
	return cursor, nil
}

// A newestFirst is a page of a list whose newest entries come first: up to limit entries, after the one with
// created and id.
type newestFirst struct {
	hash    []byte
	limit   int
	created task.Instant
	id      int64
}

// newestFirstOf reads which page of a tenant's list is asked for.
func newestFirstOf(list string, tenant int32, size int32, token string) (p newestFirst, err error) {
	p = newestFirst{hash: pageHash(list, strconv.Itoa(int(tenant))), created: task.Never}
	limit, badSize := pageSize(size)
	text, badToken := cursorOf(p.hash, token)
	if text != "" {
		if _, err := fmt.Sscanf(text, "%d.%d", &p.created, &p.id); err != nil || text != createdCursor(p.created, p.id) {
			badToken = &task.Fault{Field: "page_token", Message: "was not issued by this service"}
		}
	}
	if faults := present(badSize, badToken); len(faults) > 0 {
		return newestFirst{}, invalid(faults)
	}
	p.limit = limit
	return p, nil
}

func createdCursor(created task.Instant, id int64) string { return fmt.Sprintf("%d.%d", created, id) }

// next returns the token of the page after one with n entries, which ends with the given one.
func (p newestFirst) next(n int, created task.Instant, id int64) string {
	if n < p.limit {
		return ""
	}
	return pageToken(p.hash, createdCursor(created, id))
}

// pageSize returns the effective page size.
func pageSize(size int32) (int, *task.Fault) {
	switch {
	case size < 0 || size > task.MaxPageSize:
		f := faultf("page_size", "%d is not between 0 and %d", size, task.MaxPageSize)
		return 0, &f
	case size == 0:
		return task.DefaultPageSize, nil
	}
	return int(size), nil
}

// present returns the faults that are not nil.
func present(faults ...*task.Fault) []task.Fault {
	var list []task.Fault
	for _, f := range faults {
		if f != nil {
			list = append(list, *f)
		}
	}
	return list
}
