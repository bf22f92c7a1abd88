package store

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

//go:embed indexes.sql
var indexesSQL string

// relation is a table, or an index of it.
type relation struct{ table, index string }

// Missing has what most databases have and some lack, with these databases.
type Missing struct {
	Tables map[string][]int
	// Indexes are those of tables that are there, and indexes in a state in which PostgreSQL does not use them.
	Indexes map[string][]int
}

// Missing returns the tables and the indexes that are missing. All databases of one version have the same.
func (c *Cluster) Missing(ctx context.Context) (Missing, error) {
	var have [task.Databases]map[relation]bool
	if err := c.Each(ctx, func(ctx context.Context, d int) (err error) {
		have[d], err = c.relations(ctx, d)
		return err
	}); err != nil {
		return Missing{}, err
	}
	count := map[relation]int{}
	for _, all := range have {
		for r := range all {
			count[r]++
		}
	}
	missing := Missing{map[string][]int{}, map[string][]int{}}
	for r, n := range count {
		for d := range have {
			switch {
			case n <= task.Databases/2 || have[d][r]:
			case r.index == "":
				missing.Tables[r.table] = append(missing.Tables[r.table], d)
			case have[d][relation{table: r.table}]:
				missing.Indexes[r.index] = append(missing.Indexes[r.index], d)
			}
		}
	}
	return missing, nil
}

// relations returns the tables and the valid indexes of database d.
func (c *Cluster) relations(ctx context.Context, d int) (map[relation]bool, error) {
	rows, err := c.pools[d].Query(ctx, indexesSQL)
	if err != nil {
		return nil, err
	}
	all := map[relation]bool{}
	var r relation
	_, err = pgx.ForEachRow(rows, []any{&r.table, &r.index}, func() error { all[r] = true; return nil })
	return all, err
}
