package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func draw(t *testing.T, c *Chart) string {
	t.Helper()
	var b bytes.Buffer
	if err := c.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(b.Bytes())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return b.String()
		} else if err != nil {
			t.Fatalf("the picture is not valid XML: %v\n%s", err, b.String())
		}
	}
}

func typical() *Chart {
	return &Chart{
		Title: "cycle & more", Subtitle: "20,000/s < 1M/s", XLabel: "seconds", Spans: []Span{{"measured", 0, 2}},
		Panels: []Panel{
			{Title: "throughput, 1/s", Lines: []Line{{Name: "done", X: []float64{0, 1, 2}, Y: []float64{1000, 20000, 19500}, Filled: true}}},
			{
				Title: "lateness, ms", Log: true, Limits: []Limit{{"250 ms", 250}},
				Lines: []Line{{Name: "p99", X: []float64{0, 1, 2, 3}, Y: []float64{12, math.NaN(), 0, 180}}},
			},
		},
	}
}

func TestAPictureIsXMLAndNamesEverything(t *testing.T) {
	got := draw(t, typical())
	for _, want := range []string{
		"cycle &amp; more", "20,000/s &lt; 1M/s", ">seconds<", ">throughput, 1/s<", ">lateness, ms<", ">done<", ">p99<", ">250 ms<", ">measured<",
		">20k<", ">100<", ">10<", `fill="#ffffff"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the picture lacks %s", want)
		}
	}
}

func TestALineIsInterruptedWhereThereIsNoValue(t *testing.T) {
	got := draw(t, typical())
	if n := strings.Count(got, `stroke-width="1.6"`); n != 3 { // one in the first panel, two in the second
		t.Errorf("%d paths are drawn, want 3", n)
	}
	if strings.Contains(got, "NaN") || strings.Contains(got, "Inf") {
		t.Error("a coordinate is not a number")
	}
}

func TestAPictureOfNothingIsDrawn(t *testing.T) {
	draw(t, &Chart{Title: "empty", Panels: []Panel{{Title: "none"}, {Title: "none", Log: true, Lines: []Line{{Name: "x"}}}}})
}

func TestAxesHaveRoundTicksThatCoverTheValues(t *testing.T) {
	for _, c := range []struct {
		values []float64
		log    bool
		first  float64
		second float64
		last   float64
	}{
		{[]float64{0, 299}, false, 0, 50, 250},
		{[]float64{20100, 19000}, false, 0, 5000, 20000},
		{[]float64{-3, 3}, false, -3, -2, 3},
		{[]float64{7, 7}, false, 0, 2, 6},
		{[]float64{12, 180}, true, 10, 20, 1000},
		{[]float64{0.5, 80000}, true, 0.1, 1, 100000},
	} {
		a := axisOf(c.values, c.log, 6)
		if got := []float64{a.ticks[0], a.ticks[1], a.ticks[len(a.ticks)-1]}; !near(got[0], c.first) || !near(got[1], c.second) || !near(got[2], c.last) {
			t.Errorf("axis of %v, log %v: ticks = %v, want %v, %v, ..., %v", c.values, c.log, a.ticks, c.first, c.second, c.last)
		}
		for _, v := range c.values {
			if p := a.place(v); p < 0 || p > 1 {
				t.Errorf("axis of %v, log %v: place of %v = %v, want 0 to 1", c.values, c.log, v, p)
			}
		}
	}
}

func TestTheTimeAxisEndsWhereTheValuesEnd(t *testing.T) {
	a := timeAxis([]float64{-2, 114})
	if a.place(-2) != 0 || a.place(114) != 1 || a.ticks[0] != 0 || a.ticks[len(a.ticks)-1] != 100 {
		t.Errorf("axis from %v to %v with ticks %v, want -2 to 114 with ticks 0 to 100", a.from, a.to, a.ticks)
	}
	if a.clip(-10) != -2 || a.clip(300) != 114 || a.clip(50) != 50 {
		t.Error("clip does not move values outside the axis to its ends, or moves one inside")
	}
	if empty := timeAxis(nil); empty.from >= empty.to {
		t.Errorf("axis without values goes from %v to %v, want a positive length", empty.from, empty.to)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9*(1+math.Abs(b)) }

func TestLabelsAreShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.2: "0.2", 999: "999", 1500: "1.5k", 20000: "20k", 2.5e6: "2.5M", 1e9: "1G"} {
		if got := label(v); got != want {
			t.Errorf("label(%v) = %s, want %s", v, got, want)
		}
	}
}
