package tracing

import (
	"slices"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// A sampler follows the flag of the caller; see the package comment.
type sampler struct {
	ratio   sdk.Sampler
	limit   *rate.Limiter
	dropped func(reason string, n int)
}

func newSampler(c *Config) *sampler {
	return &sampler{sdk.TraceIDRatioBased(c.SampleRatio), rate.NewLimiter(rate.Limit(c.MaxRate), c.MaxRate), c.Dropped}
}

// ShouldSample implements [sdk.Sampler].
func (s *sampler) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	parent := trace.SpanContextFromContext(p.ParentContext)
	result := sdk.SamplingResult{Decision: sdk.Drop, Tracestate: parent.TraceState()}
	if !s.wanted(parent, &p) {
		return result
	}
	if within := parent.IsValid() && !parent.IsRemote(); !within && !s.limit.Allow() {
		s.dropped(DroppedRate, 1)
		return result
	}
	result.Decision = sdk.RecordAndSample
	return result
}

// wanted reports whether the caller, or the ratio, asks for a span.
func (s *sampler) wanted(parent trace.SpanContext, p *sdk.SamplingParameters) bool {
	switch {
	case parent.IsValid():
		return parent.IsSampled()
	case len(p.Links) > 0:
		return slices.ContainsFunc(p.Links, func(l trace.Link) bool { return l.SpanContext.IsSampled() })
	}
	return s.ratio.ShouldSample(*p).Decision == sdk.RecordAndSample
}

// Description implements [sdk.Sampler].
func (s *sampler) Description() string { return "CallerOr{" + s.ratio.Description() + "}" }
