// Package console serves the web console: pages for operators and tenants under
// /console/, rendered in Go.
//
// # How a page is made
//
// A page is one Go file and one template (see [page] and the list pages). Its show
// function calls the API and returns the data of the template. The console has no other
// access: every call goes through the gate of the API, in process, with the credentials
// of the session and the address of the browser. So scopes, quotas and the audit log
// hold as for every other caller, and a page can show nothing that its user could not
// read by perceptorctl.
//
// A page is whole without scripts. A live page is fetched again every few seconds, and
// the new main part is morphed into the old one, so only what has changed is touched
// (static/app.js). Forms are plain: an [action] calls the API, stores its result as a
// notice in a cookie, and redirects to a page, which shows it once.
//
// # Sessions
//
// A session is a cookie, sealed by AES-GCM with a key that all taskds of an installation
// derive from one secret. It has the credentials of up to four logins, so an operator can
// also be a tenant. It ends 30 minutes after the last request of its user, or 12 hours
// after the login. Requests that a live page makes by itself do not count. The console
// stores no sessions: to end all sessions of a token, revoke the token.
//
// # Why a page of another site can do nothing
//
// The cookie is SameSite=Strict and HttpOnly. A POST must come from the same origin, as
// the browser says (Sec-Fetch-Site or Origin), and must have the session's token, which
// each page shows in another form. The Content-Security-Policy allows scripts and styles
// from files of the console only, none inline. Everything that comes from tasks passes
// html/template, which escapes it.
package console
