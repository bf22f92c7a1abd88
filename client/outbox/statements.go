package outbox

import (
	"embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/perceptor/perceptor/store/statement"
)

var (
	//go:embed sql/schema/schema.sql
	schemaText string
	//go:embed sql/*.sql
	sqlFiles embed.FS
)

// DefaultSchema is the name of the schema with the tables of an outbox.
const DefaultSchema = "perceptor_outbox"

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

func checkSchema(name string) error {
	if !schemaName.MatchString(name) {
		return fmt.Errorf("Schema %q: want 1 to 63 lower-case letters, digits and underscores, no digit first", name)
	}
	return nil
}

// statements are the statements for one schema.
type statements struct {
	writeOne, writeKeyed, writeMany                                      *statement.Statement
	installed, renew, leave, batches, pending, claim, read, keys, finish *statement.Statement
	listen, announced, announce                                          *statement.Statement
	settings, backlog, refusedList, refusedRetry, refusedDiscard         *statement.Statement
}

func statementsOf(schema string) *statements {
	set := statement.MustLoad(sub(), map[string]string{"schema": schema})
	return &statements{
		writeOne: set.Get("WriteOne"), writeKeyed: set.Get("WriteKeyed"), writeMany: set.Get("WriteMany"),
		installed: set.Get("Installed"), renew: set.Get("Renew"), leave: set.Get("Leave"), batches: set.Get("Batches"),
		pending: set.Get("Pending"), claim: set.Get("Claim"), read: set.Get("Read"), keys: set.Get("Keys"), finish: set.Get("Finish"),
		listen: set.Get("Listen"), announced: set.Get("Announced"), announce: set.Get("Announce"),
		settings: set.Get("Settings"), backlog: set.Get("Backlog"), refusedList: set.Get("RefusedList"), refusedRetry: set.Get("RefusedRetry"), refusedDiscard: set.Get("RefusedDiscard"),
	}
}

// ddl returns the statements that create the tables of an outbox.
func ddl(schema string) string {
	return strings.NewReplacer("{{schema}}", schema, "{{schema_name}}", schema).Replace(schemaText)
}
