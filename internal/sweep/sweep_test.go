package sweep

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

const soon = 5 * time.Second

type bed struct {
	rdb   rueidis.Client
	calls *calls.Calls
	all   *Sweepers
}

func newBed(t *testing.T) bed {
	rdb := redistest.Start(t).Client(t)
	c := calls.New(rdb, nil)
	return bed{rdb: rdb, calls: c, all: New(c, rdb)}
}

// add queues an owner's field for sweeping, on a lock named after the test.
func (b bed) add(t *testing.T, u Unresolved) {
	t.Helper()
	require.True(t, b.calls.Start())
	defer b.calls.Ended()
	b.all.Add([]*Orphan{{Unresolved: u, Args: lua.ReleaseArgs{Name: t.Name(), Owner: "a:1", Publish: lua.Publish{Name: "c"}},
		Gone: func() {}, Left: func(error) {}}})
}

func (b bed) appears(t *testing.T) {
	t.Helper()
	require.NoError(t, b.rdb.Do(t.Context(), b.rdb.B().Hset().Key(t.Name()).FieldValue().FieldValue("a:1", "1").Build()).Error())
}

func (b bed) isThere(t *testing.T) bool {
	t.Helper()
	n, err := b.rdb.Do(context.Background(), b.rdb.B().Exists().Key(t.Name()).Build()).AsInt64()
	require.NoError(t, err)
	return n == 1
}

func (b bed) sweeps() bool {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	return len(b.all.of) > 0
}

// An unanswered acquire may take effect until its time is over, so finding the trace of one does not end the sweep.
func TestLateAcquires(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	until := time.Now().Add(3 * time.Second)
	b.add(t, Unresolved{Late: true, Until: until})
	for range 2 {
		b.appears(t)
		redistest.Eventually(t, soon, func() bool { return !b.isThere(t) }, "it is removed")
	}
	require.True(t, b.sweeps())
	redistest.Eventually(t, soon, func() bool { return !b.sweeps() }, "until the time is over")
	require.False(t, time.Now().Before(until))
}

// The first answer settles an unknown outcome.
func TestOutcomeIsKnown(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.appears(t)
	b.add(t, Unresolved{OutcomeUnknown: true, Until: time.Now().Add(time.Minute)})
	redistest.Eventually(t, soon, func() bool { return !b.sweeps() }, "nothing is left to be found")
	require.False(t, b.isThere(t))
}

// A field that Redis refuses to release does not end the sweep of others.
func TestRefusedBesideLate(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	bad := t.Name() + ":bad"
	require.NoError(t, b.rdb.Do(t.Context(), b.rdb.B().Set().Key(bad).Value("not a lock").Build()).Error())
	until := time.Now().Add(3 * time.Second)
	require.True(t, b.calls.Start())
	b.all.Add([]*Orphan{{Unresolved: Unresolved{OutcomeUnknown: true, Until: until.Add(time.Minute)}, Left: func(error) {}, Gone: func() {},
		Args: lua.ReleaseArgs{Name: bad, Owner: "a:1", Publish: lua.Publish{Name: "c"}}}})
	b.calls.Ended()
	b.add(t, Unresolved{Late: true, Until: until})
	<-time.After(time.Until(until.Add(-300 * time.Millisecond)))
	b.appears(t)
	redistest.Eventually(t, soon, func() bool { return !b.isThere(t) }, "the last try comes after that time")
}

// Those that Redis refuses at once, however often they come, put off no other one that it has refused before.
func TestRefusalsBesideOneThatIsOver(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	spoiled := b.rdb.B().Set().Key(t.Name()).Value("not a lock").Build()
	require.NoError(t, b.rdb.Do(t.Context(), spoiled).Error())
	bad := t.Name() + ":bad"
	require.NoError(t, b.rdb.Do(t.Context(), b.rdb.B().Set().Key(bad).Value("not a lock").Build()).Error())
	b.add(t, Unresolved{OutcomeUnknown: true, Until: time.Now().Add(time.Minute)})
	more := func() {
		require.True(t, b.calls.Start())
		defer b.calls.Ended()
		b.all.Add([]*Orphan{{Unresolved: Unresolved{OutcomeUnknown: true, Until: time.Now().Add(time.Minute)}, Left: func(error) {},
			Gone: func() {}, Args: lua.ReleaseArgs{Name: bad, Owner: "a:1", Publish: lua.Publish{Name: "c"}}}})
	}
	redistest.Eventually(t, time.Minute, func() bool {
		more()
		b.all.mu.Lock()
		defer b.all.mu.Unlock()
		return time.Until(b.all.of[0].again) > time.Second
	}, "its pauses are long")
	require.NoError(t, b.rdb.Do(t.Context(), b.rdb.B().Del().Key(t.Name()).Build()).Error())
	b.appears(t)
	redistest.Eventually(t, soon, func() bool {
		more()
		return !b.isThere(t)
	}, "it is removed")
}

// Close retries each field once, and Wait waits for it.
func TestClose(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.appears(t)
	b.add(t, Unresolved{Late: true, Until: time.Now().Add(time.Minute)})
	redistest.Eventually(t, soon, func() bool { return !b.isThere(t) }, "it is removed")
	b.appears(t)
	b.calls.Close()
	b.calls.Wait()
	require.False(t, b.isThere(t))
	require.False(t, b.sweeps())
}
