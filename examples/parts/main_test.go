package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// The batch goes on once its last part is imported, and not before.
func TestParts(t *testing.T) {
	t.Parallel()
	p := program.Build(t, redistest.Start(t).Addr())
	batch := p.Start("-name", "batch", "-parts", "3")
	require.Equal(t, "batch: waits for the parts", p.Line())
	for _, name := range []string{"a", "b", "c"} {
		require.Zero(t, p.Start("-name", name, "-part", "1ms").Wait())
		require.Equal(t, name+": has imported its part", p.Line())
	}
	require.Equal(t, "batch: has all parts", p.Line())
	require.Zero(t, batch.Wait())
	require.Empty(t, p.Rest())
}

// A part whose process was killed is missing until another process imports it. The batch may be killed, too: the count is in Redis.
func TestPartsAfterACrash(t *testing.T) {
	t.Parallel()
	p := program.Build(t, redistest.Start(t).Addr())
	batch := p.Start("-name", "batch", "-parts", "2")
	require.Equal(t, "batch: waits for the parts", p.Line())
	killed := p.Start("-name", "a", "-part", "1h")
	killed.Kill()
	require.Equal(t, -1, killed.Wait())
	require.Zero(t, p.Start("-name", "b", "-part", "1ms").Wait())
	require.Equal(t, "b: has imported its part", p.Line())
	batch.Kill()
	require.Equal(t, -1, batch.Wait())

	require.Equal(t, 1, p.Start("-name", "again", "-parts", "2", "-wait", "100ms").Wait())
	require.Equal(t, "again: finds the batch begun", p.Line())
	require.Equal(t, "again: waits for the parts", p.Line())
	require.Regexp(t, `^again: rlock: "parts:batch": not open after .*: 1 left to count down$`, p.Line())

	last := p.Start("-name", "last", "-parts", "2")
	p.Await("last: waits for the parts")
	require.Zero(t, p.Start("-name", "a", "-part", "1ms").Wait())
	p.Await("last: has all parts")
	require.Zero(t, last.Wait())
	require.Empty(t, p.Rest())
}

// The batch ends well only if all parts were imported: after a restart of Redis, unless that has lost the count, and after kill -9 of a part.
func TestPartsUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		batch := f.Start("-name", "batch", "-parts", "2", "-lease", "1m")
		f.Await("batch: waits for the parts")
		imports := func(name string) { require.Zero(t, f.Start("-name", name, "-part", "1ms").Wait()) }
		imports("a")
		b := f.Start("-name", "b", "-part", "1h")
		f.Strike(b)
		if f.Keeps {
			imports("c")
			require.Equal(t, "batch: has all parts", f.Find("^batch: "))
			require.Zero(t, batch.Wait())
			return
		}
		require.Equal(t, 1, batch.Wait())
		require.Contains(t, f.Find("^batch: "), "lost")

		again := f.Start("-name", "again", "-parts", "1") // of which no record says that it was imported
		require.Equal(t, "again: waits for the parts", f.Find("^again: "))
		imports("b")
		f.Await("again: has all parts")
		require.Zero(t, again.Wait())
	})
}

func TestPartsWithoutRedis(t *testing.T) {
	t.Parallel()
	program.WithoutRedis(t)
}
