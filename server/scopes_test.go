package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// apiScopes are all scopes of the API by number.
func apiScopes() []perceptorv1.Token_Scope {
	var all []perceptorv1.Token_Scope
	for n := range perceptorv1.Token_Scope_name {
		if n != 0 {
			all = append(all, perceptorv1.Token_Scope(n))
		}
	}
	slices.Sort(all)
	return all
}

// secretOf returns the secret of an identity with one scope, of acme if it is a tenant's.
func secretOf(s perceptorv1.Token_Scope) string {
	secret := "scope-" + s.String()
	id := Identity{TokenID: secret, Scopes: 1 << s}
	if OfTenant&id.Scopes != 0 {
		id.Tenant = acme
	}
	identities[secret] = id
	return secret
}

func init() {
	for _, s := range apiScopes() {
		secretOf(s)
	}
	identities["admin-of-nothing"] = Identity{TokenID: "x", Scopes: AdminScope | TenantAdminScope, Tenant: acme}
	identities["tenant-of-nothing"] = Identity{TokenID: "y", Scopes: TenantScope | TenantAdminScope}
	identities["several"] = Identity{TokenID: "several", Scopes: AddScope | ReadScope, Tenant: acme}
	identities["admin-of-tenant"] = Identity{TokenID: "z", Scopes: AdminScope, Tenant: acme}
	identities["short"] = Identity{TokenID: "short", Scopes: TenantScope, Tenant: acme, Left: 2 * time.Second}
}

// ownRequest is requestFor with acme where the name of a tenant belongs.
func ownRequest(t *testing.T, method string) proto.Message {
	m := requestFor(t, method).ProtoReflect()
	for _, name := range []protoreflect.Name{"name", "tenant"} {
		if f := m.Descriptor().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind {
			m.Set(f, protoreflect.ValueOfString("acme"))
		}
	}
	return m.Interface()
}

func TestEveryMethodTakesTheScopesOfItsRowAndNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, m := range b.methods() {
		for _, s := range apiScopes() {
			id := identities["scope-"+s.String()]
			want := id.scopes()&access[m] != 0
			answers := map[string]answer{"gRPC": b.overGRPC("scope-"+s.String(), m, ownRequest(t, m), replyFor(t, m))}
			if !streams(t, m) {
				answers["HTTP"] = b.overHTTP("scope-"+s.String(), m, ownRequest(t, m), nil)
			}
			for side, a := range answers {
				if got := a.code != codes.PermissionDenied && a.code != codes.Unauthenticated; got != want {
					t.Errorf("%s over %s with %s: %s %q, want it allowed: %v", m, side, s, a.code, a.message, want)
				}
			}
		}
	}
}

func TestARefusedCallerLearnsWhichScopeIsMissing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct{ secret, method, want string }{
		{"scope-READ", cancelTask, "CancelTask needs the scope operate; this token has read"},
		{"several", cancelTask, "CancelTask needs the scope operate; this token has add, read"},
		{"scope-TENANT", createTenant, "CreateTenant needs the scope admin; this token has tenant"},
		{"scope-ADMIN", listTasks, "ListTasks needs the scope read or inspect; this token has admin"},
		{"admin-of-tenant", cancelTask, "CancelTask needs the scope operate; this token has none that applies here"},
		{"scope-READ", perceptorv1.ExportService_ExportTasks_FullMethodName, ""},
		{"scope-ADD", perceptorv1.ExportService_ExportTasks_FullMethodName, "ExportTasks needs the scope read; this token has add"},
	} {
		a := b.overGRPC(c.secret, c.method, ownRequest(t, c.method), replyFor(t, c.method))
		refused := a.code == codes.PermissionDenied && a.message == c.want
		if refused != (c.want != "") {
			t.Errorf("%s with %s: %s %q, want %q", c.method, c.secret, a.code, a.message, c.want)
		}
	}
}

// scopeTable returns the scopes of each row of the table on docs/security.md.
func scopeTable(t *testing.T) map[string][]string {
	t.Helper()
	page := string(must(os.ReadFile("../docs/security.md"))(t))
	_, section, ok := strings.Cut(page, "\n## Who may do what\n")
	if !ok {
		t.Fatal("docs/security.md has no section \"Who may do what\"")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var head []string
	table := map[string][]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case cells[0] == "call":
			head = cells
		case head != nil && strings.HasPrefix(cells[0], "`") && len(cells) == len(head):
			var scopes []string
			for i, c := range cells[1:] {
				if c != "" {
					scopes = append(scopes, head[i+1])
				}
			}
			name := strings.Trim(cells[0], "`")
			if table[name] != nil {
				t.Errorf("%s has two rows", name)
			}
			table[name] = scopes
		}
	}
	return table
}

func TestTheSecurityPageHasTheScopesOfEveryMethod(t *testing.T) {
	table := scopeTable(t)
	for full, need := range access {
		name := full[strings.LastIndexByte(full, '/')+1:]
		var want []string
		for _, s := range []string{"ADD", "READ", "OPERATE", "LISTEN", "TENANT_ADMIN", "ADMIN", "ADMIN_READ", "INSPECT"} {
			if one, ok := ParseScope(strings.ToLower(s)); !ok || one.all()&need != 0 {
				want = append(want, s)
			}
		}
		if got := table[name]; !slices.Equal(got, want) {
			t.Errorf("%s: the page says %v, the code %v", name, got, want)
		}
		delete(table, name)
	}
	if len(table) > 0 {
		t.Errorf("the page has rows for methods that do not exist: %v", slices.Collect(maps.Keys(table)))
	}
}

func TestScopesOfTheOtherKindMeanNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for secret, method := range map[string]string{"admin-of-nothing": createTenant, "tenant-of-nothing": listTokens} {
		if a := b.overGRPC(secret, method, requestFor(t, method), replyFor(t, method)); a.code != codes.PermissionDenied {
			t.Errorf("%s: %s", secret, a.code)
		}
	}
}

func TestATenantsAdminManagesTheTokensOfItsTenantOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const admin = "scope-TENANT_ADMIN"
	create := func(secret string, token *perceptorv1.Token) (answer, *perceptorv1.CreateTokenResponse) {
		reply := &perceptorv1.CreateTokenResponse{}
		return b.overGRPC(secret, createToken, &perceptorv1.CreateTokenRequest{Token: token}, reply), reply
	}
	read := []perceptorv1.Token_Scope{perceptorv1.Token_READ, perceptorv1.Token_ADD}
	a, own := create(admin, &perceptorv1.Token{Scopes: read})
	if a.code != codes.OK || own.Token.Tenant != "acme" || fmt.Sprint(own.Token.Scopes) != "[ADD READ]" || own.Token.Scope != 0 {
		t.Errorf("%s %s %v", a.code, a.message, own.Token)
	}
	_, foreign := create("admin-secret", &perceptorv1.Token{Scopes: read, Tenant: "rival"})
	_, installation := create("admin-secret", &perceptorv1.Token{Scope: perceptorv1.Token_ADMIN_READ})
	for name, token := range map[string]*perceptorv1.Token{
		"of another tenant":       {Scopes: read, Tenant: "rival"},
		"of a tenant that is not": {Scopes: read, Tenant: "nobody"},
		"of the installation":     {Scope: perceptorv1.Token_ADMIN},
		"that inspects":           {Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_INSPECT}},
	} {
		if a, _ := create(admin, token); a.code != codes.PermissionDenied {
			t.Errorf("creating a token %s: %s %s", name, a.code, a.message)
		}
	}
	for _, id := range []string{foreign.Token.Id, installation.Token.Id, "pt_99"} {
		for method, request := range map[string]proto.Message{
			revokeToken: &perceptorv1.RevokeTokenRequest{Id: id}, rotateToken: &perceptorv1.RotateTokenRequest{Id: id},
		} {
			if a := b.overGRPC(admin, method, request, replyFor(t, method)); a.code != codes.NotFound {
				t.Errorf("%s of %s: %s", method, id, a.code)
			}
		}
	}
	list := &perceptorv1.ListTokensResponse{}
	b.overHTTP(admin, listTokens, &perceptorv1.ListTokensRequest{}, list)
	if len(list.Tokens) != 1 || list.Tokens[0].Id != own.Token.Id {
		t.Errorf("listed: %v", list.Tokens)
	}
	for _, other := range []string{"rival", "nobody"} {
		if a := b.overHTTP(admin, listTokens, &perceptorv1.ListTokensRequest{Tenant: other}, nil); a.code != codes.PermissionDenied {
			t.Errorf("tokens of %s: %s", other, a.code)
		}
		if a := b.overHTTP(admin, getTenant, &perceptorv1.GetTenantRequest{Name: other}, nil); a.code != codes.PermissionDenied {
			t.Errorf("tenant %s: %s", other, a.code)
		}
	}
	rotated := &perceptorv1.RotateTokenResponse{}
	a = b.overHTTP(admin, rotateToken, &perceptorv1.RotateTokenRequest{Id: own.Token.Id}, rotated)
	if a.http != http.StatusOK || rotated.Secret == "" || fmt.Sprint(rotated.Token.Scopes) != "[ADD READ]" || !rotated.Replaced.RevokeTime.AsTime().Equal(fakeNow.Time().Add(24*time.Hour)) {
		t.Errorf("%d %s %v", a.http, a.message, rotated)
	}
}

func TestScopesThatDoNotGoTogetherAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const tenant, admin = perceptorv1.Token_TENANT, perceptorv1.Token_ADMIN
	for name, c := range map[string]struct {
		token *perceptorv1.Token
		field string
	}{
		"both kinds":          {&perceptorv1.Token{Scopes: []perceptorv1.Token_Scope{tenant, admin}, Tenant: "acme"}, "token.scopes"},
		"an unknown one":      {&perceptorv1.Token{Scopes: []perceptorv1.Token_Scope{tenant, 70}, Tenant: "acme"}, "token.scopes"},
		"two that differ":     {&perceptorv1.Token{Scope: tenant, Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_READ}, Tenant: "acme"}, "token.scope"},
		"none":                {&perceptorv1.Token{Tenant: "acme"}, "token.scope"},
		"no tenant":           {&perceptorv1.Token{Scopes: []perceptorv1.Token_Scope{perceptorv1.Token_READ}}, "token.tenant"},
		"an inspected tenant": {&perceptorv1.Token{Scope: perceptorv1.Token_INSPECT, Tenant: "acme"}, "token.tenant"},
	} {
		a := b.overGRPC("admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: c.token}, &perceptorv1.CreateTokenResponse{})
		if a.code != codes.InvalidArgument || a.faults[c.field] == "" {
			t.Errorf("%s: %s %v", name, a.code, a.faults)
		}
	}
}

// inspecting calls a method with the scope INSPECT for a tenant.
func (b *bundle) inspecting(secret, tenant, method string, request, reply proto.Message) answer {
	b.t.Helper()
	ctx := metadata.AppendToOutgoingContext(b.t.Context(), "authorization", "Bearer "+secret, tenantHeader, tenant)
	return b.answerOf(status.Convert(b.conn.Invoke(ctx, method, request, reply)))
}

// withTask adds a task of acme and returns its id.
func (b *bundle) withTask() int64 {
	b.t.Helper()
	spec := recurring()
	spec.Params = map[string]string{"card": "4242"}
	added := &perceptorv1.AddTaskResponse{}
	if a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: spec}, added); a.code != codes.OK {
		b.t.Fatal(a.message)
	}
	return added.Id
}

func TestAnOperatorSeesTasksWithoutParamsAndEachUseIsRecorded(t *testing.T) {
	t.Parallel()
	var uses []Inspection
	var failure error
	b := setupWith(t, func(d *Deps) {
		d.Inspections = func(_ context.Context, i Inspection) error {
			uses = append(uses, i)
			return failure
		}
	})
	b.admin.tenants["acme"], b.admin.tenants["rival"] = acme, rival
	id := b.withTask()
	const operator = "scope-INSPECT"
	got := &perceptorv1.Task{}
	a := b.inspecting(operator, "acme", getTask, &perceptorv1.GetTaskRequest{Id: id}, got)
	if a.code != codes.OK || got.Id != id || got.Kind == "" || len(got.Params) != 0 {
		t.Errorf("%s %s %v", a.code, a.message, got)
	}
	page := &perceptorv1.ListTasksResponse{}
	b.inspecting(operator, "acme", listTasks, &perceptorv1.ListTasksRequest{}, page)
	if len(page.Tasks) != 1 || len(page.Tasks[0].Params) != 0 {
		t.Errorf("listed %v", page.Tasks)
	}
	if a := b.inspecting(operator, "rival", getTask, &perceptorv1.GetTaskRequest{Id: id}, got); a.code != codes.NotFound {
		t.Errorf("as rival: %s", a.code)
	}
	want := []string{"acme TaskService/GetTask OK", "acme TaskService/ListTasks OK", "rival TaskService/GetTask NotFound"}
	var said []string
	for _, u := range uses {
		said = append(said, u.Tenant.Name+" "+strings.TrimPrefix(u.Method, "perceptor.v1.")+" "+u.Code.String())
	}
	if !slices.Equal(said, want) || uses[0].Caller != operator || uses[0].Request.(*perceptorv1.GetTaskRequest).Id != id {
		t.Errorf("recorded %q", said)
	}
	failure = errors.New("the record cannot be written")
	got.Reset()
	if a := b.inspecting(operator, "acme", getTask, &perceptorv1.GetTaskRequest{Id: id}, got); a.code == codes.OK || got.Id != 0 {
		t.Errorf("without a record: %s %v", a.code, got)
	}
	for name, a := range map[string]answer{
		"no tenant":       b.overGRPC(operator, getTask, &perceptorv1.GetTaskRequest{Id: id}, got),
		"a tenant's name": b.inspecting(operator, "A/..", getTask, &perceptorv1.GetTaskRequest{Id: id}, got),
	} {
		if a.code != codes.InvalidArgument {
			t.Errorf("%s: %s", name, a.code)
		}
	}
}

func TestTheHeaderOfInspectionsMeansNothingToOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.admin.tenants["acme"], b.admin.tenants["rival"] = acme, rival
	id := b.withTask()
	for _, secret := range []string{"rival-secret", "scope-ADMIN", "scope-ADMIN_READ"} {
		if a := b.inspecting(secret, "acme", getTask, &perceptorv1.GetTaskRequest{Id: id}, &perceptorv1.Task{}); a.code != codes.NotFound && a.code != codes.PermissionDenied {
			t.Errorf("%s: %s", secret, a.code)
		}
	}
}

func TestCallersWhoMayNotReadGetNoParams(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.withTask()
	for secret, want := range map[string]int{"scope-OPERATE": 0, "scope-TENANT": 1} {
		got := &perceptorv1.Task{}
		if a := b.overHTTP(secret, pauseTask, &perceptorv1.PauseTaskRequest{Id: id}, got); a.code != codes.OK || got.Id != id || len(got.Params) != want {
			t.Errorf("%s: %s %v", secret, a.code, got)
		}
	}
}

// TestNoAnswerHasParamsUnderAnotherName guards hideParams, which goes by the name.
func TestNoAnswerHasParamsUnderAnotherName(t *testing.T) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			for j := range m.Fields().Len() {
				field := m.Fields().Get(j)
				ofParams := field.Message() != nil && slices.Contains([]protoreflect.FullName{"perceptor.v1.Params", "perceptor.v1.Payload"}, field.Message().FullName()) ||
					field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind && m.FullName() != "perceptor.v1.Params" && m.FullName() != "perceptor.v1.ParamsPatch"
				pins := strings.Contains(string(m.FullName()), "Strategy") // hosts by shard
				if f.Package() == "perceptor.v1" && ofParams && !pins && !slices.Contains(paramsFields, field.Name()) {
					t.Errorf("%s may hold params: hideParams must know it", field.FullName())
				}
			}
		}
		return true
	})
}

func TestARevocationIsObeyedWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := &fakeAuth{}
		b := newBearers(auth)
		var mu sync.Mutex
		var revoked []string
		var away error
		set := func(ids []string, err error) {
			mu.Lock()
			defer mu.Unlock()
			revoked, away = ids, err
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go b.revoked.poll(ctx, func(context.Context) ([]string, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return revoked, false, away
		}, b.known.clear, slog.New(slog.DiscardHandler))
		acme, rival := []string{"Bearer acme-secret"}, []string{"Bearer rival-secret"}
		for _, h := range [][]string{acme, rival} {
			if _, err := b.identify(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
		auth.revoke("acme-secret")
		set([]string{"acme-token"}, nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := b.identify(t.Context(), acme); !errors.Is(err, errUnauthenticated) {
			t.Errorf("after a second: %v", err)
		}
		if _, err := b.identify(t.Context(), rival); err != nil || auth.count("rival-secret") != 1 {
			t.Errorf("another token: %v, asked %d times", err, auth.count("rival-secret"))
		}
		// While revocations cannot be read, the cache ends after 5 s.
		set(nil, errors.New("no database answers"))
		auth.revoke("rival-secret")
		for range 7 {
			time.Sleep(500 * time.Millisecond)
			if _, err := b.identify(t.Context(), rival); err != nil {
				t.Errorf("while the answer is cached: %v", err)
			}
		}
		time.Sleep(500 * time.Millisecond)
		if _, err := b.identify(t.Context(), rival); !errors.Is(err, errUnauthenticated) {
			t.Errorf("5 s after it was asked: %v", err)
		}
	})
}

func TestRevocationsAreNotAskedForWhileNoCallComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := &fakeAuth{}
		b := newBearers(auth)
		var asked atomic.Int32
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go b.revoked.poll(ctx, func(context.Context) ([]string, bool, error) {
			asked.Add(1)
			return nil, false, nil
		}, b.known.clear, slog.New(slog.DiscardHandler))
		askedIn := func(d time.Duration) int32 {
			synctest.Wait()
			before := asked.Load()
			time.Sleep(d)
			synctest.Wait()
			return asked.Load() - before
		}
		if n := askedIn(time.Minute); n != 0 {
			t.Errorf("asked %d times before the first call", n)
		}
		acme := []string{"Bearer acme-secret"}
		if _, err := b.identify(t.Context(), acme); err != nil {
			t.Fatal(err)
		}
		if n := askedIn(pauseAfter); n < 2 {
			t.Errorf("asked %d times in a second after a call, want 2 or 3", n)
		}
		askedIn(pollRevoked)
		if n := askedIn(time.Minute); n != 0 {
			t.Errorf("asked %d times a minute after the last call", n)
		}
		if _, err := b.identify(t.Context(), acme); err != nil {
			t.Fatal(err)
		}
		// An answer from before a pause is not used after it, though it is cached for longer.
		time.Sleep(rememberKnown - 2*time.Second)
		auth.revoke("acme-secret")
		if _, err := b.identify(t.Context(), acme); !errors.Is(err, errUnauthenticated) {
			t.Errorf("the first call after a pause, with a token that was revoked in it: %v", err)
		}
	})
}

func TestATokenEndsAtItsExpiryAndNotWithTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := &fakeAuth{}
		b := newBearers(auth)
		if _, err := b.identify(t.Context(), []string{"Bearer short"}); err != nil {
			t.Fatal(err)
		}
		auth.revoke("short")
		time.Sleep(2 * time.Second)
		if _, err := b.identify(t.Context(), []string{"Bearer short"}); !errors.Is(err, errUnauthenticated) {
			t.Errorf("after its expiry: %v", err)
		}
	})
}

// refusedAuth refuses with a word for the metric.
type refusedAuth string

func (r refusedAuth) Error() string                                          { return "no such token" }
func (r refusedAuth) Refusal() string                                        { return string(r) }
func (r refusedAuth) Unwrap() error                                          { return task.Errorf(task.ReasonTokenNotFound, "no such token") }
func (r refusedAuth) Authenticate(context.Context, string) (Identity, error) { return Identity{}, r }

func TestRefusedLoginsAreCountedByReason(t *testing.T) {
	t.Parallel()
	counts := map[string]int{}
	b := newBearers(refusedAuth("wrong_secret"))
	b.events = &Events{LoginRefused: func(why string) { counts[why]++ }}
	for _, headers := range [][]string{
		nil, {"Bearer a b"}, {"Basic x"}, {"Bearer " + strings.Repeat("x", 9000)}, {"Bearer pct_x"}, {"Bearer pct_x"},
	} {
		if _, err := b.identify(t.Context(), headers); !errors.Is(err, errUnauthenticated) {
			t.Errorf("%.20q: %v", headers, err)
		}
	}
	if got := fmt.Sprint(counts); got != "map[malformed:2 missing:1 too_long:1 wrong_secret:2]" {
		t.Error(got)
	}
}

// An answer may be cached long after its token was read. What was revoked meanwhile is known by then.
func TestRevocationsAreAskedForWhileALookUpTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := &fakeAuth{slow: authTimeout - pollRevoked}
		b := newBearers(auth)
		var revoked atomic.Pointer[[]string]
		revoked.Store(&[]string{})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go b.revoked.poll(ctx, func(context.Context) ([]string, bool, error) {
			return *revoked.Load(), false, nil
		}, b.known.clear, slog.New(slog.DiscardHandler))
		acme := []string{"Bearer acme-secret"}
		time.AfterFunc(auth.slow/2, func() { auth.revoke("acme-secret"); revoked.Store(&[]string{identities["acme-secret"].TokenID}) })
		for range 2 {
			if _, err := b.identify(t.Context(), acme); !errors.Is(err, errUnauthenticated) {
				t.Errorf("a token that was revoked during its look-up: %v", err)
			}
		}
	})
}
