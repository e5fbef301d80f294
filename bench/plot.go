package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// chart is horizontal bars under a title.
type chart struct {
	title string
	log   bool // the scale; else it begins at zero
	bars  []bar
}

// bar is a median and its spread.
type bar struct {
	label       string
	got         spread
	text        string // beside the bar
	highlighted bool   // ours
}

// charts are what the README shows.
func (r *report) charts() []chart {
	var all []chart
	for _, d := range r.Drains {
		c := chart{title: "Drain: " + d.Shape.title() + ", rows/s of pg_recvlogical's, from the first row"}
		for _, key := range d.keys() {
			got := d.against(key, keyLimit, (*drainRun).steady, (*drainRun).steady)
			if got.N == 0 {
				continue
			}
			c.bars = append(c.bars, bar{
				label: nameOf(key), got: got, highlighted: key == keyRun || key == keyMarks,
				text: fmt.Sprintf("%s× · %s/s", digits(got.Median), d.each(key, (*drainRun).steady).plain()),
			})
		}
		all = append(all, c)
	}
	if r.Latency != nil {
		all = append(all, r.Latency.charts()...)
	}
	return all
}

// charts are one a rate. The bar is the p50, and what reaches beyond it the p99.
func (l *latency) charts() []chart {
	var all []chart
	for _, rate := range l.rates() {
		c := chart{title: fmt.Sprintf("Latency at %s transactions/s in ms, logarithmic: p50, and the line to p99", grouped(int64(rate))), log: true}
		for _, carrier := range carriers() {
			for _, r := range l.Pooled {
				if r.Rate != rate || r.Contender != carrier.key || r.Rows == 0 {
					continue
				}
				c.bars = append(c.bars, bar{
					label: carrier.name, got: spread{Median: r.P50 / 1000, Least: r.P50 / 1000, Most: r.P99 / 1000, N: r.Rows},
					highlighted: r.Contender == keyRun || r.Contender == keyMarks,
					text:        digits(r.P50/1000) + " · " + digits(r.P99/1000),
				})
			}
		}
		all = append(all, c)
	}
	return all
}

// Sizes of the plot, in pixels.
const (
	plotWidth  = 860
	plotLabels = 230 // beside the bars
	plotTexts  = 150 // behind the bars
	plotBar    = 22
	plotTitle  = 38
)

// writeSVG writes the plot.
func (r *report) writeSVG(w io.Writer) error {
	charts := r.charts()
	height := 10
	for _, c := range charts {
		height += plotTitle + plotBar*len(c.bars)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", plotWidth, height)
	y := 0
	for _, c := range charts {
		c.draw(&b, y)
		y += plotTitle + plotBar*len(c.bars)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// draw draws a chart below y.
func (c chart) draw(b *strings.Builder, y int) {
	fmt.Fprintf(b, `<text x="10" y="%d" font-weight="bold">%s</text>`+"\n", y+26, html.EscapeString(c.title))
	at := c.scale()
	for i, bar := range c.bars {
		top := y + plotTitle + i*plotBar
		middle := float64(top) + plotBar/2 - 2
		color := map[bool]string{true: "#0b7a75", false: "#b8bfc6"}[bar.highlighted]
		fmt.Fprintf(b, `<text x="%d" y="%.0f" text-anchor="end">%s</text>`, plotLabels-8, middle+4, html.EscapeString(bar.label))
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, plotLabels, top, max(1, at(bar.got.Median)-plotLabels), plotBar-6, color)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#333"/>`, at(bar.got.Least), middle-1, at(bar.got.Most), middle-1)
		fmt.Fprintf(b, `<text x="%.1f" y="%.0f">%s</text>`+"\n", at(max(bar.got.Median, bar.got.Most))+8, middle+4, html.EscapeString(bar.text))
	}
}

// scale maps a value to its x.
func (c chart) scale() func(float64) float64 {
	const wide = plotWidth - plotLabels - plotTexts
	most, least := 0.0, math.Inf(1)
	for _, bar := range c.bars {
		most = max(most, bar.got.Median, bar.got.Most)
		if bar.got.Least > 0 {
			least = min(least, bar.got.Least)
		}
	}
	if most <= 0 {
		return func(float64) float64 { return plotLabels }
	}
	if !c.log || least >= most {
		return func(v float64) float64 { return plotLabels + wide*max(0, v)/most }
	}
	least /= 2 // or the shortest bar would have no length
	return func(v float64) float64 {
		return plotLabels + wide*max(0, math.Log(max(v, least)/least)/math.Log(most/least))
	}
}
