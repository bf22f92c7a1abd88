package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/internal/payload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// outputs are the values of --output.
var outputs = []string{"table", "wide", "json", "yaml"}

func (c *ctl) checkOutput() error {
	if !slices.Contains(outputs, c.output) {
		return cli.Usagef("--output: %q is none of %s", c.output, strings.Join(outputs, ", "))
	}
	return nil
}

// structured reports whether programs read the output.
func (c *ctl) structured() bool { return c.output == "json" || c.output == "yaml" }

// table is a list of rows under a head.
type table struct {
	head []string
	rows [][]string
	// narrow is the number of columns that are shown unless the output is wide; 0: all.
	narrow int
}

// cut returns the table without the columns of a wide one.
func (t *table) cut() *table {
	if t.narrow == 0 {
		return t
	}
	c := &table{head: t.head[:t.narrow]}
	for _, r := range t.rows {
		c.rows = append(c.rows, r[:t.narrow])
	}
	return c
}

// add adds a row. What would break the table, or do something to a terminal, is
// written with backslashes: params and errors may have any characters.
func (t *table) add(cells ...string) {
	for i, c := range cells {
		if strings.ContainsFunc(c, func(r rune) bool { return !unicode.IsPrint(r) }) {
			quoted := strconv.Quote(c)
			cells[i] = quoted[1 : len(quoted)-1]
		}
	}
	t.rows = append(t.rows, cells)
}

// maxPayloadLines bounds what a table shows of a payload.
const maxPayloadLines = 200

// addPayload adds the rows of a payload: what it is, and its lines.
func (t *table) addPayload(p *perceptorv1.Payload) {
	if p == nil {
		return
	}
	t.add("payload", payload.Title(p))
	lines := strings.Split(strings.TrimSuffix(payload.Text(p), "\n"), "\n")
	for i, line := range lines {
		if i == maxPayloadLines {
			t.add("", fmt.Sprintf("… and %d more lines; -o json shows all", len(lines)-i))
			return
		}
		t.add("", line)
	}
}

func (t *table) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(t.head, "\t"))
	for _, r := range t.rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}

// show prints a message as JSON or YAML, or the table.
func (c *ctl) show(cmd *cobra.Command, m proto.Message, t func() *table) error {
	switch {
	case c.output == "wide":
		return t().write(cmd.OutOrStdout())
	case !c.structured():
		return t().cut().write(cmd.OutOrStdout())
	}
	// The library varies its white space at random; a stable form serves scripts.
	compact, err := payload.Marshal(protojson.MarshalOptions{}, m)
	if err != nil {
		return err
	}
	return c.writeData(cmd, json.RawMessage(compact))
}

// writeData prints a value as JSON or YAML, with the same names in the same order.
func (c *ctl) writeData(cmd *cobra.Command, v any) error {
	if c.output != "yaml" {
		return writeJSON(cmd.OutOrStdout(), v)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(escaped(text), &n); err != nil { // JSON is YAML in another style
		return err
	}
	inBlocks(&n)
	e := yaml.NewEncoder(cmd.OutOrStdout())
	e.SetIndent(2)
	return errors.Join(e.Encode(&n), e.Close())
}

// inBlocks changes the style of JSON to that of YAML. Texts stay quoted where YAML would read
// something else.
func inBlocks(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		inBlocks(child)
	}
}

func writeJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escaped(text.Bytes()))
	return err
}

// escaped returns JSON with escapes for what JSON allows as it is, but terminals obey (the
// control characters from DEL on), or YAML refuses or reads as the end of a line. Only texts
// can have such characters.
func escaped(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r >= 0x7f && r <= 0x9f, r == 0x2028, r == 0x2029, r == 0xfeff, r == 0xfffe, r == 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

func timeCell(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Format("2006-01-02T15:04:05.000Z")
}

func durationCell(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return d.AsDuration().String()
}

func textCell(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// instant reads RFC 3339, or a distance from now such as +90s or -24h. A distance gives whole milliseconds, which is
// what [timeCell] shows, so that the instant can be given again.
func instant(flag, text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if isDistance(text) {
		d, err := duration.Parse(strings.TrimPrefix(text, "+"))
		if err != nil || isDistance(text[1:]) { // of two signs
			return nil, cli.Usagef("--%s: %q: after its sign it is not a duration such as 90s, 36h or 1d12h", flag, text)
		}
		return timestamppb.New(time.Now().Add(d).Truncate(time.Millisecond)), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, cli.Usagef("--%s: %q is neither an instant such as 2026-01-31T12:00:00Z nor a distance from now such as +90s or -24h", flag, text)
	}
	return timestamppb.New(t), nil
}

// isDistance reports whether the text of an instant is a distance from now.
func isDistance(text string) bool {
	return strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-")
}

// orDefault is nil for 0: the default.
func orDefault(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// countText writes a number of things: 1 line, 2 lines.
func countText[N int | int32 | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
