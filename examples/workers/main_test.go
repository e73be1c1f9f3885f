package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func semaphore(t *testing.T, s *redistest.Server) *rlock.PermitSemaphore {
	t.Helper()
	client, err := rlock.New(s.Client(t), rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client.PermitSemaphore("renders")
}

// Three processes with four workers each finish all jobs, never more than three at once or two in one slot, and release all permits.
func TestWorkers(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	var processes []*program.Process
	for _, name := range []string{"a", "b", "c"} {
		processes = append(processes, p.Start("-name", name, "-jobs", "10", "-job", "20ms"))
	}
	for _, process := range processes {
		require.Zero(t, process.Wait())
	}
	running, most, ran, sets := 0, 0, 0, 0
	through, slots := make(map[string]bool), make(map[string]bool)
	for _, line := range p.Rest() {
		name, says, _ := strings.Cut(line, ": ")
		_, slot, _ := strings.Cut(says, " in slot ")
		switch does, _, _ := strings.Cut(says, " "); does {
		case "begins":
			running++
			most = max(most, running)
			require.False(t, slots[slot], "another one is in slot %s", slot)
			slots[slot] = true
		case "ends":
			running--
			slots[slot] = false
			ran++
		case "lets":
			sets++
		default:
			require.Equal(t, "is through", says)
			through[name] = true
		}
	}
	require.Equal(t, 30, ran)
	require.Equal(t, 3, most, "how many ran at once")
	require.Len(t, slots, 3)
	require.Equal(t, 1, sets)
	require.Len(t, through, 3)
	free, err := semaphore(t, s).Available(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 3, free)
}

// A killed process's permit comes back when its lease expires. Until then the others use the rest.
func TestWorkersAfterACrash(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	a := p.Start("-name", "a", "-workers", "1", "-jobs", "1", "-limit", "2", "-job", "1h")
	p.Await("a: begins 0")
	a.Kill()
	require.Equal(t, -1, a.Wait())
	b := p.Start("-name", "b", "-jobs", "5", "-limit", "2", "-job", "1ms")
	require.Zero(t, b.Wait())
	p.Await("b: is through")

	renders := semaphore(t, s)
	free := func() int64 {
		n, err := renders.Available(context.Background())
		require.NoError(t, err)
		return n
	}
	redistest.Eventually(t, time.Minute, func() bool { return free() == 2 }, "a's permits are free again")
	require.Empty(t, p.Rest())
}

// A process that is asked to end releases its permits.
func TestWorkersTerminated(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	a := p.Start("-name", "a", "-limit", "2", "-job", "1h")
	p.Await("a: begins")
	p.Await("a: begins")
	a.Terminate()
	require.Zero(t, a.Wait())
	free, err := semaphore(t, s).Available(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 2, free)
}

func TestWorkersWithoutRedis(t *testing.T) {
	t.Parallel()
	program.WithoutRedis(t)
}

// All jobs are done after a restart of Redis, also without its data, and those of the others after kill -9.
func TestWorkersUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		args := []string{"-jobs", "8", "-workers", "2", "-limit", "2", "-job", "300ms"}
		b := f.Start(append(args, "-name", "b")...)
		f.Await("b: begins")
		a := f.Start(append(args, "-name", "a")...)
		f.Await("a: begins")
		f.Strike(a)
		codes := []int{a.Wait(), b.Wait()}
		said := f.Rest()
		if f.Kills {
			require.Equal(t, []int{-1, 0}, codes, said)
		} else {
			require.Equal(t, []int{0, 0}, codes, said)
		}
		require.Contains(t, said, "b: is through")
	})
}
