package config

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Tracing configures the export of traces.
type Tracing struct {
	Endpoint    string  `key:"endpoint" doc:"URL of an OTLP receiver, such as https://otel.example.com:4317; without TLS it begins with http. Empty: no traces."`
	Protocol    string  `key:"protocol" default:"grpc" doc:"How spans are sent: grpc, or http, for which the URL has the whole path, most often /v1/traces."`
	Headers     string  `key:"headers" secret:"true" doc:"Headers of each export, such as a token: name=value, separated by commas or lines; special characters in values are URL-encoded. Default: those of OTEL_EXPORTER_OTLP_HEADERS."`
	CAFile      string  `key:"ca_file" doc:"File of the certificates that sign the receiver's certificate. Default: that of OTEL_EXPORTER_OTLP_CERTIFICATE, or the system's."`
	SampleRatio float64 `key:"sample_ratio" default:"0" doc:"The share of the calls without a trace context of their caller that are sampled, 0 to 1. For calls with one, its flag decides."`
	MaxRate     int     `key:"max_rate" default:"1000" doc:"The most sampled calls, results and deliveries per second of a process. Further ones are not traced, and counted."`
}

func (c *Tracing) validate(v *validator) {
	v.oneOf("tracing.protocol", c.Protocol, "grpc", "http")
	v.check(c.SampleRatio >= 0 && c.SampleRatio <= 1, "tracing.sample_ratio: %v is not between 0 and 1", c.SampleRatio)
	v.between("tracing.max_rate", c.MaxRate, 1, 1_000_000)
	_, err := c.HeaderMap()
	v.check(err == nil, "tracing.headers: %v", err)
	if c.Endpoint == "" {
		return
	}
	u, err := url.Parse(c.Endpoint)
	v.check(err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == "",
		"tracing.endpoint: %q is not a URL such as https://otel.example.com:4317", c.Endpoint)
	v.check(c.CAFile == "" || err == nil && u.Scheme == "https", "tracing.ca_file: %q has no effect without https in tracing.endpoint", c.CAFile)
}

// link checks that nobody on the way to the receiver can read or change spans.
func (c *Tracing) link(l *links) {
	u, err := url.Parse(c.Endpoint)
	if c.Endpoint == "" || err != nil {
		return
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "4317")
	}
	l.check(u.Scheme == "https", "tracing.endpoint", address, noTLS, "use a URL with https")
}

// HeaderMap returns the headers by name. Its error does not show them.
func (c *Tracing) HeaderMap() (map[string]string, error) {
	headers := map[string]string{}
	for i, part := range strings.FieldsFunc(c.Headers, func(r rune) bool { return r == ',' || r == '\n' || r == '\r' }) {
		name, value, ok := strings.Cut(part, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil || !isHeader(name, decoded) {
			return nil, fmt.Errorf("entry %d is not name=value", i+1)
		}
		headers[name] = decoded
	}
	return headers, nil
}

// isHeader reports whether gRPC and HTTP can send a header.
func isHeader(name, value string) bool {
	unprintable := func(r rune) bool { return r < ' ' || r > '~' }
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" && strings.IndexFunc(value, unprintable) < 0
}
