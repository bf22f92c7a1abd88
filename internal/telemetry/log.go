package telemetry

import (
	"fmt"
	"io"
	"log/slog"
)

// NewLog returns a logger that writes to w. level is debug, info, warn or error;
// format is json or text.
func NewLog(w io.Writer, level, format string) (*slog.Logger, error) {
	var lowest slog.Level
	if err := lowest.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: %w", level, err)
	}
	options := &slog.HandlerOptions{Level: lowest}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
	return nil, fmt.Errorf("log format %q is neither json nor text", format)
}
