package guard

import (
	"slices"
	"strings"
	"testing"
)

// A rule says which packages of the module a package may import. A name that ends
// in /... stands for the package and all below it.
type rule struct {
	pkg  string
	from []string
}

// imports is the direction of imports, from the bottom up. The first rule that
// matches a package decides. A package may import what is in its own folder and
// below it only if its rule says so.
var imports = []rule{
	// The domain, and formats of it.
	{"task", []string{"internal/jsonsyntax"}},
	{"record", []string{"task"}},
	{"record/recordset", []string{"record"}},
	{"figures", []string{"internal/ctxtime", "task"}},
	{"forecast", []string{"task"}},
	{"sizing", nil},
	{"schedule/...", []string{"schedule/...", "task"}},
	{"proto/...", []string{"proto/..."}},

	// Small things of several parts.
	{"internal/ctxtime", nil},
	{"internal/share", nil},
	{"internal/requestid", nil},
	{"internal/duration", nil},
	{"internal/renewal", []string{"internal/ctxtime"}},
	{"internal/jsonfault", []string{"internal/spelling", "task"}},
	{"internal/spelling", nil},
	{"internal/jsonsyntax", nil},
	{"internal/payload", []string{"proto/perceptor/v1", "task"}},

	// The store: technology below, tasks and tenants above.
	{"migrations", []string{"store/statement"}},
	{"store/statement", nil},
	{"store/pack", []string{"task"}},
	{"store/identity/sql", []string{"store/statement"}},
	{"store/identity", []string{"store/identity/sql"}},
	{"store/place/sql", []string{"store/statement"}},
	{"store/place", []string{"store/place/sql"}},
	{"store", []string{"internal/ctxtime", "internal/renewal", "migrations", "store/identity", "store/place", "task"}},
	{"store/move/sql", []string{"store/statement"}},
	{"store/move", []string{"internal/ctxtime", "migrations", "store", "store/move/sql", "store/place", "store/statement"}},
	{"store/clock/sql", []string{"store/pack", "store/statement", "task"}},
	{"store/clock", []string{"store", "store/clock/sql", "store/statement", "task"}},
	{"store/control/sql", []string{"store/statement"}},
	{"store/control", []string{"internal/ctxtime", "store", "store/control/sql", "store/statement", "task"}},
	{"store/audit/sql", []string{"store/statement"}},
	{"store/audit", []string{"store", "store/audit/sql", "task"}},
	{"store/calendars/sql", []string{"store/statement"}},
	{"store/calendars", []string{"internal/ctxtime", "store", "store/calendars/sql", "store/statement", "task"}},
	{"store/figures/sql", []string{"store/statement"}},
	{"store/figures", []string{"figures", "store", "store/figures/sql", "task"}},
	{"store/shards/sql", []string{"store/pack", "store/statement", "task"}},
	{"store/shards/kernel", []string{"internal/ctxtime", "internal/share", "store", "store/shards/sql", "task"}},
	{"store/shards/counters", []string{"store/shards/kernel", "store/shards/sql", "task"}},
	{"store/shards/history", []string{"store/shards/kernel", "store/shards/sql", "task"}},
	{"store/shards/transition", []string{
		"schedule", "store/shards/counters", "store/shards/history", "store/shards/kernel", "store/shards/sql", "task",
	}},
	{"store/shards/dead", []string{
		"store/shards/counters", "store/shards/kernel", "store/shards/sql", "store/statement", "task",
	}},
	{"store/shards/far", []string{
		"store/pack", "store/shards/counters", "store/shards/kernel", "store/shards/sql", "store/statement", "task",
	}},
	{"store/shards/bulk", []string{
		"store/pack", "store/shards/counters", "store/shards/dead", "store/shards/far", "store/shards/kernel",
		"store/shards/sql", "store/shards/transition", "store/statement", "task",
	}},
	{"store/shards/imports", []string{
		"store/pack", "store/shards/far", "store/shards/kernel", "store/shards/sql", "task",
	}},
	{"store/shards", []string{"forecast", "internal/ctxtime", "internal/share", "proto/perceptor/v1", "store", "store/pack", "store/shards/...", "store/statement", "task"}},
	{"store/storetest", []string{"internal/testenv", "migrations", "store"}},

	// The middle: parts that do not know each other.
	{"assign", []string{"internal/ctxtime"}},
	{"assign/postgres/sql", []string{"store/statement"}},
	{"assign/postgres", []string{"assign", "assign/postgres/sql"}},
	{"assign/loop", []string{"assign", "schedule"}},
	{"dispatch/fair", []string{"task"}},
	{"dispatch/...", []string{"dispatch/...", "internal/ctxtime", "internal/slots", "task"}},
	{"chores", []string{"internal/ctxtime", "task"}},
	{"audit", []string{"internal/share", "task"}},
	{"delivery", []string{"internal/kafkadial", "record/...", "task"}},
	{"console", []string{"internal/duration", "internal/payload", "internal/share", "proto/perceptor/v1"}},
	{"export/line", []string{"proto/perceptor/v1", "task"}},
	{"export", []string{"internal/subprocess"}},
	{"transfer/migrate", []string{"proto/perceptor/v1", "task"}},
	{"server/...", []string{"export/line", "internal/ctxtime", "internal/jsonfault", "internal/jsonsyntax", "internal/payload", "internal/requestid", "internal/share", "proto/...", "schedule/...", "server/...", "task"}},

	// The SDK, which programs of others build in.
	{"client", []string{"internal/ctxtime", "internal/kafkadial", "internal/kafkalogin", "internal/slots", "proto/perceptor/v1", "record/...", "task"}},
	{"client/clienttest", []string{"client", "proto/perceptor/v1", "schedule", "server", "task"}},
	{"client/outbox", []string{"client", "internal/ctxtime", "internal/jsonfault", "proto/perceptor/v1", "store/statement", "task"}},
	{"examples/...", []string{"assign", "assign/loop", "client", "client/outbox", "examples/..."}},

	// Tasks from files and tables into the API.
	{"transfer", []string{"forecast", "internal/duration", "proto/perceptor/v1", "schedule", "task"}},
	{"transfer/upload", []string{"internal/ctxtime", "proto/perceptor/v1", "transfer"}},

	// What is around the parts and knows none of them.
	{"internal/config", []string{"internal/duration", "internal/spelling"}},
	{"internal/certs", nil},
	{"internal/kafkadial", nil},
	{"internal/kafkalogin", nil},
	{"internal/slots", nil},
	{"internal/oidc/...", []string{"internal/ctxtime"}},
	{"internal/cli", []string{"internal/config", "internal/spelling"}},
	{"internal/telemetry", []string{"internal/requestid", "internal/share", "task"}},
	{"internal/tracing", nil},
	{"internal/subprocess", []string{"internal/ctxtime"}},
	{"internal/tempdir", []string{"internal/subprocess"}},
	{"internal/pgserver", []string{"internal/ctxtime", "internal/subprocess"}},
	{"internal/testenv/...", []string{"internal/pgserver", "internal/subprocess", "internal/tempdir", "internal/testenv"}},
	{"internal/timingspec", nil},
	{"internal/pagetest", nil},
	{"internal/mutation", nil},
	{"internal/guard", nil},
	{"internal/pages", nil},
	{"internal/pages/checksite", []string{"internal/pages"}},

	// The top joins the parts.
	{"internal/virtualclock", []string{"internal/ctxtime", "store", "store/clock", "task"}},
	{"internal/app", []string{
		"assign", "assign/postgres", "audit", "chores", "console", "delivery", "dispatch/...", "figures", "forecast", "proto/perceptor/v1", "record", "server/...", "store/...", "task",
		"internal/certs", "internal/config", "internal/ctxtime", "internal/kafkalogin", "internal/oidc", "internal/renewal", "internal/telemetry", "internal/tracing", "internal/virtualclock",
	}},
	{"internal/dev", []string{
		"client", "loadtest/check", "store", "store/clock", "store/control", "task",
		"internal/app", "internal/config", "internal/pgserver", "internal/subprocess", "internal/telemetry", "internal/tempdir",
	}},
	{"internal/virtualtest", []string{
		"client", "store", "store/clock", "store/control", "store/storetest", "task",
		"internal/app", "internal/config", "internal/telemetry", "internal/testenv", "internal/virtualclock",
	}},
	{"cmd/perceptorctl", []string{
		"assign", "client", "client/outbox", "export/...", "forecast", "migrations", "proto/perceptor/v1", "schedule", "sizing", "store/...", "task", "transfer/...",
		"internal/app", "internal/cli", "internal/config", "internal/ctxtime", "internal/duration", "internal/jsonfault", "internal/jsonsyntax", "internal/payload",
		"internal/telemetry",
	}},
	{"cmd/...", []string{
		"dispatch", "schedule", "internal/app", "internal/cli", "internal/config", "internal/dev", "internal/duration", "internal/telemetry",
	}},

	// Load is made by processes of the product, and may look into its store.
	{"internal/chart", nil},
	{"monitoring", nil},
	{"loadtest/check", []string{"task"}},
	{"loadtest/...", []string{
		"assign", "assign/postgres", "client", "client/outbox", "dispatch", "loadtest/...", "migrations", "proto/perceptor/v1", "record/...", "store/...", "task",
		"internal/subprocess", "internal/tempdir", "internal/testenv",
		"internal/chart",
	}},
}

// modules says which packages may import a module of others, for those modules
// that must not spread.
var modules = []struct {
	path string
	by   []string
}{
	{"github.com/jackc/pgx/", []string{"assign/postgres", "client/outbox", "cmd/perceptorctl", "examples/orders", "migrations", "store/...", "transfer/...", "internal/testenv", "loadtest/..."}},
	{"github.com/pressly/goose/", []string{"migrations"}},
	{"github.com/go-zookeeper/zk", []string{"assign", "cmd/perceptorctl", "loadtest/assign"}},
	{"github.com/segmentio/kafka-go", []string{"client", "delivery", "internal/app", "internal/kafkalogin", "internal/testenv", "loadtest/floor", "record/recordset"}},
	{"github.com/twmb/franz-go/", []string{"internal/dev", "internal/virtualtest"}},
	{"github.com/prometheus/", []string{"internal/app", "internal/dev", "internal/telemetry", "internal/virtualtest"}},
	{"github.com/spf13/cobra", []string{"cmd/...", "internal/cli", "loadtest/..."}},
	{"google.golang.org/grpc", []string{
		"client/...", "cmd/perceptorctl", "console", "internal/app", "internal/tracing", "loadtest/...", "proto/perceptor/v1", "server/...", "transfer/upload",
	}},
	{"github.com/parquet-go/", []string{"transfer", "loadtest/imports"}},
	{"golang.org/x/oauth2", []string{"internal/oidc"}},
	{"go.opentelemetry.io/otel/sdk", []string{"internal/tracing"}},
	{"go.opentelemetry.io/otel/exporters/", []string{"internal/tracing"}},
	{"go.opentelemetry.io/", []string{"client/...", "internal/app", "internal/telemetry", "internal/tracing", "server/..."}},
}

// standardOnly lists the packages that import nothing but the standard library
// and what their rule allows.
var standardOnly = []string{"task", "sizing", "dispatch/fair", "internal/mutation", "internal/guard", "internal/pages"}

func TestImportsGoOneWay(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		i := slices.IndexFunc(imports, func(r rule) bool { return matches(r.pkg, f.pkg) })
		if i < 0 {
			t.Errorf("%s: no rule says what package %s may import", f.path, f.pkg)
			continue
		}
		for _, path := range f.imports() {
			if pkg, ok := strings.CutPrefix(path, module); ok && !matchesAny(imports[i].from, pkg) {
				t.Errorf("%s: package %s must not import %s", f.path, f.pkg, pkg)
			}
		}
	}
}

func TestModulesDoNotSpread(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		for _, path := range f.imports() {
			for _, m := range modules {
				if strings.HasPrefix(path, m.path) && !matchesAny(m.by, f.pkg) {
					t.Errorf("%s: package %s must not import %s", f.path, f.pkg, path)
				}
			}
			first, _, _ := strings.Cut(path, "/")
			if strings.Contains(first, ".") && !strings.HasPrefix(path, module) && matchesAny(standardOnly, f.pkg) {
				t.Errorf("%s: package %s takes nothing but the standard library, not %s", f.path, f.pkg, path)
			}
		}
	}
}

func TestNobodyImportsTheMutations(t *testing.T) {
	for _, f := range goFiles(t) {
		if slices.Contains(f.imports(), module+"internal/mutation") {
			t.Errorf("%s imports internal/mutation: mutations come by go test -overlay only", f.path)
		}
	}
}

// TestEveryRuleIsUsed keeps packages that are gone out of the tables.
func TestEveryRuleIsUsed(t *testing.T) {
	t.Parallel()
	var pkgs []string
	for _, f := range goFiles(t) {
		pkgs = append(pkgs, f.pkg)
	}
	used := func(pattern string) {
		if !slices.ContainsFunc(pkgs, func(pkg string) bool { return matches(pattern, pkg) }) {
			t.Errorf("the tables name %s, which does not exist", pattern)
		}
	}
	for _, r := range imports {
		used(r.pkg)
		for _, pattern := range r.from {
			used(pattern)
		}
	}
	for _, m := range modules {
		for _, pattern := range m.by {
			used(pattern)
		}
	}
}

// matches reports whether a pattern of the tables stands for the package.
func matches(pattern, pkg string) bool {
	if folder, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == folder || strings.HasPrefix(pkg, folder+"/")
	}
	return pkg == pattern
}

func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, pkg) })
}
