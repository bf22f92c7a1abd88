package imports

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
)

// lineBytes is about the size of the params of a line.
const lineBytes = 50

// kindPrefix begins the kinds of all lines.
const kindPrefix = "import."

// maker makes lines: few kinds, most of them ONE_SHOT, with begins and params of their own.
type maker struct {
	lines int64
	from  time.Time
	span  time.Duration
	keys  bool
	seed  uint64
}

// line is a line of the file.
type line struct {
	kind        string
	recurring   bool
	hours       int // of the interval
	begin       time.Time
	order, user int64
	key         string
}

// each calls f with all lines.
func (m maker) each(f func(*line) error) error {
	rng := rand.New(rand.NewPCG(m.seed, 1))
	var l line
	for i := range m.lines {
		x := rng.Uint64()
		l = line{
			kind: kinds[x%4], recurring: x>>2%100 < 10, hours: 24 + int(x>>10%24), begin: m.from.Add(time.Duration(rng.Int64N(m.span.Milliseconds())) * time.Millisecond),
			order: i, user: int64(x >> 20 % 10_000_000),
		}
		if m.keys {
			l.key = "order-" + strconv.FormatInt(i, 10)
		}
		if err := f(&l); err != nil {
			return err
		}
	}
	return nil
}

var kinds = [...]string{kindPrefix + "reminder", kindPrefix + "timeout", kindPrefix + "expiry", kindPrefix + "retry"}

// made is a file that was written.
type made struct {
	bytes int64
	sum   Sum
}

// writeFile writes a file in the format of its extension.
func writeFile(ctx context.Context, name string, m maker) (out made, err error) {
	file, err := os.Create(name)
	if err != nil {
		return out, err
	}
	defer file.Close() //nolint:errcheck // the flush below tells
	buffered := bufio.NewWriterSize(file, 1<<20)
	put, end := writers[name[strings.LastIndexByte(name, '.')+1:]](buffered)
	err = m.each(func(l *line) error {
		out.sum.add(hashOf(l))
		if out.sum.Count%100_000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		return put(l)
	})
	if err == nil {
		err = end()
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return out, err
	}
	info, err := file.Stat()
	if err != nil {
		return out, err
	}
	out.bytes = info.Size()
	return out, nil
}

// writers write lines in the formats.
var writers = map[string]func(io.Writer) (put func(*line) error, end func() error){
	"csv": csvWriter, "jsonl": jsonWriter, "parquet": parquetWriter,
}

const timeForm = "2006-01-02T15:04:05.000Z"

func (l *line) typ() string {
	if l.recurring {
		return "NON_BLOCKING"
	}
	return "ONE_SHOT"
}

func csvWriter(w io.Writer) (put func(*line) error, end func() error) {
	b := []byte("kind,type,begin_time,interval,params.order_id,params.user_id,idempotency_key\n")
	return func(l *line) error {
		b = append(append(append(append(b, l.kind...), ','), l.typ()...), ',')
		b = append(l.begin.UTC().AppendFormat(b, timeForm), ',')
		if l.recurring {
			b = append(strconv.AppendInt(b, int64(l.hours), 10), 'h')
		}
		b = fmt.Appendf(b, ",ord-%d,u%07d,%s\n", l.order, l.user, l.key)
		_, err := w.Write(b)
		b = b[:0]
		return err
	}, func() error { return nil }
}

func jsonWriter(w io.Writer) (put func(*line) error, end func() error) {
	var b []byte
	return func(l *line) error {
		b = append(fmt.Appendf(b[:0], `{"kind":%q,"type":%q,"beginTime":"`, l.kind, l.typ()), l.begin.UTC().Format(timeForm)...)
		b = append(b, '"')
		if l.recurring {
			b = fmt.Appendf(b, `,"interval":"%ds"`, l.hours*3600)
		}
		if l.key != "" {
			b = fmt.Appendf(b, `,"idempotencyKey":%q`, l.key)
		}
		b = fmt.Appendf(b, ",\"params\":{\"order_id\":\"ord-%d\",\"user_id\":\"u%07d\"}}\n", l.order, l.user)
		_, err := w.Write(b)
		return err
	}, func() error { return nil }
}

// row is a row of the Parquet file.
type row struct {
	Kind  string    `parquet:"kind,dict"`
	Type  string    `parquet:"type,dict"`
	Begin time.Time `parquet:"begin_time,timestamp(millisecond)"`
	Every *string   `parquet:"interval,dict"`
	Order string    `parquet:"params.order_id"`
	User  string    `parquet:"params.user_id"`
	Key   *string   `parquet:"idempotency_key"`
}

// groupRows is the number of rows of a group.
const groupRows = 1 << 20

func parquetWriter(w io.Writer) (put func(*line) error, end func() error) {
	p := parquet.NewGenericWriter[row](w, parquet.Compression(&parquet.Snappy), parquet.MaxRowsPerRowGroup(groupRows))
	rows := make([]row, 0, 1024)
	flush := func() error {
		_, err := p.Write(rows)
		rows = rows[:0]
		return err
	}
	return func(l *line) error {
			r := row{Kind: l.kind, Type: l.typ(), Begin: l.begin, Order: "ord-" + strconv.FormatInt(l.order, 10), User: fmt.Sprintf("u%07d", l.user)}
			if l.recurring {
				every := strconv.Itoa(l.hours) + "h"
				r.Every = &every
			}
			if l.key != "" {
				key := l.key
				r.Key = &key
			}
			rows = append(rows, r)
			if len(rows) == cap(rows) {
				return flush()
			}
			return nil
		}, func() error {
			if err := flush(); err != nil {
				return err
			}
			return p.Close()
		}
}
