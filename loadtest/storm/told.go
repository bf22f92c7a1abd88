package storm

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// rows has, for each task in rows of its own, a digest of all its rows in a server.
type rows map[task.ID]string

// readRows reads the rows of all tasks on a server.
func readRows(ctx context.Context, dsn string) (rows, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("read the rows of a server: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the connection is not used again
	all := rows{}
	for d := range task.Databases {
		schema := pgx.Identifier{store.SchemaName(d)}.Sanitize()
		var exists bool
		if err := conn.QueryRow(ctx, "SELECT to_regnamespace($1) IS NOT NULL", store.SchemaName(d)).Scan(&exists); err != nil {
			return nil, fmt.Errorf("read the rows of a server: %w", err)
		}
		if !exists {
			continue
		}
		found, err := conn.Query(ctx, strings.ReplaceAll(digests, "{schema}", schema))
		if err != nil {
			return nil, fmt.Errorf("read the rows of a server: %w", err)
		}
		var id int64
		var digest string
		if _, err := pgx.ForEachRow(found, []any{&id, &digest}, func() error {
			all[task.ID(id)] = digest
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read the rows of a server: %w", err)
		}
	}
	return all, nil
}

// digests is a query for the digests of the rows of each task in a schema.
const digests = `SELECT id, md5(string_agg(line, E'\n' ORDER BY line)) FROM (
  SELECT id, t::text AS line FROM {schema}.task t
  UNION ALL SELECT id, d::text FROM {schema}.task_done d
  UNION ALL SELECT id, r::text FROM {schema}.dead_run r) l
 GROUP BY id`

// told collects what servers have lost.
type told struct {
	mu sync.Mutex
	check.Told
}

// add adds the tasks whose rows in a former primary differ from those in the copy that
// replaced it. It returns their number.
func (t *told) add(had, is rows) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Tasks == nil {
		t.Tasks = map[task.ID]bool{}
	}
	for id, digest := range had {
		now, exists := is[id]
		if now == digest {
			continue
		}
		n++
		t.Tasks[id] = t.Tasks[id] || !exists
	}
	for id := range is { // finished and purged since
		if _, exists := had[id]; !exists {
			n++
			if _, told := t.Tasks[id]; !told {
				t.Tasks[id] = false
			}
		}
	}
	return n
}

// has reports whether a change of the task was lost.
func (t *told) has(id task.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, lost := t.Tasks[id]
	return lost
}

// any reports whether a change of any task was lost.
func (t *told) any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.Tasks) > 0
}

// loss returns what was lost, or nil if nothing was.
func (t *told) loss() *check.Told {
	if len(t.Tasks) == 0 {
		return nil
	}
	return &t.Told
}

// numbers collects the numbers of the tasks that were lost as a whole.
type numbers struct{ *told }

// Task implements [history.Sink].
func (n numbers) Task(t check.Task) {
	if gone := n.Tasks[t.ID]; gone && t.Add != nil {
		if n.Numbers == nil {
			n.Numbers = map[int64]bool{}
		}
		n.Numbers[t.Add.Number] = true
	}
}
