package chart

import (
	"math"
	"slices"
	"strconv"
)

// axis maps values to 0..1.
type axis struct {
	from, to float64
	log      bool
	ticks    []float64
}

// axisOf returns an axis that shows all values. A linear one begins at 0 unless
// there are values below; a logarithmic one begins and ends at a power of ten.
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

// timeAxis returns a linear axis that ends where the values end.
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

// shows reports whether a value has a place on the axis.
func (a axis) shows(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!a.log || v > 0)
}

// place returns where v lies, 0 to 1.
func (a axis) place(v float64) float64 {
	if a.log {
		return math.Log(v/a.from) / math.Log(a.to/a.from)
	}
	return (v - a.from) / (a.to - a.from)
}

// niceStep returns 1, 2 or 5 times a power of ten that is at least v.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*power*(1+1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// label writes a value of an axis shortly: 20k, 1.5M, 0.2.
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
