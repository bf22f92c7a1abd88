package console

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestTextsShowWhatWouldTurnThem(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{
		"<p>a\u202egpj.exe</p>":                                       `<p>a\u202egpj.exe</p>`,
		"<title>\u2066x\u2069</title>\u200f":                          `<title>\u2066x\u2069</title>\u200f`,
		"<a href=\"x\" title=\"\u202e\">\u061c\u200e</a>":             "<a href=\"x\" title=\"\u202e\">" + `\u061c\u200e</a>`,
		"<textarea a=\"b\">x\u202ey</textarea><pre>\u202d</pre>":      "<textarea a=\"b\">x\u202ey</textarea>" + `<pre>\u202d</pre>`,
		"<p>\u05e9\u05dc\u05d5\u05dd, \U0001f468\u200d\U0001f469</p>": "<p>\u05e9\u05dc\u05d5\u05dd, \U0001f468\u200d\U0001f469</p>",
		"<p>\u202e<b": `<p>\u202e<b`,
	} {
		if got := string(visible([]byte(page))); got != want {
			t.Errorf("%q is shown as %q, want %q", page, got, want)
		}
	}
}

func TestAPageShowsWhatWouldTurnItsTexts(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	const name = "invoice\u202efdp.exe"
	b.api.answers["GetTask"] = func(context.Context, proto.Message) (proto.Message, error) {
		return &perceptorv1.Task{Id: 513, Kind: name, Params: map[string]string{name: name}, State: perceptorv1.Task_SCHEDULED}, nil
	}
	b.api.answers["ExplainTask"] = func(ctx context.Context, r proto.Message) (proto.Message, error) {
		task, err := b.api.answers["GetTask"](ctx, r)
		return &perceptorv1.ExplainTaskResponse{Task: task.(*perceptorv1.Task)}, err
	}
	if _, body := b.get("tasks/513"); strings.Contains(body, name) || strings.Count(body, `invoice\u202efdp.exe`) < 3 {
		t.Errorf("the page shows the name as it is: %s", body)
	}
	if _, body := b.get("tasks/513/edit"); !strings.Contains(body, name+"="+name) {
		t.Errorf("the form would change the params: %s", body)
	}
}
