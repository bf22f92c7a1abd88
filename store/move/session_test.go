package move

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
)

func TestLimitsThatAServerHasForAllSessionsDoNotEndAMove(t *testing.T) {
	t.Parallel()
	var settings []testenv.PostgresOption
	for _, name := range serverTimeouts {
		settings = append(settings, testenv.Setting(name, "100ms"))
	}
	config, err := pgx.ParseConfig(testenv.NewPostgres(t, settings...).DSN())
	if err != nil {
		t.Fatal(err)
	}
	s, err := (&Mover{}).open(t.Context(), config, "public")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	time.Sleep(200 * time.Millisecond)
	for _, statement := range []string{"SELECT 1", "BEGIN"} {
		if _, err := s.conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	if _, err := s.conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Error(err)
	}
}
