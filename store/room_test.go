package store_test

import (
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/store/storetest"
)

// The question for room must write to the disk of the server, or a full one answers it, too.
func TestTheQuestionForRoomWritesToTheDisk(t *testing.T) {
	t.Parallel()
	c := storetest.OpenDSN(t, storetest.DSN(t))
	if err := c.Room(t.Context(), 0); err != nil {
		t.Errorf("Room = %v on a disk with room", err)
	}
	question, err := os.ReadFile("room.sql")
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), c.Pool(0), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL work_mem = '64kB'; SET LOCAL temp_file_limit = '900kB'"); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), string(question))
		return err
	})
	const limitExceeded = "53400"
	if refused := (*pgconn.PgError)(nil); !errors.As(err, &refused) || refused.Code != limitExceeded {
		t.Errorf("with a limit of 900 kB for temporary files: %v, want that it is exceeded", err)
	}
}
