package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/transfer"
)

// importFlags are the flags of import as they were given.
type importFlags struct {
	terms                                       addFlags
	format, delimiter, quote, comment, null     string
	columns, mapping                            []string
	paramsRest, restore, dryRun, noSpaceCheck   bool
	timeFormat, timeZone, unit, dsn, onConflict string
	rate                                        int32
	chunk                                       int
	from                                        fromFlags
	run                                         runFlags
}

// runFlags are the flags that import resume has, too.
type runFlags struct {
	rejectFile string
	redact     bool
	maxRejects int64
	patience   time.Duration
}

func (r *runFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.rejectFile, "reject-file", "", "file for rejected lines, which only you can read (default NAME.rejects.jsonl, NAME being that of the first file)")
	f.BoolVar(&r.redact, "redact", false, "leave values out of the reject file")
	f.Int64Var(&r.maxRejects, "max-rejects", 1000, "stop when more lines than this are rejected; 0: never")
	duration.Var(f, &r.patience, "retry-for", 10*time.Minute, "how long the service may be away")
}

// conflicts are the values of --on-conflict.
var conflicts = []string{"skip", "update", "fail"}

// units are the values of --duration-unit.
var units = map[string]time.Duration{"": 0, "ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

func (i *importFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&i.format, "format", "", "csv, jsonl or parquet (default: by the extension of the file)")
	f.StringVar(&i.dsn, "from-sql", "", "import the rows of a query, which is the only argument, from the PostgreSQL server of this connection string")
	i.from.flags(cmd)
	f.StringArrayVar(&i.mapping, "map", nil, "COLUMN=FIELD: what a column means: a field of a task, params.KEY, or - for nothing; may be repeated")
	f.BoolVar(&i.paramsRest, "params-rest", false, "make params of all other columns")
	f.StringVar(&i.timeFormat, "time-format", "rfc3339", strings.Join(transfer.TimeFormats, ", "))
	f.StringVar(&i.timeZone, "time-zone", "UTC", "IANA time zone of times without one")
	f.StringVar(&i.unit, "duration-unit", "", "unit of durations that are mere numbers: ms, s, m, h or d (default: they are rejected)")
	f.StringVar(&i.delimiter, "delimiter", ",", "character between the columns of CSV; tab for a tab")
	f.StringVar(&i.quote, "quote", `"`, "character around columns of CSV")
	f.StringVar(&i.comment, "comment", "", "character with which lines of CSV begin that are left out")
	f.StringVar(&i.null, "null", "", "text of a column of CSV without a value, unless it has quotes")
	f.StringSliceVar(&i.columns, "columns", nil, "names of the columns of CSV without a header")
	f.StringVar(&i.onConflict, "on-conflict", "skip", "what to do with a line whose idempotency_key exists: "+strings.Join(conflicts, ", "))
	f.Int32Var(&i.rate, "rate", 0, "most lines per second (default: as many as the service can store and the tenant's quotas allow)")
	f.BoolVar(&i.restore, "restore", false, "take over how far tasks have come: run_count, missed_count, scheduled_time, paused")
	f.BoolVar(&i.dryRun, "dry-run", false, "validate all lines and show when they would fire, and store nothing; keys are not looked up")
	f.BoolVar(&i.noSpaceCheck, "no-space-check", false, "import although the servers seem to have no room for all lines")
	f.IntVar(&i.chunk, "chunk-lines", transfer.DefaultChunkLines, "lines of a chunk")
	i.run.flags(cmd)
	i.terms.termFlags(cmd)
	completes(cmd, "format", transfer.Formats...)
	completes(cmd, "time-format", transfer.TimeFormats...)
	completes(cmd, "on-conflict", conflicts...)
	completes(cmd, "duration-unit", "ms", "s", "m", "h", "d")
}

// importOptions are what an import needs to be resumed. They are stored with it.
type importOptions struct {
	Version int `json:"version"`
	// Folder is where the command was started, Files what it reads. If they are too many to be stored, Digest
	// stands for them.
	Folder   string          `json:"folder,omitempty"`
	Patterns []string        `json:"patterns,omitempty"`
	Files    []transfer.File `json:"files,omitempty"`
	Digest   string          `json:"digest,omitempty"`
	Query    string          `json:"query,omitempty"`
	From     string          `json:"from,omitempty"` // a scheduler

	Format     string            `json:"format,omitempty"`
	Dialect    transfer.Dialect  `json:"dialect"`
	Map        map[string]string `json:"map,omitempty"`
	ParamsRest bool              `json:"params_rest,omitempty"`
	TimeFormat string            `json:"time_format,omitempty"`
	TimeZone   string            `json:"time_zone,omitempty"`
	Unit       time.Duration     `json:"duration_unit_ns,omitempty"`
	Restore    bool              `json:"restore,omitempty"`
	Chunk      int               `json:"chunk_lines"`
	Defaults   json.RawMessage   `json:"defaults,omitempty"`
	RejectFile string            `json:"reject_file,omitempty"`

	dsn                   string
	prefix, of, keyPrefix string
	onConflict            perceptorv1.Import_OnConflict
	rate                  int32
	dryRun                bool
	// noSpaceCheck says that the import does not tell how much it will store.
	noSpaceCheck bool
	requestID    string
	run          runFlags
}

// updateChunk is the largest number of lines of a chunk that may change tasks, which the service has to read. The
// service allows twice as many.
const updateChunk = 5000

// optionsVersion is the version of the form of options.
const optionsVersion = 1

// read returns the options of a new import.
func (i *importFlags) read(cmd *cobra.Command, args []string) (*importOptions, error) {
	o := &importOptions{
		Version: optionsVersion, Format: i.format, ParamsRest: i.paramsRest, TimeFormat: i.timeFormat, TimeZone: i.timeZone, Restore: i.restore, Chunk: i.chunk,
		From: i.from.scheduler, prefix: i.from.prefix, of: i.from.of, keyPrefix: i.from.keyPrefix, dsn: i.dsn, rate: i.rate, dryRun: i.dryRun, noSpaceCheck: i.noSpaceCheck, requestID: rand.Text(), run: i.run,
	}
	var err error
	if err := i.check(); err != nil {
		return nil, err
	}
	o.Unit, o.RejectFile = units[i.unit], i.run.rejectFile
	o.onConflict = perceptorv1.Import_OnConflict(perceptorv1.Import_OnConflict_value[strings.ToUpper(i.onConflict)])
	if o.onConflict == perceptorv1.Import_UPDATE {
		o.Chunk = min(o.Chunk, updateChunk)
	}
	if o.Dialect, err = i.dialect(); err != nil {
		return nil, err
	}
	if o.Map, err = readMapping(i.mapping); err != nil {
		return nil, err
	}
	t, err := i.terms.read(cmd)
	if err != nil {
		return nil, err
	}
	if proto.Size(t) > 0 {
		if o.Defaults, err = protojson.Marshal(t); err != nil {
			return nil, err
		}
	}
	return o, o.setInput(args)
}

// check refuses values of flags that are none of those allowed.
func (i *importFlags) check() error {
	_, known := units[i.unit]
	switch {
	case !slices.Contains(conflicts, i.onConflict):
		return cli.Usagef("--on-conflict: %q is not one of %s", i.onConflict, strings.Join(conflicts, ", "))
	case !slices.Contains(transfer.TimeFormats, i.timeFormat):
		return cli.Usagef("--time-format: %q is not one of %s", i.timeFormat, strings.Join(transfer.TimeFormats, ", "))
	case i.format != "" && !slices.Contains(transfer.Formats, i.format):
		return cli.Usagef("--format: %q is not one of %s", i.format, strings.Join(transfer.Formats, ", "))
	case !known:
		return cli.Usagef("--duration-unit: %q is not one of ms, s, m, h, d", i.unit)
	case i.chunk < 1 || i.chunk > transfer.MaxChunkLines:
		return cli.Usagef("--chunk-lines: %d is not between 1 and %d", i.chunk, transfer.MaxChunkLines)
	case i.rate < 0:
		return cli.Usagef("--rate: %d is negative", i.rate)
	case i.run.maxRejects < 0:
		return cli.Usagef("--max-rejects: %d is negative", i.run.maxRejects)
	case i.run.patience < 0:
		return cli.Usagef("--retry-for: %s is negative", i.run.patience)
	}
	if err := schedule.CheckZone(i.timeZone); err != nil {
		return cli.Usagef("--time-zone: %v", err)
	}
	return nil
}

// dialect returns the dialect of CSV.
func (i *importFlags) dialect() (d transfer.Dialect, err error) {
	for _, c := range []struct {
		flag, text string
		to         *byte
	}{{"delimiter", i.delimiter, &d.Delimiter}, {"quote", i.quote, &d.Quote}, {"comment", i.comment, &d.Comment}} {
		if c.text == "tab" || c.text == `\t` {
			c.text = "\t"
		}
		if len(c.text) > 1 || c.text == "" && c.flag != "comment" || c.text != "" && (c.text[0] >= 0x80 || c.text == "\n" || c.text == "\r") {
			return d, cli.Usagef("--%s: %q is not one ASCII character", c.flag, c.text)
		}
		if c.text != "" {
			*c.to = c.text[0]
		}
	}
	if d.Delimiter == d.Quote || d.Comment != 0 && (d.Comment == d.Quote || d.Comment == d.Delimiter) {
		return d, cli.Usagef("--delimiter, --quote and --comment must differ")
	}
	if d.Delimiter == ',' {
		d.Delimiter = 0 // the default depends on the name of the file
	}
	d.Null, d.Header = i.null, i.columns
	return d, nil
}

func readMapping(list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, pair := range list {
		at := strings.LastIndexByte(pair, '=')
		if at < 1 || at == len(pair)-1 {
			return nil, cli.Usagef("--map: %q is not COLUMN=FIELD", pair)
		}
		if _, ok := m[pair[:at]]; ok {
			return nil, cli.Usagef("--map: the column %q is mapped twice", pair[:at])
		}
		m[pair[:at]] = pair[at+1:]
	}
	return m, nil
}

// mapping returns the options for the sources of package transfer.
func (o *importOptions) mapping() (transfer.Mapping, error) {
	m := transfer.Mapping{
		Map: o.Map, ParamsRest: o.ParamsRest, Clock: transfer.Clock{Format: o.TimeFormat}, Unit: o.Unit, Restore: o.Restore, Defaults: &perceptorv1.Task{},
	}
	if o.TimeZone != "" && o.TimeZone != "UTC" {
		// The zones of the calendars are those of this program, and not of the machine.
		midnight, err := schedule.Parse(schedule.Standard, "0 0 * * *", o.TimeZone, schedule.Options{})
		if err != nil {
			return m, cli.Usagef("--time-zone: %v", err)
		}
		m.Clock.Zone = midnight.Location()
	}
	if len(o.Defaults) > 0 {
		if err := protojson.Unmarshal(o.Defaults, m.Defaults); err != nil {
			return m, fmt.Errorf("read the options of the import: %w", err)
		}
	}
	return m, nil
}
