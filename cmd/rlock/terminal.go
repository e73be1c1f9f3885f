package main

import (
	"io"
	"os"
)

// isTerminal reports whether f is a terminal. The null device is a character device, too.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// screen is the demo's output: in colour on a terminal, else plain.
type screen struct {
	io.Writer
	colour bool
}

func (p *program) screen() screen {
	return screen{Writer: p.out, colour: isTerminal(p.out) && p.getenv("NO_COLOR") == "" && p.getenv("TERM") != "dumb"}
}

func (s screen) bold(text string) string  { return s.paint("1", text) }
func (s screen) good(text string) string  { return s.paint("1;32", text) }
func (s screen) bad(text string) string   { return s.paint("1;31", text) }
func (s screen) faint(text string) string { return s.paint("2", text) }

func (s screen) paint(code, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
