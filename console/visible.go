package console

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// visible returns a page whose texts show the characters that change the direction of what follows (UAX #9) by their
// numbers: a browser obeys them, and then a name looks like another one. Attributes and the fields of forms stay as they are,
// because they are sent back.
func visible(page []byte) []byte {
	if !bytes.ContainsFunc(page, turns) {
		return page
	}
	out := make([]byte, 0, len(page)+64)
	for len(page) > 0 {
		n := bytes.IndexByte(page, '<') // templates escape those of texts, and any > of attributes
		if n < 0 {
			n = len(page)
		}
		for _, r := range string(page[:n]) {
			if turns(r) {
				out = fmt.Appendf(out, `\u%04x`, r)
			} else {
				out = utf8.AppendRune(out, r)
			}
		}
		page = page[n:]
		n = tagLength(page)
		out, page = append(out, page[:n]...), page[n:]
	}
	return out
}

// kept are the begins and the ends of elements whose text stays as it is.
var kept = [][2][]byte{{[]byte("<textarea"), []byte("</textarea>")}, {[]byte("<script"), []byte("</script>")}, {[]byte("<style"), []byte("</style>")}}

// tagLength returns the length of the tag with which a page begins, or of the element if its text stays as it is.
func tagLength(page []byte) int {
	end := []byte(">")
	for _, k := range kept {
		if bytes.HasPrefix(page, k[0]) {
			end = k[1]
		}
	}
	if i := bytes.Index(page, end); i >= 0 {
		return i + len(end)
	}
	return len(page)
}

// turns reports whether a character changes the direction of text.
func turns(r rune) bool {
	return r == 0x061c || r == 0x200e || r == 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}
