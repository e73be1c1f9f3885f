package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// One of three processes leads. When it is killed, the next leads; when that is ended, the last one does, and leads again after it has lost
// the lock.
func TestLeader(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	processes := make(map[string]*program.Process)
	start := func(name string) { processes[name] = p.Start("-name", name, "-lease", "6s", "-every", "50ms") }
	// until returns the name of the process that prints this. Before it only the leader may work.
	until := func(does, leader string) string {
		t.Helper()
		for {
			line := p.Line()
			if name, did, _ := strings.Cut(line, ": "); strings.HasPrefix(did, does) {
				return name
			}
			require.Equal(t, leader+": works", line)
		}
	}

	start("a")
	require.Equal(t, "a: waits", p.Line())
	require.Equal(t, "a: leads", p.Line())
	start("b")
	require.Equal(t, "b", until("waits", "a"))
	start("c")
	require.Equal(t, "c", until("waits", "a"))

	processes["a"].Kill()
	second := until("leads", "a")
	require.Equal(t, second+": works", p.Line())

	processes[second].Terminate()
	require.Equal(t, second, until("leads no more: ", second))
	third := until("leads", "")
	require.NotEqual(t, second, third)
	require.Zero(t, processes[second].Wait())

	rdb := s.Client(t)
	require.NoError(t, rdb.Do(context.Background(), rdb.B().Del().Key("leader").Build()).Error())
	require.Equal(t, third, until(`leads no more: rlock: "leader": lost: `, third))
	require.Equal(t, third, until("leads", ""))

	processes[third].Terminate()
	require.Equal(t, third, until("leads no more: ", third))
	require.Zero(t, processes[third].Wait())
	require.Empty(t, p.Rest())
}

func TestLeaderWithoutRedis(t *testing.T) {
	t.Parallel()
	program.WithoutRedis(t)
}

// Somebody leads after a restart of Redis, and after kill -9 of the leader: the same process if Redis has kept its data.
func TestLeaderUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		a := f.Start("-name", "a", "-every", "50ms", "-lease", f.Lease())
		f.Await("a: leads")
		b := f.Start("-name", "b", "-every", "50ms", "-lease", f.Lease())
		f.Await("b: waits")
		f.Strike(a)
		switch {
		case f.Kills:
			require.Equal(t, "b: works", f.Find("^b: (works|leads no more)"))
		case f.Keeps:
			a.Terminate()
			require.Equal(t, "a: leads no more: terminated signal received", f.Await("a: leads no more"))
			f.Await("b: works")
			require.Zero(t, a.Wait())
		default:
			f.Await(`a: leads no more: rlock: "leader": lost: `)
			f.Find("^[ab]: works")
			a.Terminate()
			require.Zero(t, a.Wait())
		}
		b.Terminate()
		require.Zero(t, b.Wait())
	})
}
