package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// program is what a command sees of the world around it.
type program struct {
	in, out, err *os.File
	getenv       func(string) string
	self         string // the executable to start again as a worker; "" for this one

	interrupt func() // ends this process as the command of a run, which died of SIGINT; nil if it did not
}

// command is what can follow the program's name.
type command struct {
	name, usage string
	run         func(*program, []string) int
}

// commands are those that people use. (Not a variable: they print each other's help.)
func commands() []command {
	return []command{
		{"demo", usageDemo, (*program).demo},
		{"run", usageRun, (*program).run},
		{"ls", usageLs, (*program).ls},
		{"show", usageShow, (*program).show},
		{"top", usageTop, (*program).top},
		{"watch", usageWatch, (*program).watch},
		{"deadlocks", usageDeadlocks, (*program).deadlocks},
		{"ask", usageAsk, (*program).ask},
		{"unlock", usageUnlock, (*program).unlock},
		{"token", usageToken, (*program).token},
		{"doctor", usageDoctor, (*program).doctor},
		{"version", usage, (*program).version},
	}
}

func find(name string) *command {
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// main runs a command line without the program's name, and returns the exit code.
func (p *program) main(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.err, usage)
		return exitUsage
	}
	name, rest := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		return p.help(rest)
	case "-version", "--version":
		name = "version"
	case workerCommand:
		return p.worker()
	}
	if c := find(name); c != nil {
		return c.run(p, rest)
	}
	return p.misuse(fmt.Errorf("unknown command %q", name), "")
}

// help prints what is known about the command in args.
func (p *program) help(args []string) int {
	text := usage
	if len(args) > 0 && args[0] != "help" {
		c := find(args[0])
		if c == nil {
			return p.misuse(fmt.Errorf("unknown command %q", args[0]), "")
		}
		text = c.usage
	}
	fmt.Fprint(p.out, text)
	return 0
}

// fail says what went wrong and returns the code.
func (p *program) fail(code int, err error) int {
	fmt.Fprintln(p.err, "rlock:", clean(trimPrefix(err)))
	return code
}

// leaveTime is what a command has to clean up after a signal.
const leaveTime = 300 * time.Millisecond

// interruptibly runs what a signal ends at once: a question to a Redis that does not answer is left alone. begun is for commands that a
// signal is the ordinary end of, from then on.
func (p *program) interruptibly(does func(ctx context.Context, begun func()) int) int {
	ctx, stop := interruptible()
	defer stop()
	var ordinary atomic.Bool
	code := make(chan int, 1)
	go func() { code <- does(ctx, func() { ordinary.Store(true) }) }() // ends with its questions, or with the process
	select {
	case c := <-code:
		return c
	case <-ctx.Done():
	}
	select {
	case c := <-code:
		return c
	case <-time.After(leaveTime):
		if ordinary.Load() {
			return 0
		}
		return endCode(ctx)
	}
}

// failed is fail for what a signal may have ended: then there is nothing to say.
func (p *program) failed(ctx context.Context, err error) int {
	if ctx.Err() != nil {
		return endCode(ctx)
	}
	return p.fail(exitInternal, err)
}

// misuse is fail for a command line that is wrong.
func (p *program) misuse(err error, command string) int {
	about := ""
	if command != "" {
		about = " " + command
	}
	return p.fail(exitUsage, fmt.Errorf("%w (see: rlock help%s)", err, about))
}

// flags are those of a command that talks to a Redis.
func (p *program) flags(command string, t *target) *flag.FlagSet {
	fs := flag.NewFlagSet(command, flag.ContinueOnError)
	t.flags(fs)
	return fs
}

// parse reads the flags of a command. It reports false, with the exit code, if there is nothing
// left to do.
func (p *program) parse(fs *flag.FlagSet, args []string) (code int, ok bool) {
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	switch err := fs.Parse(args); {
	case err == nil:
		return 0, true
	case errors.Is(err, flag.ErrHelp):
		return p.help([]string{fs.Name()}), false
	default:
		return p.misuse(hint(fs, err), fs.Name()), false
	}
}

// noUnit is what the flags say of a number without a unit.
var noUnit = regexp.MustCompile(`^invalid value "(-?[\d.]+)" for flag -(\S+): parse error$`)

// hint adds to an error of the flags that a duration has a unit.
func hint(fs *flag.FlagSet, err error) error {
	if m := noUnit.FindStringSubmatch(err.Error()); m != nil {
		if f, ok := fs.Lookup(m[2]).Value.(flag.Getter); ok {
			if _, ok := f.Get().(time.Duration); ok {
				return fmt.Errorf("-%s %s: a duration has a unit, as in %ss", m[2], m[1], m[1])
			}
		}
	}
	return err
}

// parseOne is parse for a command with one argument at most, before or behind its flags. Without one it is "", and given is false.
func (p *program) parseOne(fs *flag.FlagSet, args []string) (arg string, given bool, code int, ok bool) {
	if code, ok := p.parse(fs, args); !ok {
		return "", false, code, false
	}
	if fs.NArg() == 0 {
		return "", false, 0, true
	}
	arg = fs.Arg(0)
	if code, ok := p.parse(fs, fs.Args()[1:]); !ok {
		return "", false, code, false
	}
	if fs.NArg() > 0 {
		return "", false, p.misuse(fmt.Errorf("%s takes one argument, not also %q (quote what is to be one)", fs.Name(), fs.Arg(0)), fs.Name()), false
	}
	return arg, true, 0, true
}

// parseName is parse for a command with one argument, the name of a lock.
func (p *program) parseName(fs *flag.FlagSet, args []string) (name string, code int, ok bool) {
	name, given, code, ok := p.parseOne(fs, args)
	switch {
	case !ok:
		return "", code, false
	case !given:
		return "", p.misuse(fmt.Errorf("%s needs NAME", fs.Name()), fs.Name()), false
	case name == "":
		return "", p.misuse(errors.New("NAME is empty"), fs.Name()), false
	}
	return name, 0, true
}

// json writes a value as one line. A terminal may show it.
func (p *program) json(v any) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // of our own types
		panic(err)
	}
	var line strings.Builder
	for _, r := range strings.TrimSuffix(text.String(), "\n") {
		switch {
		case unicode.IsPrint(r):
			line.WriteRune(r)
		default: // inside of a string; the encoder leaves those of ASCII to nobody
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&line, `\u%04x`, unit)
			}
		}
	}
	fmt.Fprintln(p.out, line.String()) // if nobody reads on, neither will it be missed
}

// table writes rows under a header: in columns on a terminal, otherwise without the header and with a tab between the cells.
func table(w io.Writer, header []string, rows [][]string, terminal bool) {
	if terminal {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		w = t
		defer func() { _ = t.Flush() }()
		rows = append([][]string{header}, rows...)
	}
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = clean(cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
}

// printable is a name as it is, or quoted if it would upset a terminal or a table.
func printable(name string) string {
	if name == "" || strings.ContainsFunc(name, upsets) {
		return strconv.Quote(name)
	}
	return name
}

// clean is a text in which each character that would upset a terminal or a table is written as Go does in a string.
func clean(text string) string {
	if !strings.ContainsFunc(text, upsets) {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if upsets(r) {
			quoted := strconv.Quote(text[:size])
			out.WriteString(quoted[1 : len(quoted)-1])
		} else {
			out.WriteString(text[:size])
		}
		text = text[size:]
	}
	return out.String()
}

func upsets(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
