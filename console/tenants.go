package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var (
	tenantPages = []page{
		{path: "tenants", name: "tenants", title: "Tenants", section: "tenants", live: 10, query: []string{"q", "order"}, show: (*view).listTenants},
		{path: "tenants/{name}", name: "tenant", title: "Tenant", section: "tenants", live: 5, charts: true, show: (*view).showTenant},
		{path: "tenants/{name}/edit", name: "edittenant", title: "Settings", section: "tenants", form: true, show: (*view).editTenant},
	}
	tenantActions = []action{
		{path: "tenants/{name}/pause", back: "tenants/{name}", do: pauseTenant},
		{path: "tenants/{name}/resume", back: "tenants/{name}", do: resumeTenant},
		{path: "tenants/{name}/revoke/{token}", back: "tenants/{name}", do: revokeToken},
	}
)

func (v *view) listTenants() (any, error) {
	if !v.session.of("").has(scopeAdminRead) {
		if v.Tenant == "" {
			return nil, errNoLogin
		}
		return redirectTo(v.URL("tenants/" + v.Tenant)), nil
	}
	ctx, err := v.asOperator()
	if err != nil {
		return nil, err
	}
	order, err := choice[perceptorv1.ListTenantFiguresRequest_Order](v, "order", perceptorv1.ListTenantFiguresRequest_Order_value)
	if err != nil {
		return nil, err
	}
	list, err := v.monitoring.ListTenantFigures(ctx, &perceptorv1.ListTenantFiguresRequest{
		Tenant: v.Query("q"), PageSize: 2 * pageSize, PageToken: v.Query("page"), OrderBy: order,
	})
	if status.Code(err) == codes.FailedPrecondition { // no figures are stored
		return v.namesOfTenants(ctx)
	}
	return list, err
}

// namesOfTenants returns the tenants without figures.
func (v *view) namesOfTenants(ctx context.Context) (any, error) {
	all, err := v.admin.ListTenants(ctx, &perceptorv1.ListTenantsRequest{PageSize: 2 * pageSize, PageToken: v.Query("page")})
	if err != nil {
		return nil, err
	}
	list := &perceptorv1.ListTenantFiguresResponse{NextPageToken: all.NextPageToken, TenantCount: int32(len(all.Tenants))}
	for _, t := range all.Tenants {
		list.Tenants = append(list.Tenants, &perceptorv1.TenantFigures{Tenant: t.Name})
	}
	return list, nil
}

// tenantData is the data of the page of a tenant.
type tenantData struct {
	*perceptorv1.Tenant
	Figures  *perceptorv1.TenantFigures
	Tokens   []*perceptorv1.Token
	Problems map[string]*problem
}

func (v *view) showTenant() (any, error) {
	name := v.r.PathValue("name")
	v.Tenant = name
	d := &tenantData{Problems: map[string]*problem{}}
	ctx, err := v.asAdmin()
	if err != nil {
		return nil, err
	}
	if d.Tenant, err = v.admin.GetTenant(ctx, &perceptorv1.GetTenantRequest{Name: name}); err != nil {
		return nil, err
	}
	tokens, err := v.admin.ListTokens(ctx, &perceptorv1.ListTokensRequest{Tenant: name})
	if err := v.missingPart(d.Problems, "tokens", err); err != nil {
		return nil, err
	}
	d.Tokens = tokens.GetTokens()
	d.Figures, err = v.figuresOf(name)
	return d, v.missingPart(d.Problems, "figures", err)
}

// figuresOf returns the figures of a tenant, as an operator or the tenant itself.
func (v *view) figuresOf(name string) (*perceptorv1.TenantFigures, error) {
	if !v.session.of("").has(scopeAdminRead) {
		ctx, err := v.asTenant()
		if err != nil {
			return nil, err
		}
		return v.monitoring.GetTenantFigures(ctx, &perceptorv1.GetTenantFiguresRequest{})
	}
	ctx, err := v.asOperator()
	if err != nil {
		return nil, err
	}
	list, err := v.monitoring.ListTenantFigures(ctx, &perceptorv1.ListTenantFiguresRequest{Tenant: name, WithPoints: true})
	if err != nil {
		return nil, err
	}
	if len(list.Tenants) == 0 {
		return nil, status.Error(codes.NotFound, "no figures of the tenant are stored")
	}
	return list.Tenants[0], nil
}

func pauseTenant(v *view) (done, error) {
	name := v.r.PathValue("name")
	ctx, err := v.asOperator()
	if err != nil {
		return done{}, err
	}
	_, err = v.admin.PauseTenant(ctx, &perceptorv1.PauseTenantRequest{Name: name})
	return done{text: "Tenant " + name + " is paused: none of its runs is claimed.", to: v.URL("tenants/" + name)}, err
}

func resumeTenant(v *view) (done, error) {
	name := v.r.PathValue("name")
	ctx, err := v.asOperator()
	if err != nil {
		return done{}, err
	}
	_, err = v.admin.ResumeTenant(ctx, &perceptorv1.ResumeTenantRequest{Name: name})
	return done{text: "Tenant " + name + " is resumed.", to: v.URL("tenants/" + name)}, err
}

func revokeToken(v *view) (done, error) {
	ctx, err := v.asAdmin()
	if err != nil {
		return done{}, err
	}
	id := v.r.PathValue("token")
	_, err = v.admin.RevokeToken(ctx, &perceptorv1.RevokeTokenRequest{Id: id})
	return done{text: "Token " + id + " is revoked.", to: v.URL("tenants/" + v.r.PathValue("name"))}, err
}

// tenantForm is the data of the page for settings.
type tenantForm struct {
	Tenant  *perceptorv1.Tenant
	Fields  []*tenantField
	Problem *problem
}

// tenantField is a field of the form, with what stores its text.
type tenantField struct {
	field
	store func(t *perceptorv1.Tenant, text string) bool
}

// Faults are the fields with faults.
func (d *tenantForm) Faults() (faults []*field) {
	for _, f := range d.Fields {
		if f.Fault != "" {
			faults = append(faults, &f.field)
		}
	}
	return faults
}

// editTenant shows the settings, or stores those that were changed.
func (v *view) editTenant() (any, error) {
	name := v.r.PathValue("name")
	v.Tenant = name
	ctx, err := v.asOperator()
	if err != nil {
		return nil, err
	}
	t, err := v.admin.GetTenant(ctx, &perceptorv1.GetTenantRequest{Name: name})
	if err != nil {
		return nil, err
	}
	d := &tenantForm{Tenant: t, Fields: tenantFields(t)}
	if v.r.Method != "POST" {
		return d, nil
	}
	change := &perceptorv1.UpdateTenantRequest{Name: name, Tenant: &perceptorv1.Tenant{Name: name}, UpdateMask: &fieldmaskpb.FieldMask{}}
	if !v.readSettings(d, change) {
		return d, nil
	}
	if len(change.UpdateMask.Paths) == 0 {
		v.setNotice(v.w, notice{Kind: "done", Text: "Nothing was changed, so nothing was sent."})
		return redirectTo(v.URL("tenants/" + name)), nil
	}
	if _, err := v.admin.UpdateTenant(ctx, change); err != nil {
		if !leavesForm(err) {
			return nil, err
		}
		p := problemOf(err)
		d.Problem, v.status = &p, p.Status
		for _, f := range d.Fields {
			f.Fault = p.Fields["tenant."+f.Name]
		}
		return d, nil
	}
	v.setNotice(v.w, notice{Kind: "done", Text: "Changed: " + strings.Join(change.UpdateMask.Paths, ", ") + "."})
	return redirectTo(v.URL("tenants/" + name)), nil
}

// readSettings adds to a change the settings whose texts the user has changed. What others have
// changed since the form was opened stays: the form has the value that each field had.
func (v *view) readSettings(d *tenantForm, change *perceptorv1.UpdateTenantRequest) (ok bool) {
	ok = true
	for _, f := range d.Fields {
		given, was := strings.TrimSpace(v.r.PostFormValue(f.Name)), v.opened(&f.field)
		if given == was || given == f.Value {
			continue
		}
		f.Given = given
		switch {
		case was != f.Value:
			f.Fault, v.status, ok = f.changedByOthers(), http.StatusConflict, false
		case !f.store(change.Tenant, given):
			f.Fault, v.status, ok = "This is malformed: "+f.Hint, http.StatusBadRequest, false
		default:
			change.UpdateMask.Paths = append(change.UpdateMask.Paths, f.Name)
		}
	}
	return ok
}

// tenantFields are the settings that the form has.
func tenantFields(t *perceptorv1.Tenant) []*tenantField {
	const quota = "0: the default of the installation; -1: no limit"
	fields := []*tenantField{
		whole("dispatch_rate", "Dispatch rate", t.DispatchRate, "runs per second; 0: no limit", func(t *perceptorv1.Tenant, n int32) { t.DispatchRate = n }),
		whole("dispatch_burst", "Dispatch burst", t.DispatchBurst, "runs at once after a quiet time; 0: as many as in one second", func(t *perceptorv1.Tenant, n int32) { t.DispatchBurst = n }),
		whole("weight", "Weight", t.Weight, "the share among backlogged tenants", func(t *perceptorv1.Tenant, n int32) { t.Weight = n }),
		whole("add_rate", "Add rate", t.AddRate, quota, func(t *perceptorv1.Tenant, n int32) { t.AddRate = n }),
		whole("max_backlog", "Max. unfinished tasks", t.MaxBacklog, quota, func(t *perceptorv1.Tenant, n int64) { t.MaxBacklog = n }),
		whole("max_params_bytes", "Max. bytes of params and payload", t.MaxParamsBytes, "1 to 262,144", func(t *perceptorv1.Tenant, n int32) { t.MaxParamsBytes = n }),
		{field{Name: "default_retention", Label: "Retention of finished tasks", Value: plainDuration(t.DefaultRetention), Hint: durationHint}, func(t *perceptorv1.Tenant, s string) (ok bool) {
			t.DefaultRetention, ok = parseDuration(s)
			return ok
		}},
		{field{Name: "paused_kinds", Label: "Paused kinds", Value: commaText(t.PausedKinds), Hint: `separated by commas; write a comma in a kind as \,`}, func(t *perceptorv1.Tenant, s string) bool {
			t.PausedKinds = commaList(s)
			return true
		}},
		{field{Name: "kind_caps", Label: "Caps of kinds", Value: capsText(t.KindCaps), Hint: "open runs by kind, such as mail=10, import=2"}, func(t *perceptorv1.Tenant, s string) (ok bool) {
			t.KindCaps, ok = readCaps(s)
			return ok
		}},
		{field{Name: "publish_when_due", Label: "Publish when due", Value: strconv.FormatBool(t.PublishWhenDue), Kind: "false,true", Hint: "true: for listeners that do not hold runs which come before they are due"}, func(t *perceptorv1.Tenant, s string) bool {
			t.PublishWhenDue = s == "true"
			return s == "true" || s == "false"
		}},
		{field{Name: "payload_records", Label: "Payload records", Value: strconv.FormatBool(t.PayloadRecords), Kind: "false,true", Hint: "whether records have the payload of their task as value"}, func(t *perceptorv1.Tenant, s string) bool {
			t.PayloadRecords = s == "true"
			return true
		}},
		{field{Name: "history", Label: "History", Value: t.History.String(), Kind: historyLevels(), Hint: "which events of runs are recorded"}, func(t *perceptorv1.Tenant, s string) bool {
			n, ok := perceptorv1.Tenant_History_value[s]
			t.History = perceptorv1.Tenant_History(n)
			return ok
		}},
	}
	for _, f := range fields {
		f.Given = f.Value
	}
	return fields
}

// historyLevels are the values of the setting, by number.
func historyLevels() string {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(perceptorv1.Tenant_History_name)) {
		if n != 0 {
			names = append(names, perceptorv1.Tenant_History_name[n])
		}
	}
	return strings.Join(names, ",")
}

// whole is a setting that is a whole number. One that does not fit is malformed: cut off, it would be
// another number, and 2^32 would be 0, which is no limit.
func whole[N int32 | int64](name, label string, value N, hint string, set func(*perceptorv1.Tenant, N)) *tenantField {
	return &tenantField{field{Name: name, Label: label, Value: strconv.FormatInt(int64(value), 10), Hint: hint}, func(t *perceptorv1.Tenant, s string) bool {
		n, err := strconv.ParseInt(strings.ReplaceAll(s, ",", ""), 10, 64)
		set(t, N(n))
		return err == nil && int64(N(n)) == n
	}}
}

func capsText(caps map[string]int32) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(caps)) {
		parts = append(parts, fmt.Sprintf("%s=%d", kind, caps[kind]))
	}
	return commaText(parts)
}

func readCaps(s string) (map[string]int32, bool) {
	caps := map[string]int32{}
	for _, part := range commaList(s) {
		i := strings.LastIndexByte(part, '=')
		if i <= 0 {
			return nil, false
		}
		n, err := strconv.ParseInt(strings.TrimSpace(part[i+1:]), 10, 32)
		if err != nil {
			return nil, false
		}
		caps[strings.TrimSpace(part[:i])] = int32(n)
	}
	return caps, true
}
