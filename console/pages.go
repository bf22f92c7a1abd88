package console

import (
	"net/http"
	"slices"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// page is a page of the console. Its template is templates/NAME.html.
type page struct {
	// path is below /console/, as [http.ServeMux] has it.
	path, name, title string
	// section is the entry of the navigation that is marked; it is the name of its page.
	section string
	// live is how often the page is fetched again, in seconds; 0: never.
	live int
	// charts says that the page has pictures.
	charts bool
	// form says that the page also takes POST, for forms that are shown again.
	form bool
	// query names the parameters that links from the page to itself keep, besides tenant and page.
	query []string
	// times names the parameters that are instants. In addresses they have a zone, see [view.zoned].
	times []string
	// show returns the data of the template, or a [redirectTo].
	show func(*view) (any, error)
}

// redirectTo is what a page returns that leads elsewhere.
type redirectTo string

func (p *page) methods() []string {
	if p.form {
		return []string{http.MethodGet, http.MethodPost}
	}
	return []string{http.MethodGet}
}

// action is what a form asks for. It ends with a redirect.
type action struct {
	path string
	// back is the page to which a failed action leads, below /console/. {id} and such
	// stand for the values of the path.
	back string
	do   func(*view) (done, error)
}

// done is the result of an action.
type done struct {
	text string
	// to is the page that shows it; "": back.
	to string
	// link and linkText lead from the notice to what the action has made.
	link, linkText string
	// refused says that nothing was done; the text says why.
	refused bool
}

// pages and actions are all of them. Each page has a file of its own.
var (
	pages = slices.Concat(
		overviewPages, tenantPages, taskPages, editPages, bulkPages, importPages, deadPages, auditPages, forecastPages, schedulePages, calendarPages, clusterPages,
	)
	actions = slices.Concat(
		tenantActions, taskActions, bulkActions, importActions, deadActions, clusterActions,
	)
)

// unknownPage answers paths that belong to no page.
var unknownPage = page{title: "Not found", show: func(v *view) (any, error) {
	return nil, errUnknownPage
}}

// section is an entry of the navigation. It is shown to logins with one of the scopes.
type section struct {
	name, Title, path string
	tenant            []perceptorv1.Token_Scope // of a tenant
	operator          []perceptorv1.Token_Scope // of the installation
}

// ofTenant reports whether the page is always about one tenant.
func (s *section) ofTenant() bool {
	return len(s.operator) == 0 || slices.Equal(s.operator, scopes{scopeInspect})
}

const (
	scopeRead        = perceptorv1.Token_READ
	scopeOperate     = perceptorv1.Token_OPERATE
	scopeAdd         = perceptorv1.Token_ADD
	scopeTenantAdmin = perceptorv1.Token_TENANT_ADMIN
	scopeAdmin       = perceptorv1.Token_ADMIN
	scopeAdminRead   = perceptorv1.Token_ADMIN_READ
	scopeInspect     = perceptorv1.Token_INSPECT
)

type scopes = []perceptorv1.Token_Scope

var sections = []section{
	{"overview", "Overview", "", scopes{scopeRead}, scopes{scopeAdminRead, scopeInspect}},
	{"tenants", "Tenants", "tenants", scopes{scopeTenantAdmin}, scopes{scopeAdminRead}},
	{"tasks", "Tasks", "tasks", scopes{scopeRead}, scopes{scopeInspect}},
	{"dead", "Dead runs", "dead", scopes{scopeRead}, scopes{scopeInspect}},
	{"bulk", "Bulk operations", "bulk", scopes{scopeRead}, scopes{scopeInspect}},
	{"forecast", "Forecast", "forecast", scopes{scopeRead}, scopes{scopeAdminRead}},
	{"schedule", "Schedule", "schedule", scopes{scopeRead, scopeAdd}, nil},
	{"cluster", "Cluster", "cluster", nil, scopes{scopeAdminRead}},
	{"audit", "Audit", "audit", scopes{scopeRead, scopeTenantAdmin}, scopes{scopeAdminRead}},
}
