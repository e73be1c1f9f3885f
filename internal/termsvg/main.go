// Command termsvg draws the terminal output of a program as an SVG; "make picture" draws the demo with it. A word
// keeps its columns in any font. Bars are drawn, not written, so that they join.
package main

import (
	"fmt"
	"html"
	"io"
	"os"
	"strings"
	"unicode"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = os.Stdout.WriteString(draw(string(text)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "termsvg:", err)
		os.Exit(1)
	}
}

const (
	column, row = 8.0, 18.0
	margin      = 16.0
	blocks      = "▁▂▃▄▅▆▇█"
)

// style is the effect of SGR sequences.
type style struct {
	colour string
	bold   bool
}

var plain = style{colour: "#e6edf3"}

// then returns the style after the parameters of a sequence. Parameters that the demo does not use change nothing.
func (s style) then(parameters string) style {
	for p := range strings.SplitSeq(parameters, ";") {
		switch p {
		case "", "0":
			s = plain
		case "1":
			s.bold = true
		case "2":
			s.colour = "#8b949e"
		case "31":
			s.colour = "#ff7b72"
		case "32":
			s.colour = "#7ee787"
		}
	}
	return s
}

// draw returns the SVG of a text with SGR sequences.
func draw(text string) string {
	var b strings.Builder
	lines := strings.Split(strings.Trim(strings.ReplaceAll(text, "\r", ""), "\n"), "\n")
	columns := 0
	s := plain
	for y, line := range lines {
		x := 0
		word, from := "", 0
		flush := func() {
			if word != "" {
				s.write(&b, from, y, word)
			}
			word = ""
		}
		for i, rest := 0, []rune(line); i < len(rest); i++ {
			switch c := rest[i]; {
			case c == '\x1b' && i+1 < len(rest) && rest[i+1] == '[':
				flush()
				begin := i + 2
				i = begin
				for i < len(rest) && !unicode.IsLetter(rest[i]) {
					i++
				}
				if i < len(rest) && rest[i] == 'm' {
					s = s.then(string(rest[begin:i]))
				}
			case c == ' ':
				flush()
				x++
			case strings.ContainsRune(blocks, c):
				flush()
				s.block(&b, x, y, 1+len([]rune(blocks[:strings.IndexRune(blocks, c)])))
				x++
			default:
				if word == "" {
					from = x
				}
				word += string(c)
				x++
			}
		}
		flush()
		columns = max(columns, x)
	}
	width, height := 2*margin+column*float64(columns), 2*margin+row*float64(len(lines))
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %[1]f %[2]f"`+
		` font-family="Menlo, Consolas, monospace" font-size="13">
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
%s</svg>
`, width, height, b.String())
}

func (s style) write(b *strings.Builder, x, y int, word string) {
	weight := ""
	if s.bold {
		weight = ` font-weight="bold"`
	}
	fmt.Fprintf(b, `<text x="%.0f" y="%.0f" textLength="%.0f" lengthAdjust="spacingAndGlyphs" fill="%s"%s>%s</text>`+"\n",
		margin+column*float64(x), margin+row*(float64(y)+0.75), column*float64(len([]rune(word))), s.colour, weight, html.EscapeString(word))
}

// block draws a bar, in eighths of a line.
func (s style) block(b *strings.Builder, x, y, eighths int) {
	height := (row - 2) * float64(eighths) / 8
	fmt.Fprintf(b, `<rect x="%.0f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n",
		margin+column*float64(x), margin+row*float64(y+1)-height, column+0.2, height, s.colour)
}
