// Package chart draws figures over time as SVG: panels below each other that share one
// horizontal axis. A picture is a single file that any browser displays. It has a light
// background, no scripts and no external fonts.
package chart

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
)

// Chart is a picture of one or more panels.
type Chart struct {
	// Title and Subtitle stand above all panels.
	Title, Subtitle string
	// XLabel names the quantity of the horizontal axis and its unit.
	XLabel string
	// Spans are shaded in all panels.
	Spans  []Span
	Panels []Panel
}

// Span is a named range of the horizontal axis.
type Span struct {
	Name     string
	From, To float64
}

// Panel is one diagram.
type Panel struct {
	// Title names the quantity that is drawn and its unit.
	Title string
	// Log makes the vertical axis logarithmic. Values that are not above 0 are not drawn.
	Log   bool
	Lines []Line
	// Limits are named horizontal lines, such as a target.
	Limits []Limit
}

// Line is a series of points. A Y of NaN or infinity interrupts it.
type Line struct {
	Name string
	X, Y []float64
	// Dashed draws a dashed line, such as for a requested rate beside the measured one.
	// Filled shades the area below the line.
	Dashed, Filled bool
}

// Add adds a point.
func (l *Line) Add(x, y float64) { l.X, l.Y = append(l.X, x), append(l.Y, y) }

// Limit is a horizontal line with a name.
type Limit struct {
	Name string
	Y    float64
}

const (
	width        = 960.0
	panelHeight  = 220.0
	marginLeft   = 76.0
	marginRight  = 24.0
	headHeight   = 64.0
	titleHeight  = 54.0
	gapHeight    = 26.0
	footHeight   = 44.0
	plotWidth    = width - marginLeft - marginRight
	letterWidth  = 6.6 // approximate, of 12px text
	maxTicks     = 6
	maxTimeTicks = 10
)

// colours are distinguishable for colour-blind people, too.
var colours = []string{"#1d4ed8", "#dc2626", "#d97706", "#047857", "#7c3aed", "#0e7490", "#be185d", "#4b5563"}

// WriteSVG writes the picture.
func (c *Chart) WriteSVG(w io.Writer) error {
	d := drawing{x: timeAxis(c.xs()), spans: c.Spans}
	height := headHeight + footHeight
	for range c.Panels {
		height += titleHeight + panelHeight + gapHeight
	}
	d.f(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" font-family="system-ui, sans-serif" font-size="12">`+"\n",
		width, height, width, height)
	d.f("<title>%s</title>\n", html.EscapeString(c.Title))
	d.f(`<rect width="100%%" height="100%%" fill="#ffffff"/>` + "\n")
	d.text(marginLeft, 28, `font-size="18" font-weight="600" fill="#111827"`, c.Title)
	d.text(marginLeft, 48, `fill="#4b5563"`, c.Subtitle)
	top := headHeight
	for i := range c.Panels {
		d.panel(&c.Panels[i], top+titleHeight)
		top += titleHeight + panelHeight + gapHeight
	}
	d.text(marginLeft+plotWidth/2, top+22, `text-anchor="middle" fill="#4b5563"`, c.XLabel)
	d.f("</svg>\n")
	_, err := w.Write(d.Bytes())
	return err
}

// xs returns the X values of all lines.
func (c *Chart) xs() []float64 {
	var all []float64
	for _, p := range c.Panels {
		for _, l := range p.Lines {
			all = append(all, l.X...)
		}
	}
	return all
}

type drawing struct {
	bytes.Buffer
	x     axis
	spans []Span
}

func (d *drawing) f(format string, args ...any) { fmt.Fprintf(d, format, args...) }

func (d *drawing) text(x, y float64, attributes, text string) {
	d.f(`<text x="%s" y="%s" %s>%s</text>`+"\n", px(x), px(y), attributes, html.EscapeString(text))
}

// px formats a coordinate, rounded to a tenth of a pixel.
func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// panel draws one diagram. The plot begins at top; title and legend are above it.
func (d *drawing) panel(p *Panel, top float64) {
	var ys []float64
	for _, l := range p.Lines {
		ys = append(ys, l.Y...)
	}
	for _, l := range p.Limits {
		ys = append(ys, l.Y)
	}
	y := axisOf(ys, p.Log, maxTicks)
	at := func(v float64) float64 { return top + panelHeight*(1-y.place(v)) }
	for _, s := range d.spans {
		from, to := d.across(d.x.clip(s.From)), d.across(d.x.clip(s.To))
		d.f(`<rect x="%s" y="%s" width="%s" height="%s" fill="#f3f4f6"/>`+"\n", px(from), px(top), px(to-from), px(panelHeight))
		d.text(from+4, top+14, `fill="#9ca3af"`, s.Name)
	}
	d.text(marginLeft, top-32, `font-weight="600" fill="#111827"`, p.Title)
	d.legend(p, top-12)
	for _, t := range y.ticks {
		d.f(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="#e5e7eb"/>`+"\n", px(marginLeft), px(marginLeft+plotWidth), px(at(t)), px(at(t)))
		d.text(marginLeft-8, at(t)+4, `text-anchor="end" fill="#4b5563"`, label(t))
	}
	for _, t := range d.x.ticks {
		x := d.across(t)
		d.f(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="#9ca3af"/>`+"\n", px(x), px(x), px(top+panelHeight), px(top+panelHeight+4))
		d.text(x, top+panelHeight+18, `text-anchor="middle" fill="#4b5563"`, label(t))
	}
	d.f(`<path d="M%s %sV%sH%s" fill="none" stroke="#9ca3af"/>`+"\n", px(marginLeft), px(top), px(top+panelHeight), px(marginLeft+plotWidth))
	for i, l := range p.Lines {
		d.line(l, colours[i%len(colours)], y, at, top+panelHeight)
	}
	for _, l := range p.Limits {
		d.f(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="#6b7280" stroke-dasharray="2 4"/>`+"\n", px(marginLeft), px(marginLeft+plotWidth), px(at(l.Y)), px(at(l.Y)))
		d.text(marginLeft+plotWidth-4, at(l.Y)-4, `text-anchor="end" fill="#6b7280"`, l.Name)
	}
}

// across returns the horizontal coordinate of a value.
func (d *drawing) across(v float64) float64 { return marginLeft + plotWidth*d.x.place(v) }

// legend draws the names of the lines from left to right.
func (d *drawing) legend(p *Panel, y float64) {
	x := marginLeft
	for i, l := range p.Lines {
		d.f(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="%s" stroke-width="2.5"%s/>`+"\n", px(x), px(x+18), px(y-4), px(y-4), colours[i%len(colours)], dash(l))
		d.text(x+24, y, `fill="#374151"`, l.Name)
		x += 24 + letterWidth*float64(len([]rune(l.Name))) + 16
	}
}

func dash(l Line) string {
	if l.Dashed {
		return ` stroke-dasharray="5 4"`
	}
	return ""
}

// line draws the points, as one path for each uninterrupted sequence.
func (d *drawing) line(l Line, colour string, y axis, at func(float64) float64, bottom float64) {
	for i := 0; i < len(l.X); {
		if !y.shows(l.Y[i]) {
			i++
			continue
		}
		from := i
		var path bytes.Buffer
		for ; i < len(l.X) && y.shows(l.Y[i]); i++ {
			fmt.Fprintf(&path, "L%s %s", px(d.across(l.X[i])), px(at(l.Y[i])))
		}
		points := path.String()[1:]
		if l.Filled {
			d.f(`<path d="M%s %sL%sL%s %sZ" fill="%s" fill-opacity="0.08"/>`+"\n", px(d.across(l.X[from])), px(bottom), points, px(d.across(l.X[i-1])), px(bottom), colour)
		}
		if i == from+1 { // a path of one point would be invisible
			points += "h1.5"
		}
		d.f(`<path d="M%s" fill="none" stroke="%s" stroke-width="1.6" stroke-linejoin="round"%s/>`+"\n", points, colour, dash(l))
	}
}

// axis maps values to 0..1.
type axis struct {
	from, to float64
	log      bool
	ticks    []float64
}

// axisOf returns an axis that shows all values. A linear axis begins at 0 unless there are
// negative values. A logarithmic axis begins and ends at a power of ten.
func axisOf(values []float64, log bool, most int) axis {
	a := axis{log: log, from: math.Inf(1), to: math.Inf(-1)}
	for _, v := range values {
		if a.shows(v) {
			a.from, a.to = min(a.from, v), max(a.to, v)
		}
	}
	if log {
		return a.decades(most)
	}
	if a.from > a.to {
		a.from, a.to = 0, 1
	}
	a.from = min(a.from, 0)
	if a.to == a.from {
		a.to = a.from + 1
	}
	step := niceStep((a.to - a.from) / float64(most))
	a.from = math.Floor(a.from/step) * step
	last := int(math.Round((a.to - a.from) / step))
	for i := 0; i <= last; i++ {
		if t := a.from + float64(i)*step; t <= a.to+step/1e6 {
			a.ticks = append(a.ticks, t)
		}
	}
	a.to = max(a.to*1.02, a.ticks[len(a.ticks)-1])
	return a
}

// timeAxis returns a linear axis that begins and ends with the values.
func timeAxis(values []float64) axis {
	round := axisOf(values, false, maxTimeTicks)
	a := axis{from: round.from, to: round.to}
	if len(values) > 0 && slices.Max(values) > slices.Min(values) {
		a.from, a.to = slices.Min(values), slices.Max(values)
	}
	for _, t := range round.ticks {
		if t >= a.from && t <= a.to {
			a.ticks = append(a.ticks, t)
		}
	}
	return a
}

// clip returns the value of the axis that is nearest to v.
func (a axis) clip(v float64) float64 { return min(max(v, a.from), a.to) }

// decades returns the logarithmic axis over the range of a.
func (a axis) decades(most int) axis {
	if a.from > a.to {
		a.from, a.to = 1, 10
	}
	low, high := math.Floor(math.Log10(a.from)), math.Ceil(math.Log10(a.to))
	if high == low {
		high++
	}
	parts := []float64{1}
	if int(high-low)*3 <= most+3 {
		parts = []float64{1, 2, 5}
	}
	for e := low; e <= high; e++ {
		for _, p := range parts {
			if e < high || p == 1 {
				a.ticks = append(a.ticks, p*math.Pow(10, e))
			}
		}
	}
	a.from, a.to = math.Pow(10, low), math.Pow(10, high)
	return a
}

// shows reports whether a value can be drawn on the axis.
func (a axis) shows(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!a.log || v > 0)
}

// place returns the position of v on the axis, from 0 to 1.
func (a axis) place(v float64) float64 {
	if a.log {
		return math.Log(v/a.from) / math.Log(a.to/a.from)
	}
	return (v - a.from) / (a.to - a.from)
}

// niceStep returns the smallest number that is at least v and is 1, 2 or 5 times a power
// of ten.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*power*(1+1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// label formats a value of an axis in short form: 20k, 1.5M, 0.2.
func label(v float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= unit.of {
			return short(v/unit.of) + unit.name
		}
	}
	return short(v)
}

func short(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
