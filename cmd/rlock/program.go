package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// program is what a command sees of the world around it.
type program struct {
	in, out, err *os.File
	getenv       func(string) string
	self         string // the executable to start again as a worker; "" for this one
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
		{"unlock", usageUnlock, (*program).unlock},
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
	fmt.Fprintln(p.err, "rlock:", trimPrefix(err))
	return code
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
		return p.misuse(err, fs.Name()), false
	}
}

// parseName is parse for a command with one argument, the name of a lock.
func (p *program) parseName(fs *flag.FlagSet, args []string) (name string, code int, ok bool) {
	if code, ok := p.parse(fs, args); !ok {
		return "", code, false
	}
	switch {
	case fs.NArg() == 0:
		return "", p.misuse(fmt.Errorf("%s needs NAME", fs.Name()), fs.Name()), false
	case fs.NArg() > 1:
		return "", p.misuse(fmt.Errorf("%s takes one NAME, and flags before it", fs.Name()), fs.Name()), false
	case fs.Arg(0) == "":
		return "", p.misuse(errors.New("NAME is empty"), fs.Name()), false
	}
	return fs.Arg(0), 0, true
}

// json writes a value as one line.
func (p *program) json(v any) {
	e := json.NewEncoder(p.out)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // if nobody reads on, neither will it be missed
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
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
}

// printable is a name as it is, or quoted if it would upset a terminal or a table.
func printable(name string) string {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(name)
	}
	return name
}
