package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer/migrate"
)

// installed builds a program of package migrate's testdata by a command, once for each state of its sources, and returns
// its folder.
func installed(t *testing.T, name string, build ...string) string {
	t.Helper()
	from := os.DirFS(filepath.Join("..", "..", "transfer", "migrate", "testdata", name))
	sum := sha256.New()
	err := fs.WalkDir(from, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(from, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "perceptor-migrate", name+"-"+hex.EncodeToString(sum.Sum(nil))[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	draft := dir + fmt.Sprintf("-draft-%d", os.Getpid())
	if err := os.CopyFS(draft, from); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(draft) //nolint:errcheck // a later run has another name
	cmd := exec.CommandContext(t.Context(), build[0], build[1:]...)
	cmd.Dir, cmd.Env = draft, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", build, err, out)
	}
	if err := os.Rename(draft, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// database creates a database on the server of an installation.
func database(t *testing.T, dsn, name string) *url.URL {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // nothing depends on it
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	c := conn.Config()
	q := url.Values{"sslmode": {"disable"}}
	return &url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: fmt.Sprintf("%s:%d", c.Host, c.Port), Path: "/" + name, RawQuery: q.Encode()}
}

// fires are the instants at which another scheduler fires, by the name of the schedule.
func fires(t *testing.T, out []byte, scheduler string) map[string][]int64 {
	t.Helper()
	all := map[string][]int64{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != scheduler {
			continue
		}
		for _, w := range words[2:] {
			ms, err := strconv.ParseInt(w, 10, 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all[words[1]] = append(all[words[1]], ms)
		}
	}
	return all
}

// TestSchedulesOfOthersFireWhenTheyWould reads tables that the libraries themselves have written.
func TestSchedulesOfOthersFireWhenTheyWould(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation and builds Java programs; make test runs it")
	}
	java := installed(t, "java", "mvn", "--batch-mode", "--quiet", "package")
	river := installed(t, "river", "go", "build", "-o", "program", ".")
	at := installation(t, withTables(t))
	dsn := database(t, at.Postgres, "others")
	jdbc := url.URL{Scheme: "jdbc:postgresql", Host: dsn.Host, Path: dsn.Path}
	password, _ := dsn.User.Password()
	jdbc.RawQuery = url.Values{"user": {dsn.User.Username()}, "password": {password}}.Encode()
	jars := filepath.Join(java, "target", "lib", "*") + string(os.PathListSeparator) + filepath.Join(java, "target", "schedules.jar")
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "java", "-cp", jars, "Schedules", jdbc.String())
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s%s", err, out.Bytes(), errs.Bytes())
	}
	cmd = exec.CommandContext(t.Context(), filepath.Join(river, "program"))
	cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	conn, err := grpc.NewClient(at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing depends on it
	api := perceptorv1.NewTaskServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+at.Token)
	for _, scheduler := range []string{"PROPERTIES", "OBJECTS"} {
		t.Run("quartz with "+scheduler, func(t *testing.T) {
			checkQuartz(ctx, t, api, dsn.String(), scheduler, fires(t, out.Bytes(), scheduler))
		})
	}
	t.Run("quartz, imported", func(t *testing.T) {
		s := &shell{at: at, dir: t.TempDir()}
		s.file(t, "token", []byte(at.Token))
		checkImported(ctx, t, s, api, dsn.String(), fires(t, out.Bytes(), "PROPERTIES"))
	})
	t.Run("quartz, two schedulers", func(t *testing.T) { checkTwins(t, dsn.String()) })
	t.Run("db-scheduler", func(t *testing.T) { checkDBScheduler(t, dsn.String()) })
	t.Run("river", func(t *testing.T) { checkRiver(t, dsn.String()) })
}

func checkQuartz(ctx context.Context, t *testing.T, api perceptorv1.TaskServiceClient, dsn, scheduler string, want map[string][]int64) {
	tasks, others, err := migrate.All(ctx, migrate.Options{Scheduler: "quartz", DSN: dsn, Of: scheduler})
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{"other.daily": "DAILY_I", "other.holidays": "calendar", "calendar.month-ends": "day 31"}
	if scheduler == "OBJECTS" {
		reasons["mail.objects"] = "java.time.Ser is not a text"
	}
	for _, i := range others {
		if part := reasons[i.Name]; part == "" || !strings.Contains(i.Reason, part) {
			t.Errorf("%s has no counterpart: %s", i.Name, i.Reason)
		}
		delete(reasons, i.Name)
		delete(want, i.Name)
	}
	if len(reasons) > 0 {
		t.Errorf("%v have counterparts", reasons)
	}
	for _, i := range tasks {
		p, err := api.PreviewSchedule(ctx, &perceptorv1.PreviewScheduleRequest{Task: i.Task, AfterTime: timestamppb.New(i.Next.Time().Add(-time.Millisecond)), Count: int32(len(want[i.Name]))})
		if err != nil {
			t.Errorf("%s: %v: %v", i.Name, i.Task, err)
			continue
		}
		var got []int64
		for _, at := range p.Instants {
			got = append(got, at.AsTime().UnixMilli())
		}
		if !slices.Equal(got, want[i.Name]) {
			t.Errorf("%s (%v): Quartz fires at %v, Perceptor at %v", i.Name, i.Task, times(want[i.Name]), times(got))
		}
		if i.Paused != (i.Name == "cron.paused") || i.Task.Params["of"] != "job" {
			t.Errorf("%s: paused %t, params %v", i.Name, i.Paused, i.Task.Params)
		}
		switch i.Name {
		case "mail.once", "cron.weekdays":
			if i.Task.Params["customer"] != "42" || i.Task.Params["text"] != "Grüße = \"ja\": # !\n\\ 世" {
				t.Errorf("%s: params %q", i.Name, i.Task.Params)
			}
		case "mail.numbers":
			if diff := cmp.Diff(map[string]string{"of": "job", "count": "7", "exact": "true", "size": "1234567890123", "name": "n"}, i.Task.Params); diff != "" {
				t.Error(diff)
			}
		}
		delete(want, i.Name)
	}
	if len(want) > 0 {
		t.Errorf("not read: %v", want)
	}
}

// checkImported imports the schedules twice: they have one task each, whose next run is when Quartz
// would have fired.
func checkImported(ctx context.Context, t *testing.T, s *shell, api perceptorv1.TaskServiceClient, dsn string, want map[string][]int64) {
	tasks, others, err := migrate.All(ctx, migrate.Options{Scheduler: "quartz", DSN: dsn, Of: "PROPERTIES"})
	if err != nil {
		t.Fatal(err)
	}
	for _, count := range []string{"addedCount", "skippedCount"} {
		_, i := s.imports(t, 0, "--from", "quartz", dsn, "--of", "PROPERTIES")
		if i.is(count) != strconv.Itoa(len(tasks)) || i.UnreadableCount != strconv.Itoa(len(others)) {
			t.Errorf("%s %s and %s without counterpart, want %d and %d", count, i.is(count), i.UnreadableCount, len(tasks), len(others))
		}
	}
	if rejects := s.rejected(t); len(rejects) != len(others) || rejects[0].Column != others[0].Name || rejects[0].Rule != others[0].Reason {
		t.Errorf("rejected %+v, want %d", rejects, len(others))
	}
	for _, i := range tasks {
		got, err := api.GetTask(ctx, &perceptorv1.GetTaskRequest{IdempotencyKey: i.Task.IdempotencyKey})
		if err != nil {
			t.Errorf("%s: %v", i.Name, err)
			continue
		}
		if at := got.ScheduledTime.AsTime().UnixMilli(); at != want[i.Name][0] || got.Paused != i.Paused || got.RunCount != i.Runs {
			t.Errorf("%s is next at %v, paused %t, after %d runs; want %v, %t, %d", i.Name, times([]int64{at}), got.Paused, got.RunCount, times(want[i.Name][:1]), i.Paused, i.Runs)
		}
	}
	if r, _ := s.imports(t, 2, "--from", "cron", dsn); !strings.Contains(r.stderr, `"cron" is not one of`) {
		t.Error(r.stderr)
	}
}

// checkTwins reads the tables of two schedulers, whose triggers have the same names: no task has the key of another one, or
// the import would skip it as known.
func checkTwins(t *testing.T, dsn string) {
	tasks, others, err := migrate.All(t.Context(), migrate.Options{Scheduler: "quartz", DSN: dsn, KeyPrefix: "app"})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, i := range tasks {
		if key := i.Task.IdempotencyKey; seen[key] || key != "app:"+i.Name {
			t.Errorf("%s has the key %q, of another trigger: %t", i.Name, key, seen[key])
		}
		seen[i.Task.IdempotencyKey] = true
	}
	twins := 0
	for _, i := range others {
		if strings.Contains(i.Reason, `the scheduler "OBJECTS" has a trigger of this name`) {
			twins++
		}
	}
	if len(tasks) == 0 || twins < len(tasks)-1 { // OBJECTS alone has mail.numbers
		t.Errorf("%d tasks, and %d triggers of PROPERTIES with the same names", len(tasks), twins)
	}
}

func times(ms []int64) (list []string) {
	for _, n := range ms {
		list = append(list, time.UnixMilli(n).UTC().Format("2006-01-02T15:04"))
	}
	return list
}

func checkDBScheduler(t *testing.T, dsn string) {
	tasks, others, err := migrate.All(t.Context(), migrate.Options{Scheduler: "db-scheduler", DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, i := range tasks {
		got[i.Name] = fmt.Sprintln(i.Task.Kind, i.Task.Type, i.Task.BeginTime.AsTime().Format(time.RFC3339Nano), i.Task.IdempotencyKey, i.Task.Params)
	}
	if diff := cmp.Diff(map[string]string{
		"mail/text":    "mail ONE_SHOT 2030-01-28T08:30:00.123Z db-scheduler:mail/text map[data:for 42]\n",
		"mail/none":    "mail ONE_SHOT 2030-01-28T08:30:00Z db-scheduler:mail/none map[]\n",
		"mail/number":  "mail ONE_SHOT 2030-01-29T08:30:00Z db-scheduler:mail/number map[data:42]\n",
		"invoice/json": "invoice ONE_SHOT 2030-02-01T00:00:00Z db-scheduler:invoice/json map[customer:42 gross:19.99 lines:[1,2]]\n",
	}, got); diff != "" {
		t.Error(diff)
	}
	if len(others) != 1 || others[0].Name != "nightly/recurring" {
		t.Errorf("without counterpart: %v", others)
	}
}

func checkRiver(t *testing.T, dsn string) {
	tasks, others, err := migrate.All(t.Context(), migrate.Options{Scheduler: "river", DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	if len(tasks) != 2 || len(others) != 0 {
		t.Fatalf("%v, and without counterpart %v", tasks, others)
	}
	m := tasks[0].Task
	if m.Kind != "mail" || m.IdempotencyKey != "river:1" || m.BeginTime.AsTime().Format(time.RFC3339Nano) != "2030-01-28T08:30:00.123Z" || m.RetryPolicy.MaxAttempts != 7 || !slices.Equal(m.Tags, []string{"campaign"}) ||
		!cmp.Equal(m.Params, map[string]string{"customer": "42", "lines": "[1, 2]", "gross": "19.99"}) {
		t.Errorf("the first job became %v", m)
	}
	if e := tasks[1]; e.Task.Kind != "empty" || len(e.Task.Params) != 0 || len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "slow") {
		t.Errorf("the second job became %v, %v", e.Task, e.Notes)
	}
}
