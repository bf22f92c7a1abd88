package guard

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"testing"
)

// allowed lists how many string literals with SQL each package holds outside .sql
// files, and why. A package that is not here holds none.
var allowed = map[string]struct {
	n   int
	why string
}{
	"examples/orders":       {3, "shows what readers write, who have no package for statements"},
	"internal/testenv":      {14, "makes and drops whole databases, by names that it draws, and promotes standbys"},
	"loadtest/assign":       {19, "tables of its own, made for one run, and rows that it disturbs as an operator might"},
	"loadtest/backlog":      {4, "prepares and counts from outside what the product stored"},
	"loadtest/compare":      {2, "empties the buffers between phases, and analyzes as an operator may"},
	"loadtest/floor":        {2, "measures Postgres without the product"},
	"loadtest/harness":      {10, "asks the server for its figures, and makes databases"},
	"loadtest/stack":        {17, "asks all databases of a server at once, by schema, and replaces servers by their standbys"},
	"loadtest/storm":        {2, "compares the rows of a server with those of its copy"},
	"migrations":            {1, "the name of the schema that it creates is part of the statement"},
	"store/clock":           {3, "the schema's name is part of the statement"},
	"store/shards":          {1, "a setting of a transaction takes no parameters"},
	"store/shards/counters": {1, "a setting of a transaction takes no parameters"},
	"store/shards/history":  {1, "a setting of a transaction takes no parameters"},
	"store/shards/kernel":   {3, "COPY, and settings of a transaction, take no parameters"},
}

// statement matches what begins like SQL. Keywords are written in capitals
// everywhere, which keeps sentences out; a keyword alone is a name of the API.
var statement = regexp.MustCompile(`^\s*((SELECT|INSERT INTO|UPDATE|DELETE FROM|MERGE INTO|COPY|TRUNCATE|LOCK TABLE)\s` +
	`|(ANALYZE|VACUUM|EXPLAIN|CHECKPOINT)\b|(CREATE|ALTER|DROP) [A-Z]+\b|WITH \w+ AS\b|SET (LOCAL|SESSION)\b|SET [a-z_]+ ?=)|\b(FROM|JOIN) \w+ .*\bWHERE\b`)

func TestSQLIsInItsOwnFiles(t *testing.T) {
	found := map[string][]string{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && statement.MatchString(text) {
					found[f.pkg] = append(found[f.pkg], f.at(n)+": "+text)
				}
			}
			return true
		})
	}
	for pkg, places := range found {
		if want := allowed[pkg].n; len(places) != want {
			t.Errorf("package %s holds SQL in %d literals, the table allows %d:", pkg, len(places), want)
			for _, p := range places {
				t.Errorf("\t%.120q", p)
			}
		}
	}
	for pkg, a := range allowed {
		if len(found[pkg]) == 0 || a.why == "" {
			t.Errorf("the table allows SQL in package %s, which holds none, or gives no reason", pkg)
		}
	}
}
