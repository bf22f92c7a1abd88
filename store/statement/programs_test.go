package statement_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	assignsql "github.com/perceptor/perceptor/assign/postgres/sql"
	"github.com/perceptor/perceptor/internal/testenv"
	auditsql "github.com/perceptor/perceptor/store/audit/sql"
	"github.com/perceptor/perceptor/store/clock"
	clocksql "github.com/perceptor/perceptor/store/clock/sql"
	controlsql "github.com/perceptor/perceptor/store/control/sql"
	identitysql "github.com/perceptor/perceptor/store/identity/sql"
	shardssql "github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/store/storetest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// sets are all packages of statements that are sent to logical databases, by the
// folder whose packages use them.
var sets = map[string]struct {
	all    func() []*statement.Statement
	unused func() []string
}{
	"audit":              {auditsql.All, auditsql.Unused},
	"../assign/postgres": {assignsql.All, assignsql.Unused},
	"clock":              {clocksql.All, clocksql.Unused},
	"control":            {controlsql.All, controlsql.Unused},
	"identity":           {identitysql.All, identitysql.Unused},
	"shards":             {shardssql.All, shardssql.Unused},
}

// TestTheServerAcceptsEveryStatement: it knows all tables, columns and functions,
// and takes each parameter as what its header says.
func TestTheServerAcceptsEveryStatement(t *testing.T) {
	c := storetest.Open(t)
	if _, err := clock.Install(t.Context(), c, clock.State{}); err != nil {
		t.Fatal(err)
	}
	conn, err := c.Pool(0).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for folder, set := range sets {
		for _, s := range set.all() {
			if s == clocksql.CreateTable { // it is there
				continue
			}
			prepared, err := conn.Conn().Prepare(t.Context(), folder+s.Name(), s.Text())
			if err != nil {
				t.Errorf("%s: %s: %v", folder, s.Name(), err)
				continue
			}
			compareTypes(t, conn.Conn(), s, prepared.ParamOIDs)
		}
	}
}

func compareTypes(t *testing.T, conn *pgx.Conn, s *statement.Statement, got []uint32) {
	t.Helper()
	parameters := s.Parameters()
	if len(got) != len(parameters) {
		t.Errorf("%s has %d parameters, its header %d", s.Name(), len(got), len(parameters))
		return
	}
	for i, p := range parameters {
		typ, ok := conn.TypeMap().TypeForOID(got[i])
		if name := strings.TrimSuffix(p.Type, "[]"); !ok || strings.TrimPrefix(typ.Name, "_") != name || strings.HasPrefix(typ.Name, "_") != (name != p.Type) {
			t.Errorf("%s: parameter %s is a %v, its header says %s", s.Name(), p.Name, typ, p.Type)
		}
	}
}

func TestEveryStatementHasAVariable(t *testing.T) {
	for folder, set := range sets {
		if names := set.unused(); len(names) > 0 {
			t.Errorf("%s: nobody can use %v", folder, names)
		}
	}
}

// TestCallsPassAsManyArgumentsAsTheHeaderDeclares also finds statements that no
// program uses. A list that is passed with "..." is checked when the call is made.
func TestCallsPassAsManyArgumentsAsTheHeaderDeclares(t *testing.T) {
	for folder, set := range sets {
		want := map[string]int{}
		for _, s := range set.all() {
			want[s.Name()] = len(s.Parameters())
		}
		used := map[string]bool{}
		eachFile(t, filepath.Join("..", folder), func(files *token.FileSet, f *ast.File) {
			ast.Inspect(f, func(n ast.Node) bool {
				if name, ok := statementOf(n); ok {
					used[name] = true
				}
				call, ok := n.(*ast.CallExpr)
				if !ok || call.Ellipsis.IsValid() {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				name, ok := statementOf(method.X)
				before, call1 := map[string]int{"Queue": 1, "Exec": 2, "Query": 2, "QueryRow": 2}[method.Sel.Name]
				if ok && call1 && len(call.Args)-before != want[name] {
					t.Errorf("%s: %s is called with %d arguments, want %d", files.Position(call.Pos()), name, len(call.Args)-before, want[name])
				}
				return true
			})
		})
		for name := range want {
			if !used[name] {
				t.Errorf("%s: no program uses %s", folder, name)
			}
		}
	}
}

// statementOf returns the name of a variable of a package sql.
func statementOf(n ast.Node) (string, bool) {
	s, ok := n.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	of, ok := s.X.(*ast.Ident)
	return s.Sel.Name, ok && of.Name == "sql"
}

// eachFile visits the files of all packages below a folder, without their tests.
func eachFile(t *testing.T, dir string, visit func(*token.FileSet, *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, 0)
		if err == nil {
			visit(files, f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
