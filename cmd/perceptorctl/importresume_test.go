package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func testConflicts(t *testing.T, s *shell) {
	at := func(key, when string) string {
		return "conflict,ONE_SHOT,2031-01-01T" + when + "Z," + key + "," + key + "\n"
	}
	head := "kind,type,begin_time,idempotency_key,params.k\n"
	first := s.file(t, "a.csv", []byte(head+at("a", "00:00:00")+at("b", "00:00:00")))
	second := s.file(t, "b.csv", []byte(head+at("b", "01:00:00")+at("c", "01:00:00")+at("a", "00:00:00")))
	hour := func(key string) int { return s.tasks(t, "conflict", "k")[key].GetBeginTime().AsTime().Hour() }
	s.imports(t, 0, first)
	_, i := s.imports(t, 0, second)
	if i.is("addedCount") != "1" || i.is("skippedCount") != "2" || hour("b") != 0 || hour("c") != 1 {
		t.Errorf("skip: the result is %+v", i)
	}
	_, i = s.imports(t, 0, second, "--on-conflict", "update")
	if i.is("addedCount") != "0" || hour("b") != 1 {
		t.Errorf("update: the result is %+v, and b begins at %d h", i, hour("b"))
	}
	third := s.file(t, "c.csv", []byte(head+at("a", "00:00:00")+at("b", "02:00:00")))
	_, i = s.imports(t, 0, third, "--on-conflict", "fail")
	if i.is("rejectedCount") != "1" || i.is("skippedCount") != "1" || hour("b") != 1 {
		t.Errorf("fail: the result is %+v", i)
	}
	if all := s.rejected(t); len(all) != 1 || all[0].Line != 3 {
		t.Errorf("rejected: %+v", all)
	}
}

func testDryRun(t *testing.T, s *shell) {
	var text []byte
	for i := range 100 {
		text = fmt.Appendf(text, "{\"kind\":\"dry\",\"type\":\"NON_BLOCKING\",\"interval\":\"86400s\",\"beginTime\":%q}\n", time.Now().Add(50*time.Hour).Truncate(time.Hour).Add(time.Duration(i)*time.Second).Format(time.RFC3339))
	}
	name := s.file(t, "a.jsonl", text)
	_, i := s.imports(t, 0, name, "--dry-run")
	if i.is("addedCount") != "100" || len(i.Forecast) == 0 || i.Forecast[0].Count != "100" || i.Forecast[0].Seconds != 3600 {
		t.Errorf("the result is %+v", i)
	}
	if all := s.tasks(t, "dry", "n"); len(all) != 0 {
		t.Errorf("a dry run has stored %d tasks", len(all))
	}
	r := s.run(t, "import", name, "--dry-run")
	if r.code != 0 || !strings.Contains(r.stdout, "BUSIEST HOUR") || !strings.Contains(r.stdout, "(dry run)") {
		t.Errorf("it ends with %d and says %s%s", r.code, r.stdout, r.stderr)
	}
	const unchecked = "keys were not looked up"
	if strings.Contains(r.stderr, unchecked) {
		t.Errorf("without keys it says %s", r.stderr)
	}
	keyed := []byte(strings.Repeat("{\"kind\":\"dry\",\"type\":\"ONE_SHOT\",\"idempotencyKey\":\"k\"}\n", 2))
	if r, i := s.imports(t, 0, s.file(t, "c.jsonl", keyed), "--dry-run"); i.is("addedCount") != "2" || !strings.Contains(r.stderr, unchecked) {
		t.Errorf("with a key on two lines the result is %+v, %s", i, r.stderr)
	}
	name = s.file(t, "b.jsonl", append(text, "{\"kind\":\"dry\"}\n"...))
	if r, i := s.imports(t, 1, name, "--dry-run"); i.is("rejectedCount") != "1" || !strings.Contains(r.stderr, "1 line would be rejected") {
		t.Errorf("the result is %+v, %s", i, r.stderr)
	}
}

// program starts perceptorctl as a process.
func (s *shell) program(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"--address", s.at.GRPC, "--token-file", filepath.Join(s.dir, "token")}, args...)...)
	cmd.Env = append(os.Environ(), mainVariable+"=1")
	cmd.Dir = s.dir
	var said bytes.Buffer
	cmd.Stderr, cmd.Stdout = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &said
}

// newest returns the newest import.
func (s *shell) newest(t *testing.T) (id string, chunks int) {
	t.Helper()
	r := s.run(t, "import", "list", "-o", "json", "--limit", "1")
	var page struct {
		Imports []struct{ ID, ChunkCount string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &page); err != nil || len(page.Imports) == 0 {
		return "", 0
	}
	chunks, _ = strconv.Atoi(page.Imports[0].ChunkCount)
	return page.Imports[0].ID, chunks
}

func testKilled(t *testing.T, s *shell) {
	const n = 30_000
	text := csvLines(0, n)
	text = bytes.Replace(text, []byte(",20000,1\n"), []byte(",20000,many\n"), 1) // cannot be read
	text = bytes.Replace(text, []byte(",29000,1\n"), []byte(",29000,7\n"), 1)    // the service rejects it
	text = bytes.Replace(text, []byte(",100,1\n"), []byte(",100,7\n"), 1)
	name := s.file(t, "a.csv", text)
	before, _ := s.newest(t)
	rate := []string{"import", name, "--kind", "killed", "--chunk-lines", "250", "--rate", "5000"}
	cmd, said := s.program(t, rate...)
	id := ""
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		now, chunks := s.newest(t)
		if now != before && chunks >= 5 {
			id = now
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no chunk is stored: %s", said)
		}
	}
	cmd.Process.Kill() //nolint:errcheck // Wait tells
	if err := cmd.Wait(); err == nil {
		t.Fatal("the import ended before it was killed")
	}
	_, i := s.imports(t, 0, "resume", id)
	if i.is("addedCount") != strconv.Itoa(n-3) || i.is("state") != "FINISHED" || i.is("rejectedCount") != "2" || i.UnreadableCount != "1" {
		t.Errorf("the result is %+v", i)
	}
	all := s.tasks(t, "killed", "n")
	if len(all) != n-3 {
		t.Errorf("%d tasks, want %d", len(all), n-3)
	}
	for k := range n {
		if (all[strconv.Itoa(k)] == nil) != (k == 100 || k == 20000 || k == 29000) {
			t.Errorf("line %d: there %t", k, all[strconv.Itoa(k)] != nil)
		}
	}
	if all := s.rejected(t); len(all) != 2+1 {
		t.Errorf("rejected: %+v, want each of three once", all)
	}
}

// lateImports is away for the first calls, and then knows no import.
type lateImports struct {
	perceptorv1.UnimplementedImportServiceServer
	away atomic.Int32 // calls
}

func (l *lateImports) GetImport(context.Context, *perceptorv1.GetImportRequest) (*perceptorv1.Import, error) {
	if l.away.Add(-1) >= 0 {
		return nil, status.Error(codes.Unavailable, "no database answers")
	}
	return nil, status.Error(codes.NotFound, "there is no import 17")
}

// The servers restart, and a job resumes the import that they have interrupted.
func TestAnImportThatIsResumedWaitsForTheService(t *testing.T) {
	service := &lateImports{}
	service.away.Store(2)
	api(t, func(s *grpc.Server) { perceptorv1.RegisterImportServiceServer(s, service) })
	if out := ctlOver(t)(cli.NotFound, "import", "resume", "17"); strings.Count(out, "trying again in") != 2 {
		t.Errorf("it says %s", out)
	}
}

func TestAnImportWithoutPatienceEndsWhenTheServiceIsAway(t *testing.T) {
	service := &lateImports{}
	service.away.Store(1)
	api(t, func(s *grpc.Server) { perceptorv1.RegisterImportServiceServer(s, service) })
	ctlOver(t)(cli.Unavailable, "import", "resume", "17", "--retry-for", "0s")
}

func testChanged(t *testing.T, s *shell) {
	text := append(csvLines(0, 100), "bad\nbad\n"...)
	name := s.file(t, "a.csv", text)
	r, _ := s.imports(t, 1, name, "--kind", "changed", "--max-rejects", "1", "--chunk-lines", "10")
	id := idIn(t, r.stderr)
	moved := filepath.Join(s.dir, "moved.csv")
	if err := os.Rename(name, moved); err != nil {
		t.Fatal(err)
	}
	if r, _ := s.imports(t, 2, "resume", id, "--max-rejects", "0"); !strings.Contains(r.stderr, "name the files again") {
		t.Errorf("a file that is not there: %s", r.stderr)
	}
	info, err := os.Stat(moved)
	if err != nil {
		t.Fatal(err)
	}
	s.file(t, "moved.csv", append(csvLines(0, 100), "bad\nworse\n"...))
	if r, _ := s.imports(t, 4, "resume", id, moved, "--max-rejects", "0"); !strings.Contains(r.stderr, "has changed") {
		t.Errorf("a file of another size: %s", r.stderr)
	}
	// With the same size and time only the checksum of the lines tells.
	s.file(t, "moved.csv", bytes.Replace(text, []byte(",17,1\n"), []byte(",18,1\n"), 1))
	if err := os.Chtimes(moved, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if r, _ := s.imports(t, 4, "resume", id, moved, "--max-rejects", "0"); !strings.Contains(r.stderr, "the input has changed") {
		t.Errorf("a file with another line: %s", r.stderr)
	}
	s.file(t, "moved.csv", text)
	if err := os.Chtimes(moved, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	s.imports(t, 0, "resume", id, moved, "--max-rejects", "0")
	if all := s.tasks(t, "changed", "n"); len(all) != 100 {
		t.Errorf("%d tasks, want 100", len(all))
	}
	if r, _ := s.imports(t, 4, "resume", id, moved); !strings.Contains(r.stderr, "FINISHED") {
		t.Errorf("a finished import: %s", r.stderr)
	}
}

// rollbackMeanwhile rolls an import back that another command is sending.
func (s *shell) rollbackMeanwhile(t *testing.T) {
	before, _ := s.newest(t)
	cmd, said := s.program(t, "import", s.file(t, "b.csv", csvLines(0, 1000)), "--kind", "back", "--chunk-lines", "10", "--rate", "100")
	id := before
	for deadline := time.Now().Add(time.Minute); id == before && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		id, _ = s.newest(t)
	}
	if r := s.run(t, "import", "rollback", id); r.code != 0 {
		t.Errorf("the rollback ends with %d and says %s", r.code, r.stderr)
	}
	_ = cmd.Wait() // the text tells
	text := said.String()
	if code := cmd.ProcessState.ExitCode(); code != 4 || !strings.Contains(text, "import "+id+" is not complete: import "+id+" is") || !strings.Contains(text, "import get "+id) || strings.Contains(text, "import resume") {
		t.Errorf("the import ends with %d and says %s", code, text)
	}
}

func testRollback(t *testing.T, s *shell) {
	_, i := s.imports(t, 0, s.file(t, "a.csv", csvLines(0, 1000)), "--kind", "back", "--chunk-lines", "100")
	r := s.run(t, "import", "rollback", i.is("id"), "--follow")
	if r.code != 0 || !regexp.MustCompile(`(?m)^removed +1000$`).MatchString(r.stdout) || !strings.Contains(r.stdout, "ROLLED_BACK") {
		t.Errorf("it ends with %d and says %s%s", r.code, r.stdout, r.stderr)
	}
	if all := s.tasks(t, "back", "n"); len(all) != 0 {
		t.Errorf("%d tasks are left", len(all))
	}
	for _, args := range [][]string{{"get", i.is("id")}, {"list"}, {"watch", i.is("id")}} {
		if r := s.run(t, append([]string{"import"}, args...)...); r.code != 0 || !strings.Contains(r.stdout, "ROLLED_BACK") {
			t.Errorf("import %v ends with %d and says %s%s", args, r.code, r.stdout, r.stderr)
		}
	}
	s.rollbackMeanwhile(t)
}

func testRestore(t *testing.T, s *shell) {
	line := `{"id":"1","kind":"restored","type":"NON_BLOCKING","beginTime":"2026-01-01T00:00:00Z","interval":"3600s","maxCount":"1000000","params":{"n":"1"},"state":"SCHEDULED","paused":true,` +
		`"runCount":"40","missedCount":"3","scheduledTime":"2031-01-01T02:00:00Z"}`
	name := s.file(t, "a.jsonl", []byte(line+"\n"))
	s.imports(t, 0, name, "--restore")
	x := s.tasks(t, "restored", "n")["1"]
	if x == nil || x.RunCount != 40 || x.MissedCount != 3 || !x.Paused || x.ScheduledTime.AsTime().Format(time.RFC3339) != "2031-01-01T02:00:00Z" {
		t.Errorf("the task is %v", x)
	}
}

func testNonsense(t *testing.T, s *shell) {
	for name, content := range map[string][]byte{
		"binary.csv": {0x7f, 'E', 'L', 'F', 0}, "empty.csv": nil, "text.parquet": []byte("kind,type\n"), "utf16.jsonl": {0xff, 0xfe, '{', 0}, "cut.csv.gz": {0x1f, 0x8b, 8, 0},
	} {
		before, _ := s.newest(t)
		r, _ := s.imports(t, 2, s.file(t, name, content), "--kind", "x", "--type", "one-shot")
		if after, _ := s.newest(t); after != before || !strings.Contains(r.stderr, name) {
			t.Errorf("%s: an import was begun, or it says %s", name, r.stderr)
		}
	}
	_, i := s.imports(t, 0, s.file(t, "header.csv", []byte("kind,type\n")))
	if i.is("lineCount") != "0" {
		t.Errorf("a header alone: %+v", i)
	}
}

func testUsage(t *testing.T, s *shell) {
	name := s.file(t, "a.csv", []byte("type\nONE_SHOT\n"))
	for want, args := range map[string][]string{
		"--format is needed":              {"-"},
		"cannot be imported together":     {"-", name, "--format", "csv"},
		"no column is the kind of a task": {name},
		"--on-conflict":                   {name, "--on-conflict", "often"},
		"--time-format":                   {name, "--time-format", "julian"},
		"--time-zone":                     {name, "--time-zone", "Mars/Olympus"},
		"--duration-unit":                 {name, "--duration-unit", "weeks"},
		"is not one ASCII character":      {name, "--delimiter", "ab"},
		"must differ":                     {name, "--quote", ","},
		"is not COLUMN=FIELD":             {name, "--map", "kind"},
		"no such column":                  {name, "--map", "x=kind"},
		"is not a field of a task":        {name, "--map", "type=kid"},
		"--chunk-lines: 0 is not":         {name, "--chunk-lines", "0"},
		"does not tell its format":        {s.file(t, "a.xls", nil)},
		"needs one argument, the query":   {name, name, "--from-sql", "x"},
		"is not the id of an import":      {"resume", "x"},
		"--type: \"often\" is not one of": {name, "--type", "often"},
	} {
		if r, _ := s.imports(t, 2, args...); !strings.Contains(r.stderr, want) {
			t.Errorf("import %v says %s, want %q", args, r.stderr, want)
		}
	}
	if r := s.run(t, "import", "get", "999999"); r.code != 3 {
		t.Errorf("an import that is not there: %d %s", r.code, r.stderr)
	}
}
