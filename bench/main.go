// Command bench measures rlock and its alternatives against floors: bare calls on the same Redis client. See docs/benchmarks.md.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		os.Exit(runWorker(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(runHarness(os.Args[1:], os.Stdout, os.Stderr))
}

func runHarness(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var o options
	fs.BoolVar(&o.quick, "quick", false, "one round of short windows: shows that the bench works, not how fast anything is")
	fs.IntVar(&o.rounds, "rounds", 5, "how often each cell is measured, fickle ones three times as often; the tables show medians")
	fs.DurationVar(&o.duration, "duration", time.Second, "how long a cell is measured")
	libs := fs.String("libs", "", "libraries, separated by commas; by default all that need no other server than Redis")
	names := fs.String("workloads", "", "workloads, separated by commas; by default all but "+strings.Join(onlyIfNamed(), ", "))
	fs.BoolVar(&o.curves, "curves", true, "also measure the curves: fewer and more waiters, names, holds, and longer ways")
	fs.StringVar(&o.out, "out", "", "folder for raw results, tables and plots")
	fs.StringVar(&o.jar, "jar", "", "the Java worker; without it Redisson is left out")
	fs.StringVar(&o.cpuProfile, "cpuprofile", "", "folder for CPU profiles of the windows, a file for each Go worker")
	fs.StringVar(&o.memProfile, "memprofile", "", "folder for allocation profiles of the Go workers")
	plotDir := fs.String("plot", "", "draw the plots and the table of the raw results in this folder again, and measure nothing")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	if *plotDir != "" {
		if err := redraw(*plotDir, stdout); err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return 1
		}
		return 0
	}
	o.libs, o.workloads, o.long = list(*libs), list(*names), 2*time.Second
	if o.quick {
		o.rounds, o.duration, o.long, o.curves = 1, 100*time.Millisecond, 200*time.Millisecond, false
	}
	ok, err := measureAndTell(o, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
	}
	if err != nil || !ok {
		return 1
	}
	return 0
}

// onlyIfNamed returns the names of the workloads that take long.
func onlyIfNamed() (names []string) {
	for _, w := range workloads(&options{}) {
		if w.asked {
			names = append(names, w.name)
		}
	}
	return names
}

// list splits at commas.
func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func measureAndTell(o options, stdout, stderr io.Writer) (ok bool, err error) {
	groups, err := plan(&o)
	if err != nil {
		return false, err
	}
	for _, dir := range []string{o.out, o.cpuProfile, o.memProfile} {
		if dir != "" {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return false, err
			}
		}
	}
	b, stop, err := newBench(o, stderr)
	if err != nil {
		return false, err
	}
	defer stop()
	r := &results{}
	if r.Machine, err = b.machine(); err != nil {
		return false, err
	}
	r.Machine.Quick = o.quick
	if letSleep, err := keepAwake(); err != nil {
		fmt.Fprintln(stderr, "bench: the cores may sleep between two commands:", err)
	} else {
		defer letSleep()
		r.Machine.Awake = true
	}
	b.runAll(groups)
	r.samples = b.samples
	if o.out != "" {
		if err := r.write(o.out); err != nil {
			return false, err
		}
		if err := r.draw(o.out); err != nil {
			return false, err
		}
	}
	fmt.Fprint(stdout, r.tables())
	return !b.failed(), nil
}
