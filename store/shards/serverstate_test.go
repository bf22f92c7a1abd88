package shards

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// TestAServerTellsItsLog: after a megabyte was written there is more of it.
func TestAServerTellsItsLog(t *testing.T) {
	b := setup(t)
	before, err := b.ServerLoad(t.Context(), b.d)
	if err != nil || before.MaxLog < 1<<20 || before.SinceCheckpoint < 0 || before.Unreplayed != 0 {
		t.Fatalf("%+v, %v", before, err)
	}
	if _, err := b.db.Pool(b.d).Exec(t.Context(), `SELECT pg_logical_emit_message(true, 'test', repeat('x', 1000000))`); err != nil {
		t.Fatal(err)
	}
	after, err := b.ServerLoad(t.Context(), b.d)
	if err != nil || after.SinceCheckpoint < 1000000 {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}
}

// TestTheSpaceOfAServerOnThisMachineIsThatOfItsFileSystem: the test's user owns the server.
func TestTheSpaceOfAServerOnThisMachineIsThatOfItsFileSystem(t *testing.T) {
	b := setup(t)
	space, err := b.ServerSpace(t.Context(), b.d)
	if err != nil {
		t.Fatal(err)
	}
	if len(space.Databases) == 0 || !space.Known() || space.Free <= 0 || space.Free > space.Total || space.MaxLog <= 0 {
		t.Errorf("%+v", space)
	}
}

func TestADirectoryOfAnotherServerSaysNothing(t *testing.T) {
	dir, now := t.TempDir(), time.Now().Unix()
	if isDirectoryOf(dir, "5432", now) {
		t.Error("a directory without postmaster.pid")
	}
	text := "4711\n" + dir + "\n" + strconv.FormatInt(now, 10) + "\n5432\n/tmp\nlocalhost\n"
	if err := os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		port  string
		start int64
		want  bool
	}{"the same": {"5432", now + 2, true}, "another port": {"5433", now, false}, "another start": {"5432", now + 3600, false}} {
		if got := isDirectoryOf(dir, c.port, c.start); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestOfAConfiguredDiskWhatIsUsedIsNotFree: also for a user who may see neither the size of the log nor
// the directory.
func TestOfAConfiguredDiskWhatIsUsedIsNotFree(t *testing.T) {
	const size, role = 1 << 50, "space_reader"
	b := setup(t)
	if _, err := b.db.Pool(b.d).Exec(t.Context(), `CREATE ROLE `+role+` IN ROLE pg_read_all_data`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = b.db.Pool(b.d).Exec(context.Background(), `DROP ROLE `+role) })
	dsn, err := url.Parse(b.db.Pool(b.d).Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	for user, options := range map[string]string{"the owner": "", "another user": "-c role=" + role} {
		q := dsn.Query()
		q.Set("options", options)
		dsn.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // PostgreSQL knows no other blank
		cluster, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: dsn.String(), Storage: size}}, ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		s := New(cluster, Config{})
		space, err := s.ServerSpace(t.Context(), b.d)
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		if len(space.Databases) != task.Databases || space.MaxLog <= 0 {
			t.Errorf("%s: %+v", user, space)
		}
		// Only the owner knows the file system, which is smaller than what is configured.
		if known := options == "" && space.Total < size; !known && (space.Total != size || space.Free > size-space.MaxLog || space.Free < size/2) {
			t.Errorf("%s: %+v", user, space)
		}
		if _, err := s.ServerLoad(t.Context(), b.d); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
}
