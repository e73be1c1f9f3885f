package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
)

const usageReport = `usage: rlock report [flags] FILE

Makes one HTML page of a recording by "rlock record": a timeline of who had and
who waited for which lock, the longest waits, losses and forced unlocks. The
page needs no server and no network. FILE may be -, for stdin.

  -o F         write the page to F (default: print it)

Lines of FILE that are damaged are left out, and counted on stderr.

exit code  0   2 usage   125 FILE is no recording, or a file cannot be read or
           written
`

func (p *program) reportPage(args []string) int {
	flags := p.flags("report", nil)
	file := flags.String("o", "", "")
	name, given, code, ok := p.parseOne(flags, args)
	switch {
	case !ok:
		return code
	case !given:
		return p.misuse(errors.New("report needs FILE"), "report")
	case *file == "" && isTerminal(p.out):
		return p.misuse(errors.New("report prints a long page: use -o FILE.html"), "report")
	}
	in := p.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return p.fail(exitInternal, err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	t := newTimeline()
	d, err := readRecording(in, t.begin, t.add)
	if err != nil {
		return p.fail(exitInternal, fmt.Errorf("%s: %w", name, err))
	}
	t.finish()
	if d.cut {
		fmt.Fprintln(p.err, "rlock: the last line was cut, and is left out")
	}
	if d.lines > 0 {
		fmt.Fprintf(p.err, "rlock: %d lines are no events, and are left out\n", d.lines)
	}
	t.damaged = d.lines
	if err := p.writePage(*file, t); err != nil {
		return p.fail(exitInternal, err)
	}
	return 0
}

// writePage writes the page to a file, or prints it.
func (p *program) writePage(file string, t *timeline) error {
	write := func(to io.Writer) error {
		w := bufio.NewWriter(to)
		if err := t.page(w); err != nil {
			return err
		}
		return w.Flush()
	}
	if file == "" {
		return write(p.out)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
