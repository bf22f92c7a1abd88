package store

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestADatabaseIsFullForAWhileAfterItHasRefusedToWrite(t *testing.T) {
	var f fullness
	now := time.Now()
	f.note(&pgconn.PgError{Code: "42P01"}, now)
	if f.full(now) {
		t.Error("another error counts")
	}
	f.note(&pgconn.PgError{Code: "53100"}, now)
	if !f.full(now.Add(fullFor - 1)) {
		t.Error("a refusal is forgotten too soon")
	}
	if f.full(now.Add(fullFor)) {
		t.Error("the database counts as full for ever")
	}
}

func TestTheDatabasesWithoutRoomAreCounted(t *testing.T) {
	var c Cluster
	c.full[3].note(&pgconn.PgError{Code: diskFull}, time.Now())
	c.full[5].note(&pgconn.PgError{Code: diskFull}, time.Now().Add(-2*fullFor))
	if n := c.Full(); n != 1 {
		t.Errorf("%d databases are full, want 1", n)
	}
	if refused := error(&pgconn.PgError{Code: "53400"}); DiskFull(refused) || DiskFull(nil) || !DiskFull(ErrFull) {
		t.Error("DiskFull mistakes an error")
	}
}
