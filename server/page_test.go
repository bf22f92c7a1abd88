package server

import (
	"strings"
	"testing"

	"github.com/perceptor/perceptor/task"
)

func TestPagesOfNewestFirst(t *testing.T) {
	first, err := newestFirstOf("bulk", 7, 2, "")
	if err != nil || first.created != task.Never || first.id != 0 || first.limit != 2 {
		t.Fatalf("the first page is %+v, %v", first, err)
	}
	if token := first.next(1, 50, 9); token != "" {
		t.Errorf("a page that is not full has the next token %q", token)
	}
	token := first.next(2, 50, 9)
	if next, err := newestFirstOf("bulk", 7, 3, token); err != nil || next.created != 50 || next.id != 9 || next.limit != 3 {
		t.Errorf("the next page is %+v, %v", next, err)
	}
	foreign := pageToken(first.hash, "50.9.1")
	for name, c := range map[string]struct {
		list   string
		tenant int32
		size   int32
		token  string
		field  string
	}{
		"another list":     {"import", 7, 2, token, "page_token"},
		"another tenant":   {"bulk", 8, 2, token, "page_token"},
		"no token at all":  {"bulk", 7, 2, "nonsense", "page_token"},
		"more than a pair": {"bulk", 7, 2, foreign, "page_token"},
		"a negative size":  {"bulk", 7, -1, "", "page_size"},
	} {
		if _, err := newestFirstOf(c.list, c.tenant, c.size, c.token); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v, want an error about %s", name, err, c.field)
		}
	}
}
