package store

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

//go:embed indexes.sql
var indexesSQL string

// MissingIndexes returns the indexes that most databases have and some lack, or have in a state in which
// PostgreSQL does not use them, with these databases. All databases of one version have the same.
func (c *Cluster) MissingIndexes(ctx context.Context) (map[string][]int, error) {
	var have [task.Databases]map[string]bool
	if err := c.Each(ctx, func(ctx context.Context, d int) (err error) {
		have[d], err = c.indexes(ctx, d)
		return err
	}); err != nil {
		return nil, err
	}
	count := map[string]int{}
	for _, names := range have {
		for name := range names {
			count[name]++
		}
	}
	missing := map[string][]int{}
	for name, n := range count {
		for d := range have {
			if n > task.Databases/2 && !have[d][name] {
				missing[name] = append(missing[name], d)
			}
		}
	}
	return missing, nil
}

// indexes returns the names of the valid indexes of database d.
func (c *Cluster) indexes(ctx context.Context, d int) (map[string]bool, error) {
	rows, err := c.pools[d].Query(ctx, indexesSQL)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	var name string
	_, err = pgx.ForEachRow(rows, []any{&name}, func() error { names[name] = true; return nil })
	return names, err
}
