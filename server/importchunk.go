package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// # Checking the lines of a chunk
//
// A line is judged like the task of an add. What lines have in common is judged once, as a task
// without begin_time, params and idempotency_key; of each line only these are judged. A test holds
// the verdicts of both ways against each other. A line that breaks a rule is rejected, and the
// others are stored. A chunk whose arrays do not fit together is refused.

// maxLineFaults is the most faults of lines that an answer tells.
const maxLineFaults = 1000

// chunkReader reads one chunk.
type chunkReader struct {
	in      *perceptorv1.ImportChunk
	tenant  *Tenant
	limits  task.Limits
	restore bool

	templates []lineTemplate
	hashes    [][16]byte
	out       *task.ImportChunk
	faults    []task.LineFault
	hashed    []byte // scratch
}

// lineTemplate is a template of a chunk.
type lineTemplate struct {
	task *perceptorv1.Task
	spec task.Spec
	// faults are those of every line of the template.
	faults []task.Fault
	// sealed is the number of bytes of its sealed terms.
	sealed int
	// body is what [bodyOf] encodes of it: all of it, or, if lines have begin_time, what comes before that
	// field, and after has the rest.
	body, after []byte
}

func newChunkReader(in *perceptorv1.ImportChunk, tenant *Tenant, limits task.Limits, restore bool) *chunkReader {
	return &chunkReader{in: in, tenant: tenant, limits: limits, restore: restore}
}

// read returns the valid lines. It fails if the chunk has not the right form, and when ctx ends.
func (c *chunkReader) read(ctx context.Context) (*task.ImportChunk, error) {
	if faults := c.shape(); len(faults) > 0 {
		return nil, invalid(faults)
	}
	c.out = &task.ImportChunk{Number: c.in.Number, Checksum: c.in.Checksum, Lines: make([]task.ImportLine, 0, c.in.LineCount)}
	if c.in.States != nil {
		c.out.Restored = make([]task.RestoredState, 0, c.in.LineCount)
	}
	if len(c.in.KeySize) > 0 {
		c.hashes = make([][16]byte, 0, c.in.LineCount)
	}
	if err := c.readTemplates(ctx); err != nil {
		return nil, err
	}
	if err := c.readLines(); err != nil {
		return nil, err
	}
	return c.out, nil
}

// shape checks that the arrays fit together.
func (c *chunkReader) shape() []task.Fault {
	r := &reader{}
	in, n := c.in, int(c.in.LineCount)
	if in.Number < 1 || in.Number > task.MaxChunkNumber {
		r.fault("number", "%d is not between 1 and %d", in.Number, int64(task.MaxChunkNumber))
	}
	if n < 1 || n > task.MaxChunkLines {
		r.fault("line_count", "%d is not between 1 and %d", n, task.MaxChunkLines)
	}
	if len(in.Templates) == 0 || len(in.Templates) > task.MaxChunkTemplates {
		r.fault("templates", "has %d entries; 1 to %d are allowed", len(in.Templates), task.MaxChunkTemplates)
	}
	r.array("template", len(in.Template), n)
	r.array("begin_ms", len(in.BeginMs), n)
	r.array("params_size", len(in.ParamsSize), n)
	r.array("key_size", len(in.KeySize), n)
	r.total("params", in.ParamsSize, len(in.Params))
	r.total("keys", in.KeySize, len(in.Keys))
	for i, t := range in.Template {
		if int(t) >= len(in.Templates) {
			r.fault(fmt.Sprintf("template[%d]", i), "%d: there are %d templates", t, len(in.Templates))
			break
		}
	}
	if s := in.States; s != nil {
		if !c.restore {
			r.fault("states", "the import does not restore states")
		}
		r.array("states.scheduled_ms", len(s.ScheduledMs), n)
		r.array("states.run_count", len(s.RunCount), n)
		r.array("states.missed_count", len(s.MissedCount), n)
		r.array("states.paused", len(s.Paused), n)
		r.array("states.anchor_ms", len(s.AnchorMs), n)
	}
	c.twice(r)
	return r.faults
}

// array checks the length of an array with a value for each line.
func (r *reader) array(field string, has, lines int) {
	if has != 0 && has != lines {
		r.fault(field, "has %d values for %d lines", has, lines)
	}
}

// total checks that sizes add up to the number of bytes.
func (r *reader) total(field string, sizes []uint32, has int) {
	sum := 0
	for _, n := range sizes {
		sum += int(n)
	}
	if sum != has {
		r.fault(field, "has %d bytes; the sizes of the lines add up to %d", has, sum)
	}
}

// twice finds templates with fields that lines have, too.
func (c *chunkReader) twice(r *reader) {
	for i, t := range c.in.Templates {
		for _, f := range []struct {
			name       string
			both, only bool
		}{
			{"begin_time", t.GetBeginTime() != nil && len(c.in.BeginMs) > 0, false},
			{"params", len(t.GetParams()) > 0 && len(c.in.ParamsSize) > 0, false},
			{"payload", t.GetPayload() != nil && len(c.in.ParamsSize) > 0, false},
			{"idempotency_key", false, t.GetIdempotencyKey() != ""},
		} {
			if f.both || f.only {
				r.unlessFaulty(faultf(fmt.Sprintf("templates[%d].%s", i, f.name), "belongs to the lines"))
			}
		}
	}
}

// readTemplates ends with ctx: a template with a recurrence rule may take milliseconds, and there may be tens of thousands.
func (c *chunkReader) readTemplates(ctx context.Context) error {
	c.templates, c.out.Specs = make([]lineTemplate, len(c.in.Templates)), make([]task.Spec, len(c.in.Templates))
	for i, t := range c.in.Templates {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l := &c.templates[i]
		l.task = t
		l.spec, l.faults = specOf(t, c.tenant, c.limits)
		l.sealed = len(task.Seal(&l.spec.Terms, &l.spec.Origin))
		c.out.Specs[i] = l.spec
		if len(c.in.KeySize) > 0 {
			l.splitBody(len(c.in.BeginMs) > 0)
		}
	}
	return nil
}

// beginField is the number of begin_time.
var beginField = taskOfChunk.Fields().ByName("begin_time").Number()

// splitBody encodes the template, and divides the result where the begin_time of lines belongs.
func (l *lineTemplate) splitBody(atBegin bool) {
	l.body = bodyOf(l.task)
	if !atBegin {
		return
	}
	l.task.BeginTime = &timestamppb.Timestamp{Seconds: 1}
	with := bodyOf(l.task)
	l.task.BeginTime = nil
	field := appendBegin(nil, 1000)
	for at := 0; at <= min(len(l.body), len(with)); at++ {
		if bytes.HasPrefix(with[at:], field) && bytes.Equal(with[:at], l.body[:at]) && bytes.Equal(with[at+len(field):], l.body[at:]) {
			l.body, l.after = l.body[:at:at], l.body[at:]
			return
		}
	}
}

// appendBegin appends the field begin_time of a task as [bodyOf] encodes it.
func appendBegin(to []byte, begin task.Instant) []byte {
	var b [24]byte
	content := b[:0]
	if seconds := int64(begin) / 1000; seconds != 0 {
		content = protowire.AppendVarint(protowire.AppendTag(content, 1, protowire.VarintType), uint64(seconds))
	}
	if ms := int64(begin) % 1000; ms != 0 {
		content = protowire.AppendVarint(protowire.AppendTag(content, 2, protowire.VarintType), uint64(ms*1e6))
	}
	return protowire.AppendBytes(protowire.AppendTag(to, beginField, protowire.BytesType), content)
}

// line is what differs by line, as it was sent.
type line struct {
	at       int
	template int
	begin    task.Instant // Never: none
	params   []byte       // nil: those of the template
	key      []byte       // nil: none
}

func (c *chunkReader) readLines() error {
	in := c.in
	params, keys, begin := in.Params, in.Keys, int64(0)
	l := line{}
	for i := range int(in.LineCount) {
		l = line{at: i, begin: task.Never}
		if len(in.Template) > 0 {
			l.template = int(in.Template[i])
		}
		t := &c.templates[l.template]
		if len(in.BeginMs) > 0 {
			if begin += in.BeginMs[i]; begin != -1 {
				l.begin = task.Instant(begin)
			}
		} else {
			l.begin = t.spec.Begin
		}
		if len(in.ParamsSize) > 0 {
			n := in.ParamsSize[i]
			l.params, params = params[:n:n], params[n:]
		}
		if len(in.KeySize) > 0 && in.KeySize[i] > 0 {
			n := in.KeySize[i]
			l.key, keys = keys[:n:n], keys[n:]
		}
		if err := c.readLine(t, &l); err != nil {
			return err
		}
	}
	return nil
}

// readLine judges a line and adds it to the valid ones.
func (c *chunkReader) readLine(t *lineTemplate, l *line) error {
	r := reader{faults: t.faults[:len(t.faults):len(t.faults)]}
	if len(c.in.BeginMs) > 0 {
		r.lineBegin(t, l)
	}
	switch judgeParams(l.params, c.tenant.ParamsBytes) {
	case paramsMalformed:
		return invalid([]task.Fault{faultf("params", "those of line %d are not a message Params in the form of this service: entries in the order of their keys, then the payload", l.at)})
	case paramsBreakRule:
		r.lineParams(l.params, c.tenant.ParamsBytes)
	}
	if l.key != nil {
		r.lineKey(t, l)
	}
	var state task.RestoredState
	if c.in.States != nil {
		state = c.state(l.at)
		r.lineState(t, &state)
	}
	if len(r.faults) > 0 {
		c.reject(l.at, r.faults)
		return nil
	}
	c.add(t, l, state)
	return nil
}

func (c *chunkReader) add(t *lineTemplate, l *line, state task.RestoredState) {
	out := task.ImportLine{Line: int32(l.at), Spec: int32(l.template), Begin: l.begin, Params: l.params, Key: l.key}
	if l.key != nil {
		c.hashes = append(c.hashes, c.hashOf(t, l))
		out.KeyHash = &c.hashes[len(c.hashes)-1]
	}
	c.out.Lines = append(c.out.Lines, out)
	if c.out.Restored != nil {
		c.out.Restored = append(c.out.Restored, state)
	}
}

func (c *chunkReader) reject(at int, faults []task.Fault) {
	c.out.Rejected++
	for _, f := range faults {
		if len(c.faults) < maxLineFaults {
			c.faults = append(c.faults, task.LineFault{Line: int32(at), Fault: f})
		}
	}
}

// hashOf returns the hash of the body that an add of the task would have.
func (c *chunkReader) hashOf(t *lineTemplate, l *line) (hash [16]byte) {
	params := l.params
	if params == nil {
		params = t.spec.ParamsWire
	}
	c.hashed = append(c.hashed[:0], t.body...)
	if len(c.in.BeginMs) > 0 && l.begin != task.Never {
		c.hashed = appendBegin(c.hashed, l.begin)
	}
	c.hashed = append(append(c.hashed, t.after...), params...)
	sum := sha256.Sum256(c.hashed)
	copy(hash[:], sum[:])
	return hash
}

// lineBegin judges begin_time, and end_time against it.
func (r *reader) lineBegin(t *lineTemplate, l *line) {
	if l.begin == task.Never {
		return
	}
	if message := task.InstantFault(l.begin); message != "" {
		r.unlessFaulty(task.Fault{Field: "begin_time", Message: message})
	}
	if end := t.spec.End; end != task.Never && end <= l.begin {
		r.unlessFaulty(faultf("end_time", "%s is not after begin_time %s", end, l.begin))
	}
}

// lineKey judges an idempotency_key.
func (r *reader) lineKey(t *lineTemplate, l *line) {
	if f := keyFault(string(l.key)); f != nil {
		r.unlessFaulty(*f)
	}
	const around = 8 // what a key takes in sealed terms beside its bytes
	if t.sealed+len(l.key)+around <= task.MaxSealedBytes {
		return
	}
	origin := t.spec.Origin
	origin.Key = string(l.key)
	if n := len(task.Seal(&t.spec.Terms, &origin)); n > task.MaxSealedBytes {
		r.unlessFaulty(faultf("tags", "all terms together have %d bytes; at most %d are allowed", n, task.MaxSealedBytes))
	}
}

// state returns the state of a line elsewhere.
func (c *chunkReader) state(i int) (out task.RestoredState) {
	s := c.in.States
	out.Scheduled, out.Anchor = task.Instant(at(s.ScheduledMs, i)), task.Instant(at(s.AnchorMs, i))
	out.RunCount, out.Missed, out.Paused = at(s.RunCount, i), at(s.MissedCount, i), at(s.Paused, i)
	return out
}

// at returns a value of an array that may be empty.
func at[T any](list []T, i int) (v T) {
	if len(list) > 0 {
		v = list[i]
	}
	return v
}

// lineState judges the state of a line elsewhere.
func (r *reader) lineState(t *lineTemplate, s *task.RestoredState) {
	for field, i := range map[string]task.Instant{"scheduled_time": s.Scheduled, "anchor_time": s.Anchor} {
		if message := task.InstantFault(i); message != "" {
			r.unlessFaulty(task.Fault{Field: field, Message: message})
		}
	}
	if s.Anchor > 0 && t.spec.Interval == 0 {
		r.unlessFaulty(faultf("anchor_time", "%s: the task has no interval", s.Anchor))
	}
	if s.Missed < 0 || s.Missed > task.MaxCountLimit {
		r.unlessFaulty(faultf("missed_count", "%d is not between 0 and %d", s.Missed, task.MaxCountLimit))
	}
	most := task.MaxCountLimit
	if t.spec.MaxCount > 0 {
		most = t.spec.MaxCount - 1
	}
	if s.RunCount < 0 || s.RunCount > most {
		r.unlessFaulty(faultf("run_count", "%d is not between 0 and %d", s.RunCount, most))
	}
}

// answer makes the answer to a chunk that was stored.
func (c *chunkReader) answer(done *task.ChunkResult) *perceptorv1.WriteImportResponse {
	out := &perceptorv1.WriteImportResponse{
		Number: c.in.Number, AddedCount: done.Added, SkippedCount: done.Skipped, UpdatedCount: done.Updated, RejectedCount: done.Rejected,
		Replayed: done.Replayed,
	}
	faults := slices.Concat(c.faults, done.Faults)
	slices.SortStableFunc(faults, func(a, b task.LineFault) int { return int(a.Line) - int(b.Line) })
	for _, f := range faults[:min(len(faults), maxLineFaults)] {
		out.Rejected = append(out.Rejected, &perceptorv1.RejectedLine{Line: f.Line, Field: f.Field, Message: shortened(f.Message)})
	}
	return out
}
