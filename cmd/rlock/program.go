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
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/redis/rueidis"
)

// program is a command's environment.
type program struct {
	in, out, err *os.File
	getenv       func(string) string
	self         string // the executable to start again as a worker; "" for this one

	connects  func(*rueidis.ClientOption) // changes how clients connect; may be nil
	interrupt func()                      // ends this process by SIGINT if the command of a run did; nil if not
}

// command is a subcommand.
type command struct {
	name, usage string
	run         func(*program, []string) int
}

// commands returns all subcommands. (Not a variable: they print each other's help.)
func commands() []command {
	return []command{
		{"demo", usageDemo, (*program).demo},
		{"run", usageRun, (*program).run},
		{"ls", usageLs, (*program).ls},
		{"show", usageShow, (*program).show},
		{"top", usageTop, (*program).top},
		{"watch", usageWatch, (*program).watch},
		{"record", usageRecord, (*program).record},
		{"report", usageReport, (*program).reportPage},
		{"ask", usageAsk, (*program).ask},
		{"deadlocks", usageDeadlocks, (*program).deadlocks},
		{"unlock", usageUnlock, (*program).unlock},
		{"token", usageToken, (*program).token},
		{"doctor", usageDoctor, (*program).doctor},
		{"completion", usageCompletion, (*program).completion},
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

// help prints the usage of the command in args.
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

// fail prints an error and returns the code.
func (p *program) fail(code int, err error) int {
	fmt.Fprintln(p.err, "rlock:", clean(trimPrefix(err)))
	return code
}

// leaveTime bounds a command's cleanup after a signal.
const leaveTime = 300 * time.Millisecond

// interruptibly runs a command that a signal ends at once, even if Redis is silent. A command that normally ends by a signal calls begun;
// from then on a signal is no error.
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

// failed is fail, but prints nothing after a signal.
func (p *program) failed(ctx context.Context, err error) int {
	if ctx.Err() != nil {
		return endCode(ctx)
	}
	return p.fail(exitInternal, err)
}

// misuse is fail for a wrong command line.
func (p *program) misuse(err error, command string) int {
	about := ""
	if command != "" {
		about = " " + command
	}
	return p.fail(exitUsage, fmt.Errorf("%w (see: rlock help%s)", err, about))
}

// flags returns the flags of a command that uses a Redis, or of one that does not, without a target.
func (p *program) flags(command string, t *target) *flag.FlagSet {
	fs := flag.NewFlagSet(command, flag.ContinueOnError)
	if t != nil {
		t.flags(fs)
	}
	return fs
}

// parse reads a command's flags. It reports false, with the exit code, if nothing is left to do.
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

// noUnit matches the flag error for a duration without a unit.
var noUnit = regexp.MustCompile(`^invalid value "(-?[\d.]+)" for flag -(\S+): parse error$`)

// hint tells the user that a duration needs a unit.
func hint(fs *flag.FlagSet, err error) error {
	if m := noUnit.FindStringSubmatch(err.Error()); m != nil {
		if f, ok := fs.Lookup(m[2]).Value.(flag.Getter); ok {
			if _, ok := f.Get().(time.Duration); ok {
				return fmt.Errorf("-%s %s: a duration needs a unit, as in %ss", m[2], m[1], m[1])
			}
		}
	}
	return err
}

// parseOne is parse for a command with at most one argument, before or after its flags. given reports whether there is one.
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
		return "", false, p.misuse(fmt.Errorf("%s takes one argument, not also %q (quote an argument with spaces)", fs.Name(), fs.Arg(0)), fs.Name()), false
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

// json prints a value as one line, safe for a terminal.
func (p *program) json(v any) {
	fmt.Fprintln(p.out, jsonLine(v)) // a reader that has gone misses nothing
}

// jsonLine returns a value as one line of JSON, safe for a terminal.
func jsonLine(v any) string {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // cannot fail with our own types
		panic(err)
	}
	var line strings.Builder
	for _, r := range strings.TrimSuffix(text.String(), "\n") {
		switch {
		case !upsets(r):
			line.WriteRune(r)
		default: // inside a string; the encoder escapes ASCII controls itself, and until Go 1.26 the replacement character, too
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&line, `\u%04x`, unit)
			}
		}
	}
	return line.String()
}

// printable returns a name, quoted if it would upset a terminal or a table.
func printable(name string) string {
	if name == "" || strings.ContainsFunc(name, upsets) {
		return strconv.Quote(name)
	}
	return name
}

// clean escapes, as in a Go string, each character that would upset a terminal or a table.
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
