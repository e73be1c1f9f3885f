package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"strconv"
	"strings"
)

// picture is an SVG under construction. Its text uses the reader's sans-serif font, so widths are estimated for a wide font.
type picture struct {
	strings.Builder
	width, height float64
}

// The colours of everything but libraries, and the text size.
const (
	ink      = "#1f2328"
	faint    = "#59636e"
	gridline = "#d8dee4"
	fontSize = 13.0
)

// widthOf estimates a text's maximum width.
func widthOf(text string) float64 { return 0.62 * fontSize * float64(len([]rune(text))) }

func (p *picture) draw(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// anchor says which end of a text is at its position.
type anchor string

const (
	begin  anchor = "start"
	middle anchor = "middle"
	end    anchor = "end"
)

func (p *picture) text(x, y float64, at anchor, colour, text string) {
	p.draw(`<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`, x, y, at, colour, html.EscapeString(text))
}

// title writes as many lines as the text needs, and returns the last one's position.
func (p *picture) title(text string) float64 {
	const lineHeight = 20
	y := 2.0
	line := ""
	flush := func() {
		y += lineHeight
		p.draw(`<text x="12" y="%.1f" font-weight="bold" fill="%s">%s</text>`, y, ink, html.EscapeString(line))
	}
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case 1.1*widthOf(line+" "+word) > p.width-24: // bold is wider
			flush()
			line = word
		default:
			line += " " + word
		}
	}
	flush()
	return y
}

func (p *picture) line(x1, y1, x2, y2 float64, colour string, width float64) {
	p.draw(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`, x1, y1, x2, y2, colour, width)
}

// whisker spans the rounds' values; its ends are twice that long.
func (p *picture) whisker(x1, y1, x2, y2, half float64) {
	p.line(x1, y1, x2, y2, ink, 1)
	dx, dy := 0.0, half
	if x1 == x2 {
		dx, dy = half, 0
	}
	p.line(x1-dx, y1-dy, x1+dx, y1+dy, ink, 1)
	p.line(x2-dx, y2-dy, x2+dx, y2+dy, ink, 1)
}

// bar is a rectangle, striped as a warning.
func (p *picture) bar(x, y, width, height float64, colour string, striped bool) {
	p.draw(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, x, y, width, height, colour)
	if striped {
		p.draw(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="url(#stripes)"/>`, x, y, width, height)
	}
}

// dot draws a dot, or a ring.
func (p *picture) dot(x, y float64, colour string, ring bool) {
	fill := colour
	if ring {
		fill = "#ffffff"
	}
	p.draw(`<circle cx="%.1f" cy="%.1f" r="4" fill="%s" stroke="%s" stroke-width="2"/>`, x, y, fill, colour)
}

// save writes the file.
func (p *picture) save(path string) error {
	text := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %[1]f %[2]f"`+
		` font-family="Helvetica, Arial, sans-serif" font-size="%[3]g">
<defs><pattern id="stripes" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">`+
		`<rect width="3.5" height="7" fill="#ffffff" fill-opacity="0.65"/></pattern></defs>
<rect width="100%%" height="100%%" fill="#ffffff"/>
%[4]s</svg>
`, p.width, p.height, fontSize, p)
	return os.WriteFile(path, []byte(text), 0o644)
}

// axis maps values to positions in the picture.
type axis struct {
	from, to    float64 // values
	first, last float64 // positions
	log         bool
}

func (a *axis) at(v float64) float64 {
	part := (v - a.from) / (a.to - a.from)
	if a.log {
		part = math.Log(v/a.from) / math.Log(a.to/a.from)
	}
	return a.first + part*(a.last-a.first)
}

// ticks returns about four to nine round values.
func (a *axis) ticks() []float64 {
	var all []float64
	if !a.log {
		step := roundUp((a.to - a.from) / 6)
		for n := math.Ceil(a.from / step); n*step <= a.to; n++ {
			all = append(all, n*step)
		}
		return all
	}
	steps := []float64{1}
	if a.to/a.from < 500 {
		steps = []float64{1, 2, 5}
	}
	for power := math.Floor(math.Log10(a.from)); power <= math.Log10(a.to); power++ {
		for _, s := range steps {
			if v := s * math.Pow(10, power); a.from <= v && v <= a.to {
				all = append(all, v)
			}
		}
	}
	return all
}

// roundUp returns the next 1, 2 or 5 with zeros.
func roundUp(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, s := range []float64{1, 2, 5} {
		if s*power >= v {
			return s * power
		}
	}
	return 10 * power
}

// number formats three digits, or all of a larger number: 0.7, 23.1, 12,509.
func number(v float64) string {
	if v < 999.5 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
