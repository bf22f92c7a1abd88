package config

import (
	"maps"
	"strings"
	"testing"
)

func TestTracesInClearTextLeaveTheMachineOnlyIfToldSo(t *testing.T) {
	t.Parallel()
	for endpoint, open := range map[string]bool{
		"":                         false,
		"http://127.0.0.1:4317":    false,
		"http://localhost:4318/v1": false,
		"https://otel.example.com": false,
		"http://otel.example.com":  true,
		"http://10.0.0.1:4317":     true,
		"http://localhost.evil:1":  true,
	} {
		for _, needs := range []Need{ListensTaskd, ListensDispatcher} {
			var c Config
			c.Tracing.Endpoint = endpoint
			found := strings.Contains(strings.Join(c.OpenLinks(needs), "\n"), "tracing.endpoint: ")
			if found != open {
				t.Errorf("%q: open link %v, want %v", endpoint, found, open)
			}
		}
	}
}

func TestTracingIsChecked(t *testing.T) {
	t.Parallel()
	good := Tracing{Protocol: "grpc", MaxRate: 1}
	for name, c := range map[string]struct {
		change func(*Tracing)
		fault  string
	}{
		"off":                 {func(*Tracing) {}, ""},
		"a URL":               {func(t *Tracing) { t.Endpoint = "https://otel.example.com:4317" }, ""},
		"an address":          {func(t *Tracing) { t.Endpoint = "otel.example.com:4317" }, "tracing.endpoint"},
		"a password in a URL": {func(t *Tracing) { t.Endpoint = "https://a:b@otel.example.com" }, "tracing.endpoint"},
		"a CA without TLS":    {func(t *Tracing) { t.Endpoint, t.CAFile = "http://127.0.0.1:1", "ca.pem" }, "tracing.ca_file"},
		"another protocol":    {func(t *Tracing) { t.Protocol = "udp" }, "tracing.protocol"},
		"a ratio over 1":      {func(t *Tracing) { t.SampleRatio = 2 }, "tracing.sample_ratio"},
		"no rate":             {func(t *Tracing) { t.MaxRate = 0 }, "tracing.max_rate"},
		"a bad header":        {func(t *Tracing) { t.Headers = "a=b,secret" }, "tracing.headers: entry 2"},
	} {
		given, v := good, &validator{}
		c.change(&given)
		given.validate(v)
		switch {
		case c.fault == "" && len(v.faults) > 0:
			t.Errorf("%s: %v", name, v.faults)
		case c.fault != "" && (len(v.faults) != 1 || !strings.HasPrefix(v.faults[0].Error(), c.fault)):
			t.Errorf("%s: %v, want one about %s", name, v.faults, c.fault)
		case strings.Contains(strings.Join(textsOf(v.faults), ""), "secret"):
			t.Errorf("%s: %v shows a header", name, v.faults)
		}
	}
}

func textsOf(errs []error) []string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return texts
}

func TestHeadersOfExportsAreWrittenAsInTheStandard(t *testing.T) {
	t.Parallel()
	c := Tracing{Headers: "Authorization=Bearer%20abc, x-team=a=b\nx-empty="}
	got, err := c.HeaderMap()
	want := map[string]string{"authorization": "Bearer abc", "x-team": "a=b", "x-empty": ""}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
}
