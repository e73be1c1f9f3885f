package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// Three processes start the job at each tick. It runs once, although one of them sleeps until the others are done.
func TestCron(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	processes := make(map[string]*program.Process)
	for _, name := range []string{"a", "b", "c"} {
		processes[name] = p.Start("-name", name, "-every", "2s", "-ticks", "3")
	}
	ran := make(map[string]int)    // per tick
	passed := make(map[string]int) // per process
	read := func(line string) (name string) {
		t.Helper()
		name, says, _ := strings.Cut(line, ": ")
		switch at, what, _ := strings.Cut(says, " "); what {
		case "runs the job":
			ran[at]++
		case "skipped: another process runs it":
			passed[name]++
			ran[at] += 0
		default:
			require.Fail(t, "unexpected", line)
		}
		return name
	}

	sleeper := read(p.Line())
	processes[sleeper].Signal(syscall.SIGSTOP)
	before := passed[sleeper]
	for name, process := range processes {
		if name != sleeper {
			require.Zero(t, process.Wait())
		}
	}
	processes[sleeper].Signal(syscall.SIGCONT)
	require.Zero(t, processes[sleeper].Wait())
	for _, line := range p.Rest() {
		read(line)
	}
	for at, times := range ran {
		require.Equal(t, 1, times, "at %s", at)
	}
	require.GreaterOrEqual(t, len(ran), 3)
	require.Greater(t, passed[sleeper], before, "it was late")
}

func TestCronWithoutRedis(t *testing.T) {
	t.Parallel()
	program.WithoutRedis(t)
}

// The job runs once at each tick after a restart of Redis, and after kill -9 of the process that ran it.
func TestCronUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		processes := make(map[string]*program.Process)
		for _, name := range []string{"a", "b", "c"} {
			processes[name] = f.Start("-name", name, "-every", "2s", "-ticks", "4")
		}
		victim, says, _ := strings.Cut(f.Find(": [0-9:]+ runs the job$"), ": ")
		first, _, _ := strings.Cut(says, " ")
		f.Strike(processes[victim])
		for name, process := range processes {
			if !f.Kills || name != victim {
				require.Zero(t, process.Wait())
			}
		}
		ran := make(map[string]int) // by tick
		for _, line := range f.Rest() {
			_, says, _ := strings.Cut(line, ": ")
			switch at, what, _ := strings.Cut(says, " "); {
			case at == first: // which the fault may have hit
			case what == "runs the job":
				ran[at]++
			default:
				require.Equal(t, "skipped: another process runs it", what)
				ran[at] += 0
			}
		}
		require.GreaterOrEqual(t, len(ran), 3)
		for at, times := range ran {
			require.Equal(t, 1, times, "at %s", at)
		}
	})
}
