package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/dev"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// shell runs commands in this process against an installation.
type shell struct {
	at    dev.Info
	dir   string
	stdin io.Reader
}

// result is what a command has said.
type result struct {
	code           int
	stdout, stderr string
}

func (s *shell) run(t *testing.T, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	root := newCommand()
	root.SetArgs(append([]string{"--address", s.at.GRPC, "--token-file", filepath.Join(s.dir, "token")}, args...))
	root.SetOut(&out)
	root.SetErr(&errs)
	if s.stdin != nil {
		root.SetIn(s.stdin)
	}
	return result{cli.Run(t.Context(), root), out.String(), errs.String()}
}

// imports runs an import that must end with a code, and returns its result.
func (s *shell) imports(t *testing.T, code int, args ...string) (r result, i *imported) {
	t.Helper()
	r = s.run(t, append([]string{"-o", "json", "import", "--reject-file", filepath.Join(s.dir, "rejects")}, args...)...)
	if r.code != code {
		t.Fatalf("import %v ended with %d, want %d: %s%s", args, r.code, code, r.stdout, r.stderr)
	}
	i = &imported{}
	if r.stdout != "" {
		if err := json.Unmarshal([]byte(r.stdout), i); err != nil {
			t.Fatalf("%s: %v", r.stdout, err)
		}
	}
	return r, i
}

// imported is the result of an import in JSON.
type imported struct {
	Import                      map[string]any
	UnreadableCount, RejectFile string
	Forecast                    []struct {
		StartTime time.Time
		Seconds   int
		Count     string
	}
}

// is returns a field of the import; JSON leaves out numbers that are 0.
func (i *imported) is(name string) string {
	text, ok := i.Import[name].(string)
	if !ok {
		return "0"
	}
	return text
}

func (s *shell) file(t *testing.T, name string, content []byte) string {
	t.Helper()
	name = filepath.Join(s.dir, name)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// tasks returns the tasks of a kind by one of their params.
func (s *shell) tasks(t *testing.T, kind, param string) map[string]*perceptorv1.Task {
	t.Helper()
	conn, err := grpc.NewClient(s.at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing depends on it
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+s.at.Token)
	all, token := map[string]*perceptorv1.Task{}, ""
	for {
		page, err := perceptorv1.NewTaskServiceClient(conn).ListTasks(ctx, &perceptorv1.ListTasksRequest{Kind: kind, PageSize: 1000, PageToken: token, Complete: true})
		if status.Code(err) == codes.ResourceExhausted { // the rate of reads
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range page.Tasks {
			if all[x.Params[param]] != nil {
				t.Errorf("the task with %s %q is there twice", param, x.Params[param])
			}
			all[x.Params[param]] = x
		}
		if token = page.NextPageToken; token == "" {
			return all
		}
	}
}

// testRoom: the server is on this machine, so its space is known, and no import of a million gigabytes begins.
func testRoom(t *testing.T, s *shell) {
	conn, err := grpc.NewClient(s.at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing depends on it
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+s.at.Token)
	api := perceptorv1.NewImportServiceClient(conn)
	plan, err := api.PlanImport(ctx, &perceptorv1.PlanImportRequest{ExpectedBytes: 1 << 50})
	if err != nil || len(plan.Servers) != 1 || plan.Servers[0].Fits || plan.Servers[0].TotalBytes <= 0 || plan.Servers[0].NeededBytes <= 1<<50 {
		t.Errorf("the plan is %v, %v", plan, err)
	}
	_, err = api.CreateImport(ctx, &perceptorv1.CreateImportRequest{Import: &perceptorv1.Import{ExpectedBytes: 1 << 50}})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the databases 0 to 15") {
		t.Errorf("the import: %v", err)
	}
	i, err := api.CreateImport(ctx, &perceptorv1.CreateImportRequest{Import: &perceptorv1.Import{ExpectedBytes: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	if i.PauseReason != perceptorv1.Import_PAUSE_REASON_UNSPECIFIED || i.ExpectedBytes != 1000 {
		t.Errorf("the import is %v", i)
	}
	if _, err := api.AbortImport(ctx, &perceptorv1.AbortImportRequest{Id: i.Id}); err != nil {
		t.Error(err)
	}
	for reason, words := range perceptorv1.Import_PauseReason_name {
		if reason > 0 && waitsFor[perceptorv1.Import_PauseReason(reason)] == "" {
			t.Errorf("there are no words for %s", words)
		}
	}
	low, err := status.New(codes.ResourceExhausted, "little is free").WithDetails(&errdetails.ErrorInfo{Reason: "STORAGE_LOW"})
	if err != nil || !isStorageLow(low.Err()) || isStorageLow(status.Error(codes.ResourceExhausted, "STORAGE_LOW")) {
		t.Errorf("%v: a server with little free space is not told from others", err)
	}
	for space, want := range map[*perceptorv1.ServerSpace]string{
		{Databases: []int32{3}, NeededBytes: 5e9}:                                                            "server of databases 3: 5.0 GB needed; how much is free is not known (postgres.servers[].storage): compare",
		{Databases: []int32{3, 4}, NeededBytes: 5e6, TotalBytes: 3e9, FreeBytes: 2e9, Fits: true}:            "server of databases 3 and 4: 5.0 MB needed; 2.0 GB of 3.0 GB free",
		{Databases: []int32{3, 4, 5}, NeededBytes: 5e9, TotalBytes: 3e9, FreeBytes: 2e9, ReservedBytes: 1e8}: "server of databases 3 to 5: 5.0 GB needed; NOT ENOUGH: 2.0 GB of 3.0 GB free, of which 100.0 MB is left to others",
	} {
		if got := spaceText(space); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestImports runs imports of all kinds against a whole installation.
func TestImports(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	s := &shell{at: installation(t, withTables(t)), dir: t.TempDir()}
	s.file(t, "token", []byte(s.at.Token))
	for name, test := range map[string]func(*testing.T, *shell){
		"every format":                         testFormats,
		"a server without room":                testRoom,
		"payloads":                             testPayloads,
		"a query":                              testQuery,
		"rejected lines have their position":   testRejects,
		"too many rejected lines":              testMaxRejects,
		"keys that exist":                      testConflicts,
		"a dry run":                            testDryRun,
		"a killed import":                      testKilled,
		"an import that was interrupted":       testChanged,
		"a rollback":                           testRollback,
		"how far tasks have come":              testRestore,
		"files that cannot be imported at all": testNonsense,
		"an import is not begun by mistake":    testUsage,
	} {
		t.Run(name, func(t *testing.T) { test(t, &shell{at: s.at, dir: s.copy(t)}) })
	}
}

// copy returns a folder of its own with the token.
func (s *shell) copy(t *testing.T) string {
	t.Helper()
	c := &shell{dir: t.TempDir()}
	c.file(t, "token", []byte(s.at.Token))
	return c.dir
}

// csvLines returns lines of tasks far ahead, with numbers in the param n.
func csvLines(from, n int) []byte {
	b := []byte("type,begin_time,params.n,max_count\n")
	for i := range n {
		b = fmt.Appendf(b, "ONE_SHOT,2031-01-01T00:%02d:%02d.%03dZ,%d,1\n", (from+i)/60%60, (from+i)%60, (from+i)%1000, from+i)
	}
	return b
}

func testFormats(t *testing.T, s *shell) {
	const n = 250
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(csvLines(0, n)) //nolint:errcheck // a buffer takes all
	z.Close()               //nolint:errcheck // a buffer takes all
	std, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var lines []byte
	type row struct {
		Type   string            `parquet:"type"`
		Begin  time.Time         `parquet:"begin_time,timestamp(millisecond)"`
		Params map[string]string `parquet:"params"`
	}
	var rows []row
	at := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		begin := at.Add(time.Duration(i)*time.Second + time.Duration(i%1000)*time.Millisecond)
		lines = fmt.Appendf(lines, "{\"type\":\"ONE_SHOT\",\"beginTime\":%q,\"params\":{\"n\":\"%d\"}}\n", begin.Format(time.RFC3339Nano), i)
		rows = append(rows, row{"ONE_SHOT", begin, map[string]string{"n": strconv.Itoa(i)}})
	}
	var columns bytes.Buffer
	w := parquet.NewGenericWriter[row](&columns)
	w.Write(rows) //nolint:errcheck // Close returns it
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.file(t, "parts-1.csv", csvLines(0, 100))
	s.file(t, "parts-2.csv", csvLines(100, 150))
	for kind, args := range map[string][]string{
		"csv":     {s.file(t, "a.csv", csvLines(0, n))},
		"gzip":    {s.file(t, "a.csv.gz", packed.Bytes())},
		"zstd":    {s.file(t, "a.jsonl.zst", std.EncodeAll(lines, nil))},
		"jsonl":   {s.file(t, "a.jsonl", lines)},
		"parquet": {s.file(t, "a.parquet", columns.Bytes())},
		"glob":    {filepath.Join(s.dir, "parts-*.csv")},
		"stdin":   {"-", "--format", "csv"},
	} {
		s.stdin = bytes.NewReader(csvLines(0, n))
		_, i := s.imports(t, 0, append(args, "--kind", kind, "--chunk-lines", "99", "--ack-timeout", "7m", "--tag", "nightly")...)
		if i.is("addedCount") != "250" || i.is("state") != "FINISHED" || i.is("chunkCount") != "3" {
			t.Errorf("%s: the result is %+v", kind, i)
		}
		all := s.tasks(t, kind, "n")
		if len(all) != n {
			t.Errorf("%s: %d tasks, want %d", kind, len(all), n)
		}
		for i, r := range rows {
			x := all[strconv.Itoa(i)]
			if x == nil || !x.BeginTime.AsTime().Equal(r.Begin) || x.AckTimeout.Seconds != 420 || len(x.Tags) != 1 || x.Type != perceptorv1.Task_ONE_SHOT {
				t.Fatalf("%s: task %d is %v", kind, i, x)
			}
		}
	}
}

func testPayloads(t *testing.T, s *shell) {
	text := `{"kind":"payload","type":"ONE_SHOT","beginTime":"2031-01-01T00:00:00Z","params":{"n":"1"},"payload":{"data":"YWJj","contentType":"text/plain"}}` + "\n" +
		`{"kind":"payload","type":"ONE_SHOT","beginTime":"2031-01-01T00:00:00Z","params":{"n":"2"},"payload":{"json":{"a":1}},"idempotencyKey":"payload-2"}` + "\n" +
		`{"kind":"payload","type":"ONE_SHOT","beginTime":"2031-01-01T00:00:00Z","params":{"n":"3"}}` + "\n" +
		`{"kind":"payload","type":"ONE_SHOT","beginTime":"2031-01-01T00:00:00Z","params":{"n":"4"},"payload":{"data":"AA==","contentType":"application/json"}}` + "\n"
	_, i := s.imports(t, 0, s.file(t, "a.jsonl", []byte(text)))
	all := s.tasks(t, "payload", "n")
	if string(all["1"].GetPayload().GetData()) != "abc" || string(all["2"].GetPayload().GetData()) != `{"a":1}` || all["2"].GetIdempotencyKey() != "payload-2" || all["3"] == nil || all["3"].Payload != nil || len(all) != 3 {
		t.Errorf("the tasks are %v", all)
	}
	if i.is("rejectedCount") != "1" || len(s.rejected(t)) != 1 {
		t.Errorf("the result is %+v", i)
	}
}

func testQuery(t *testing.T, s *shell) {
	const query = "SELECT 'query' AS kind, 'NON_BLOCKING' AS type, n::text AS \"params.n\", timestamptz '2031-01-01 00:00:00+02' + n * interval '1 s' AS begin_time, " +
		"interval '1 day 2 hours' AS interval, ARRAY['a', 'b'] AS tags, n > 5 AS stop_on_failure, NULL::int AS max_count FROM generate_series(1, 12000) n ORDER BY n;"
	_, i := s.imports(t, 0, "--from-sql", s.at.Postgres, query, "--chunk-lines", "5000")
	if i.is("addedCount") != "12000" {
		t.Errorf("the result is %+v", i)
	}
	all := s.tasks(t, "query", "n")
	x := all["7"]
	if len(all) != 12000 || x.GetInterval().GetSeconds() != 26*3600 || len(x.Tags) != 2 || !x.StopOnFailure || x.BeginTime.AsTime().Format(time.RFC3339) != "2030-12-31T22:00:07Z" {
		t.Errorf("%d tasks, one is %v", len(all), x)
	}
	for query, want := range map[string]string{
		"SELECT 1 AS wrong":    `no field has the name of column \"wrong\"`,
		"SELECT":               "no column is the kind",
		"SELECT 1; SELECT 2":   "run the query",
		"SELECT missing":       "missing",
		"DELETE FROM pg_class": "run the query",
	} {
		if r, _ := s.imports(t, 1, "--from-sql", s.at.Postgres, query); !strings.Contains(strings.ReplaceAll(r.stderr, `"`, `\"`), want) {
			t.Errorf("%s: %s", query, r.stderr)
		}
	}
}

func (s *shell) rejected(t *testing.T) (all []reject) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "rejects"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var r reject
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		r.File = filepath.Base(r.File)
		all = append(all, r)
	}
	return all
}

func testRejects(t *testing.T, s *shell) {
	text := "kind,type,when,interval,params.n\n" +
		"rej,BLOCKING,2031-01-01T00:00:00Z,1m,1\n" + // line 2
		"rej,BLOCKING,2031-01-01T00:00:00Z,1ms,2\n" + // too short for the service
		"rej,BLOCKING,never,1m,3\n" +
		"rej,BLOCKING,2031-01-01T00:00:00Z,1m\n" +
		"rej,BLOCKING,2031-01-01T00:00:00Z,1m,6\n" +
		"rej,BLOCKING,2031-01-01T00:00:00Z,1m," + strings.Repeat("x", 20_000) + "\n"
	name := s.file(t, "a.csv", []byte(text))
	_, i := s.imports(t, 0, name, "--map", "when=begin_time")
	if i.is("addedCount") != "2" || i.is("rejectedCount") != "2" || i.UnreadableCount != "2" {
		t.Errorf("the result is %+v", i)
	}
	want := map[int64]reject{
		3: {Column: "interval", Field: "interval", Value: "1ms", Rule: "1ms is not between"},
		4: {Column: "when", Field: "begin_time", Value: "never", Rule: "is not an instant"},
		5: {Rule: "the line has 4 columns, and the header has 5", Value: "rej,BLOCKING,2031-01-01T00:00:00Z,1m"},
		7: {Field: "params", Rule: "the tenant's limit is"},
	}
	all := s.rejected(t)
	for _, r := range all {
		w := want[r.Line]
		if r.File != "a.csv" || r.Column != w.Column || r.Field != w.Field || r.Value != w.Value || !strings.Contains(r.Rule, w.Rule) {
			t.Errorf("rejected %+v, want %+v", r, w)
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d lines are rejected, want %d", len(all), len(want))
	}
	info, err := os.Stat(filepath.Join(s.dir, "rejects"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the reject file has the mode %v, %v", info.Mode(), err)
	}
	s.imports(t, 0, name, "--map", "when=begin_time", "--redact")
	for _, r := range s.rejected(t) {
		if r.Value != "" || strings.Contains(r.Rule, "1ms is") {
			t.Errorf("the value is in %+v", r)
		}
	}
}

var importNumber = regexp.MustCompile(`import (\d+)`)

// idIn returns the id of the import that a command has named.
func idIn(t *testing.T, text string) string {
	t.Helper()
	m := importNumber.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no import is named in %s", text)
	}
	return m[1]
}

func testMaxRejects(t *testing.T, s *shell) {
	text := csvLines(0, 50)
	for range 20 {
		text = append(text, "bad\n"...)
	}
	text = append(text, csvLines(50, 10)[len("type,begin_time,params.n,max_count\n"):]...)
	name := s.file(t, "a.csv", text)
	r, _ := s.imports(t, 1, name, "--kind", "maxed", "--max-rejects", "10", "--chunk-lines", "20")
	if !strings.Contains(r.stderr, "more than 10 rejected lines") {
		t.Errorf("it says %s", r.stderr)
	}
	id := idIn(t, r.stderr)
	_, i := s.imports(t, 0, "resume", id, "--max-rejects", "0")
	if all := s.tasks(t, "maxed", "n"); len(all) != 60 || i.is("addedCount") != "60" || i.UnreadableCount != "20" {
		t.Errorf("%d tasks; the result is %+v", len(all), i)
	}
	if n := len(s.rejected(t)); n != 20 {
		t.Errorf("%d lines are in the reject file, want 20, each once", n)
	}
}
