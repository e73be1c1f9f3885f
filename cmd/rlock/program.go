package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// program is what a command sees of the world around it.
type program struct {
	in, out, err *os.File
	getenv       func(string) string
	self         string // the executable to start again as a worker; "" for this one
}

// main runs a command line without the program's name, and returns the exit code.
func (p *program) main(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.err, usage)
		return exitUsage
	}
	switch command, rest := args[0], args[1:]; command {
	case "demo":
		return p.demo(rest)
	case "run":
		return p.run(rest)
	case "version", "-version", "--version":
		return p.version(rest)
	case "help", "-h", "-help", "--help":
		return p.help(rest)
	case workerCommand:
		return p.worker()
	default:
		fmt.Fprintf(p.err, "rlock: unknown command %q\n\n%s", command, usage)
		return exitUsage
	}
}

// fail says what went wrong and returns the code.
func (p *program) fail(code int, err error) int {
	fmt.Fprintln(p.err, "rlock:", trimPrefix(err))
	return code
}

// parse reads the flags of a command. It reports false, with the exit code, if there is nothing
// left to do.
func (p *program) parse(fs *flag.FlagSet, args []string, usage string) (code int, ok bool) {
	fs.SetOutput(io.Discard)
	switch err := fs.Parse(args); {
	case err == nil:
		return 0, true
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.out, usage)
		return 0, false
	default:
		return p.misuse(err, usage), false
	}
}

func (p *program) misuse(err error, usage string) int {
	fmt.Fprintf(p.err, "rlock: %v\n\n%s", err, usage)
	return exitUsage
}
