package migrations_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/migrations"
)

// TestWhatWaitsBehindAMigrationPasses: the migration waits for the lock of a long transaction, such as a dump, and another
// session wants a lock that the dump would let it have.
func TestWhatWaitsBehindAMigrationPasses(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	const schema = "perceptor_00"
	up := func() error { _, err := migrations.Up(t.Context(), config, schema); return err }
	if err := up(); err != nil {
		t.Fatal(err)
	}
	dump, other := connect(t, config), connect(t, config)
	exec(t, dump, `SET search_path = perceptor_00; DELETE FROM schema_version WHERE version_id = 10; DROP TABLE move_mark, placement, database_place`)
	exec(t, dump, `BEGIN; LOCK TABLE schema_version IN SHARE MODE`)
	done := make(chan error, 1)
	go func() { done <- up() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for waiting := 0; waiting == 0; time.Sleep(10 * time.Millisecond) {
		if err := other.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'perceptor_00.schema_version'::regclass`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("the migration ended with %v beside the lock", err)
		default:
		}
	}
	if _, err := other.Exec(ctx, `BEGIN; LOCK TABLE perceptor_00.schema_version IN SHARE MODE; ROLLBACK`); err != nil {
		t.Errorf("what the migration lets wait: %v", err)
	}
	exec(t, dump, `ROLLBACK`)
	if err := <-done; err != nil {
		t.Errorf("when the lock is free: %v", err)
	}
	if v, err := migrations.Version(t.Context(), config, schema); err != nil || v != migrations.Latest() {
		t.Errorf("version %d, %v", v, err)
	}
}
