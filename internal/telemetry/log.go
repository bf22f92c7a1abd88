package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/perceptor/perceptor/internal/requestid"
)

// NewLog returns a logger that writes to w. level is debug, info, warn or error;
// format is json or text. Records that are logged with the context of a call have
// its request id and its trace. Durations are whole milliseconds, and their keys
// end in _ms. A write to w that does not end delays nobody for long: further messages are dropped and counted.
func NewLog(w io.Writer, level, format string) (*slog.Logger, error) {
	var lowest slog.Level
	if err := lowest.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q is not one of debug, info, warn, error", level)
	}
	options := &slog.HandlerOptions{Level: lowest, ReplaceAttr: inMilliseconds}
	handler := func(to io.Writer) slog.Handler { return slog.NewJSONHandler(to, options) }
	switch format {
	case "json":
	case "text":
		handler = func(to io.Writer) slog.Handler { return slog.NewTextHandler(to, options) }
	default:
		return nil, fmt.Errorf("log format %q is neither json nor text", format)
	}
	return slog.New(ofCalls{handler(&sink{to: w, lost: lostMessages(handler)})}), nil
}

// inMilliseconds replaces a duration, which would be a number of nanoseconds in JSON.
func inMilliseconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	return slog.Int64(strings.TrimSuffix(a.Key, "_ms")+"_ms", int64(a.Value.Duration()/time.Millisecond))
}

// ofCalls is a handler that adds what the context knows about the call.
type ofCalls struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h ofCalls) Handle(ctx context.Context, r slog.Record) error {
	id, span := requestid.Of(ctx), trace.SpanContextFromContext(ctx)
	if id == "" && !span.IsValid() {
		return h.Handler.Handle(ctx, r)
	}
	r = r.Clone()
	if id != "" {
		r.AddAttrs(slog.String("request_id", id))
	}
	if span.IsValid() {
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h ofCalls) WithAttrs(attrs []slog.Attr) slog.Handler {
	return ofCalls{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h ofCalls) WithGroup(name string) slog.Handler { return ofCalls{h.Handler.WithGroup(name)} }
