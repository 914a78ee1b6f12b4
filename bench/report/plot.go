package report

import (
	"fmt"
	"html"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"boxgate/bench/scenario"
	"boxgate/bench/stat"
)

// plot is a line chart with one line per program.
type plot struct {
	Title, X, Y string
	Lines       []line
	file        string
}

// line is the line of one program.
type line struct {
	Name   string
	Points []point
}

type point struct{ X, Y float64 }

// Plots returns the charts as SVG, by file name.
func (r *Report) Plots() map[string]string {
	rows := r.rows()
	out := map[string]string{}
	for _, s := range r.Scenarios {
		for _, p := range r.plots(s, rows) {
			out[p.file] = p.svg()
		}
	}
	return out
}

// plots returns the charts of a scenario: cost against load if its cases differ in load, and memory against connections
// if it was read at several numbers of connections.
func (r *Report) plots(s scenario.Scenario, rows map[key]*row) (out []plot) {
	load := plot{Title: s.ID + ": " + s.Title, X: "connections", Y: s.Cost, file: strings.ToLower(s.ID) + ".svg"}
	for _, v := range r.Programs {
		l := line{Name: v.Name}
		for _, c := range s.Cases {
			if m := rows[key{s.ID, c.Name, v.Name}].median(); c.X > 0 && v.Name != scenario.Direct && !math.IsNaN(m) {
				l.Points = append(l.Points, point{c.X, m})
			}
		}
		load.add(l)
	}
	out = load.appendTo(out)
	if s.Cost != memoryUnit {
		return out
	}
	for _, c := range s.Cases {
		p := plot{Title: s.ID + ": " + c.Name, X: "idle connections", Y: "MB", file: strings.ToLower(s.ID) + "-" + strings.ReplaceAll(c.Name, " ", "-") + ".svg"}
		for _, v := range r.Programs {
			if w := rows[key{s.ID, c.Name, v.Name}]; w != nil {
				p.add(line{v.Name, w.memory()})
			}
		}
		out = p.appendTo(out)
	}
	return out
}

// memoryUnit is the unit of the scenarios whose memory is plotted.
const memoryUnit = "KB a connection"

// memory returns the memory of all connections together, in MB.
func (w *row) memory() (points []point) {
	for _, conns := range slices.Sorted(maps.Keys(w.points)) {
		points = append(points, point{conns, stat.Median(w.points[conns]) * conns / 1024})
	}
	return points
}

func (p *plot) add(l line) {
	if len(l.Points) > 1 {
		p.Lines = append(p.Lines, l)
	}
}

// appendTo appends the chart if it has lines.
func (p plot) appendTo(all []plot) []plot {
	if len(p.Lines) == 0 {
		return all
	}
	return append(all, p)
}

// The size of a chart, and its margins.
const (
	width, height            = 760, 420
	left, right, top, bottom = 70, 130, 40, 50
)

// outlier limits the vertical axis to this multiple of the median of the lines' maxima. A program that costs fifty
// times as much would otherwise flatten all other lines.
const outlier = 6

// colours is the number of distinguishable line styles: colours, then dashes.
const colours = 10

// style follows the reader's colour scheme.
const style = `<style>
svg{background:#fff;font:13px sans-serif}text{fill:#222}.axis{stroke:#888;stroke-width:1}.grid{stroke:#ddd;stroke-width:1}
.line{fill:none;stroke-width:2}.s0{stroke:#c2410c;fill:#c2410c}.s1{stroke:#1d4ed8;fill:#1d4ed8}.s2{stroke:#15803d;fill:#15803d}.s3{stroke:#7e22ce;fill:#7e22ce}.s4{stroke:#0e7490;fill:#0e7490}.s5{stroke:#a16207;fill:#a16207}.s6{stroke:#be185d;fill:#be185d}.s7{stroke:#4d7c0f;fill:#4d7c0f}.s8{stroke:#57534e;fill:#57534e}.s9{stroke:#4338ca;fill:#4338ca}
text.name{stroke:none}.line.s0{stroke-width:3.5}.line.s5,.line.s6{stroke-dasharray:7 3}.line.s7,.line.s8,.line.s9{stroke-dasharray:2 3}
@media(prefers-color-scheme:dark){svg{background:#111}text{fill:#eee}.axis{stroke:#999}.grid{stroke:#333}
.s0{stroke:#fb923c;fill:#fb923c}.s1{stroke:#93c5fd;fill:#93c5fd}.s2{stroke:#86efac;fill:#86efac}.s3{stroke:#d8b4fe;fill:#d8b4fe}.s4{stroke:#67e8f9;fill:#67e8f9}.s5{stroke:#fde047;fill:#fde047}.s6{stroke:#f9a8d4;fill:#f9a8d4}.s7{stroke:#bef264;fill:#bef264}.s8{stroke:#d6d3d1;fill:#d6d3d1}.s9{stroke:#a5b4fc;fill:#a5b4fc}}
.line{fill:none!important}
</style>`

// svg draws the chart.
func (p plot) svg() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n%s\n", width, height, html.EscapeString(p.Title), style)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="15">%s</text>`+"\n", left, html.EscapeString(p.Title))
	ceiling, beyond := p.ceiling()
	p.axes(&b, ceiling)
	var taken []float64
	for i, l := range p.Lines {
		if !slices.Contains(beyond, l.Name) {
			taken = append(taken, p.draw(&b, i, l, ceiling, taken))
		}
	}
	if len(beyond) > 0 {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end" font-size="11">beyond the scale: %s</text>`+"\n", width-right, top+12, html.EscapeString(strings.Join(beyond, ", ")))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// ceiling returns the end of the vertical axis, and the programs beyond it.
func (p plot) ceiling() (top float64, beyond []string) {
	var highest []float64
	for _, l := range p.Lines {
		highest = append(highest, l.highest())
	}
	limit := outlier * stat.Median(highest)
	for _, l := range p.Lines {
		if l.highest() > limit {
			beyond = append(beyond, l.Name)
		} else {
			top = max(top, l.highest())
		}
	}
	return round(top), beyond
}

func (l line) highest() float64 {
	h := 0.0
	for _, p := range l.Points {
		h = max(h, p.Y)
	}
	return h
}

// round returns the next larger number with one or two significant digits that suits the end of an axis.
func round(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8, 10} {
		if v <= f*unit {
			return f * unit
		}
	}
	return 10 * unit
}

// axes draws the grid and its labels.
func (p plot) axes(b *strings.Builder, ceiling float64) {
	for i := range 6 {
		v := ceiling * float64(i) / 5
		y := yPlace(v, ceiling)
		fmt.Fprintf(b, `<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left, y, width-right, y, left-8, y+4, tick(v))
	}
	for _, x := range p.xs() {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", p.xPlace(x), height-bottom+18, tick(x))
	}
	fmt.Fprintf(b, `<line class="axis" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", left, height-bottom, width-right, height-bottom)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-10, html.EscapeString(p.X))
	fmt.Fprintf(b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (top+height-bottom)/2, html.EscapeString(p.Y))
}

// draw draws a line with its label at the end, placed clear of the labels in taken, and returns the label's position.
func (p plot) draw(b *strings.Builder, i int, l line, ceiling float64, taken []float64) float64 {
	var path []string
	for _, at := range l.Points {
		x, y := p.xPlace(at.X), yPlace(at.Y, ceiling)
		path = append(path, fmt.Sprintf("%.1f,%.1f", x, y))
		fmt.Fprintf(b, `<circle class="s%d" cx="%.1f" cy="%.1f" r="3.5"/>`, i%colours, x, y)
	}
	fmt.Fprintf(b, `<polyline class="line s%d" points="%s"/>`, i%colours, strings.Join(path, " "))
	y := free(yPlace(l.Points[len(l.Points)-1].Y, ceiling), taken)
	fmt.Fprintf(b, `<text class="name s%d" x="%d" y="%.1f">%s</text>`+"\n", i%colours, width-right+10, y+4, html.EscapeString(l.Name))
	return y
}

// free returns the position nearest to wanted at which a label overlaps no other and stays beside the chart.
func free(wanted float64, taken []float64) float64 {
	for off := 0.; off < height; off += 5 {
		for _, y := range []float64{wanted - off, wanted + off} {
			inside := y >= top && y <= height-bottom
			if inside && !slices.ContainsFunc(taken, func(t float64) bool { return math.Abs(t-y) < 15 }) {
				return y
			}
		}
	}
	return wanted
}

// xs returns the positions on the horizontal axis that have measurements.
func (p plot) xs() []float64 {
	seen := map[float64]bool{}
	for _, l := range p.Lines {
		for _, at := range l.Points {
			seen[at.X] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// xPlace maps a number to the horizontal axis, which is logarithmic for a wide range.
func (p plot) xPlace(x float64) float64 {
	xs := p.xs()
	low, high := xs[0], xs[len(xs)-1]
	if high == low {
		return left
	}
	part := (x - low) / (high - low)
	if low > 0 && high/low > 20 {
		part = math.Log(x/low) / math.Log(high/low)
	}
	return left + part*(width-left-right)
}

func yPlace(v, ceiling float64) float64 {
	return height - bottom - v/ceiling*(height-top-bottom)
}

func tick(v float64) string {
	if v == 0 {
		return "0"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
