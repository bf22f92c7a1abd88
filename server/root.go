package server

import (
	"encoding/json"
	"net/http"
	"strings"
)

// rootPage is the page of / for browsers. It has no style and no script, which [secure] forbids.
const rootPage = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Perceptor</title>
<h1>Perceptor</h1>
<p>This is the HTTP API. Calls need the header <code>Authorization: Bearer TOKEN</code>.</p>
<ul>
<li><a href="/v1/openapi.json">/v1/openapi.json</a>: all calls (OpenAPI)</li>
CONSOLE<li>/v1/identity: who a token is</li>
</ul>
</html>
`

// serveRoot answers a request for /, which needs no token: what is here. Browsers get a page,
// programs JSON.
func serveRoot(console bool) http.HandlerFunc {
	links := map[string]string{"openapi": "/v1/openapi.json", "identity": "/v1/identity"}
	item := ""
	if console {
		links["console"] = ConsolePath
		item = `<li><a href="` + ConsolePath + `">` + ConsolePath + "</a>: the console</li>\n"
	}
	page := []byte(strings.Replace(rootPage, "CONSOLE", item, 1))
	data, err := json.Marshal(map[string]any{
		"service": "Perceptor", "authorization": "Calls need the header Authorization: Bearer TOKEN.", "links": links,
	})
	if err != nil {
		panic(err) // these are texts
	}
	data = append(data, '\n')
	return func(w http.ResponseWriter, r *http.Request) {
		body, kind := data, "application/json"
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			body, kind = page, "text/html; charset=utf-8"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(body) // the client may have gone; that is not an error
	}
}
