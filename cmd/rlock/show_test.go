package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// newLocks returns a Client, as a separate process would have. It hands a lock of a real server over for longer than users' do: a busy machine
// takes their two seconds to start a command.
func newLocks(t *testing.T, rdb rueidis.Client, o ...rlock.Options) *rlock.Client {
	t.Helper()
	c, err := rlock.New(rdb, append(o, rlock.Options{})[0])
	require.NoError(t, err)
	t.Cleanup(c.Close)
	if !redistest.IsVirtual(t) && !redistest.RealWorld() {
		enginetest.Patient(c)
	}
	return c
}

// lock takes a lock until the end of the test, and returns its section's ctx and its unlock.
func lock(parent context.Context, t *testing.T, m *rlock.Mutex) (context.Context, rlock.UnlockFunc) {
	t.Helper()
	ctx, unlock, err := m.Lock(parent)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unlock() })
	return ctx, unlock
}

// waitFor begins to wait for a lock. It ends when done is closed, or with the test.
func waitFor(t *testing.T, c *rlock.Client, m *rlock.Mutex) (held <-chan context.Context) {
	t.Helper()
	got := make(chan context.Context, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with the lock, or with the test
		defer close(ended)
		if ctx, _, err := m.Lock(ctx); err == nil { // Close of the Client ends the section
			got <- ctx
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	redistest.Eventually(t, patience, func() bool { return c.Stats().Waiting == 1 }, "it waits")
	return got
}

// showJSON runs "rlock show -json".
func showJSON(t *testing.T, addr, name string) (v view, code int) {
	t.Helper()
	r := call(t, addr, "show", "-json", name)
	require.Empty(t, r.err)
	require.NoError(t, json.Unmarshal([]byte(r.out), &v))
	return v, r.code
}

func TestShow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	holds, waits := newLocks(t, s.Client(t)), newLocks(t, s.Client(t))

	v, code := showJSON(t, s.Addr(), "job")
	require.Equal(t, exitFree, code)
	require.Equal(t, view{state: state{Name: "job", Holders: []holder{}}}, v)
	require.Equal(t, result{1, "lock         job\nstate        free\nprocesses    0 listening\n", ""}, call(t, s.Addr(), "show", "job"))

	outer, unlockOuter := lock(t.Context(), t, holds.FencedMutex("job"))
	ctx, unlockInner := lock(outer, t, holds.FencedMutex("job"))
	got := waitFor(t, waits, waits.FencedMutex("job"))
	redistest.Eventually(t, patience, func() bool { v, _ = showJSON(t, s.Addr(), "job"); return len(v.Queue) == 1 && v.Holders[0].Depth == 2 },
		"it is in the queue, and the count has followed")
	require.True(t, v.Held)
	require.Equal(t, "fenced", v.Kind)
	require.Equal(t, []holder{{Owner: rlock.Owner(ctx), Depth: 2}}, v.Holders)
	token, _ := rlock.FencingToken(ctx, "job")
	require.Equal(t, token, v.Token)
	require.Equal(t, 1, v.Processes)
	require.Equal(t, waits.ID(), clientID(v.Queue[0]))
	require.InDelta(t, 30_000, v.TTL, 15_000)

	// A holder that has waited has a host.
	require.NoError(t, unlockInner())
	require.NoError(t, unlockOuter())
	owner := rlock.Owner(<-got)
	r := call(t, s.Addr(), "show", "job")
	require.Zero(t, r.code)
	require.Regexp(t, `(?m)^holder       `+owner+` \(127\.0\.0\.1:\d+, no label\) depth 1$`, r.out)
	require.Regexp(t, `(?m)^ttl          [1-9][0-9]?\.\ds$`, r.out)
}

func TestShowKinds(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c, other := newLocks(t, s.Client(t)), newLocks(t, s.Client(t))

		lock(t.Context(), t, c.FairMutex("fair"))
		waitFor(t, other, other.FairMutex("fair"))
		redistest.Eventually(t, patience, func() bool {
			v, _ := showJSON(t, s.Addr(), "fair")
			return v.Kind == "fair" && len(v.FairQueue) == 1 && clientID(v.FairQueue[0]) == other.ID()
		}, "the fair queue")
		// In Redisson's format, with two waiting threads of one process.
		rdb := s.Client(t)
		const java = "285475da-9152-4c83-822a-67ee2f116a79"
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Rpush().Key("redisson_lock_queue:{fair}").Element(java+":54", java+":55").Build()).Error())
		v, _ := showJSON(t, s.Addr(), "fair")
		require.Equal(t, 2, v.Processes)

		third := newLocks(t, s.Client(t))
		lock(t.Context(), t, c.RWMutex("rw").Read())
		lock(t.Context(), t, other.RWMutex("rw").Read())
		waitFor(t, third, third.RWMutex("rw").Write())
		redistest.Eventually(t, patience, func() bool {
			v, _ := showJSON(t, s.Addr(), "rw")
			return v.Kind == "read" && len(v.Holders) == 2 && len(v.Writers) == 1 && clientID(v.Writers[0]) == third.ID()
		}, "readers and a writer that waits")

		ctx, _ := lock(t.Context(), t, c.RWMutex("w").Write())
		reader, _ := lock(ctx, t, c.RWMutex("w").Read())
		v, _ = showJSON(t, s.Addr(), "w")
		require.Equal(t, "write", v.Kind)
		require.ElementsMatch(t, []holder{{Owner: rlock.Owner(ctx), Depth: 1, Write: true}, {Owner: rlock.Owner(reader), Depth: 1}}, v.Holders)

		_, unlock := lock(t.Context(), t, c.Mutex("kept", rlock.WithMinHold(time.Hour)))
		require.NoError(t, unlock())
		v, _ = showJSON(t, s.Addr(), "kept")
		require.Equal(t, []holder{{Owner: c.ID() + ":00", Depth: 1, Kept: true}}, v.Holders)
		require.Equal(t, "mutex", v.Kind)
		require.Contains(t, call(t, s.Addr(), "show", "kept").out, "kept by its WithMinHold")

		for name, m := range map[string]*rlock.Mutex{"mutex": c.Mutex("exported"), "fenced": c.FencedMutex("exported f"), "write": c.RWMutex("exported rw").Write()} {
			ctx, _ := lock(t.Context(), t, m)
			_, err := rlock.Export(ctx, rlock.WithTicketTime(time.Hour))
			require.NoError(t, err)
			v, _ = showJSON(t, s.Addr(), m.Name())
			require.Len(t, v.Holders, 1)
			require.True(t, v.Holders[0].Exported)
			require.Equal(t, name, v.Kind)
			require.Equal(t, name == "write", v.Holders[0].Write)
			require.Contains(t, call(t, s.Addr(), "show", m.Name()).out, "(exported, not adopted yet")
			require.Contains(t, call(t, s.Addr(), "ls", m.Name()).out, "exported, not adopted yet")
		}

		// Redisson's lockAsync(0) is a hold.
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Hset().Key("async").FieldValue().FieldValue(java+":0", "1").Build()).Error())
		v, _ = showJSON(t, s.Addr(), "async")
		require.Equal(t, []holder{{Owner: java + ":0", Depth: 1}}, v.Holders)
	})
}

// A key that is not a lock is refused, without reading all of it.
func TestShowOfSomethingElse(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := s.Client(t)
		foreign(t, c)
		before := redistest.Commands(t, c)["hgetall"]
		for _, key := range []string{"text", "hash", "settings", "badly"} {
			r := call(t, s.Addr(), "show", key)
			require.Equal(t, exitInternal, r.code)
			require.Equal(t, "rlock: "+s.Addr()+": \""+key+"\": the key does not hold a lock\n", r.err)
		}
		require.Equal(t, before+2, redistest.Commands(t, c)["hgetall"], "only those that may be locks")
	})
}

// foreign makes keys that are not locks; two of them look like locks.
func foreign(t *testing.T, c rueidis.Client) {
	t.Helper()
	for _, cmd := range [][]string{
		{"SET", "text", "x"},
		{"HSET", "hash", "a", "1", "b", "2"},
		{"HSET", "settings", "mode", "dark"},
		{"HSET", "badly", "00000000-0000-0000-0000-000000000000:1", "x"},
	} {
		require.NoError(t, c.Do(t.Context(), c.B().Arbitrary(cmd...).Build()).Error())
	}
}

// A user without the right to read queues still sees the holder.
func TestShowWithFewRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("ACL", "SETUSER", "few", "on", ">pw", "~job", "+hrandfield", "+hgetall", "+pttl").Build()).Error())
	locks := newLocks(t, c)
	ctx, _ := lock(t.Context(), t, locks.Mutex("job"))
	lock(t.Context(), t, locks.Mutex("secret"))
	v, code := showJSON(t, "redis://few:pw@"+s.Addr(), "job")
	require.Zero(t, code)
	require.Equal(t, rlock.Owner(ctx), v.Holders[0].Owner)
	require.Equal(t, -1, v.Processes)
	r := call(t, "redis://few:pw@"+s.Addr(), "show", "secret")
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "NOPERM")
}

// For a kept lock, only its process knows whether anybody is inside.
func TestShowIdle(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		locks := newLocks(t, s.Client(t))
		lock(t.Context(), t, locks.Mutex("job", rlock.WithLinger(time.Minute)))
		r := call(t, s.Addr(), "show", "job")
		require.Contains(t, r.out, "held or idle, mutex\n")
		require.Contains(t, call(t, s.Addr(), "ls").out, "(held or idle)")
		var v view
		require.NoError(t, json.Unmarshal([]byte(call(t, s.Addr(), "show", "-json", "job").out), &v))
		require.True(t, v.Holders[0].Idle)
	})
}

// show has a bounded number of lines, and says what it leaves out.
func TestShowOfManyHolders(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := s.Client(t)
		fields := c.B().Hset().Key("rw").FieldValue().FieldValue("mode", "read")
		for i := range 5000 {
			fields = fields.FieldValue(fmt.Sprintf("285475da-9152-4c83-822a-67ee2f116a79:%d", i), "1")
		}
		require.NoError(t, c.Do(t.Context(), fields.Build()).Error())
		r := call(t, s.Addr(), "show", "rw")
		require.Equal(t, mostLines+1, strings.Count(r.out, "\nholder "))
		require.Contains(t, r.out, "\nholder       and 4980 more\n")
		v, _ := showJSON(t, s.Addr(), "rw")
		require.Len(t, v.Holders, 5000)
	})
}

// show does not take the waiters that it was told of for all.
func TestShowOfManyWaiters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := s.Client(t)
		queue := c.B().Rpush().Key("redisson_lock_queue:{job}").Element()
		for i := range 1500 {
			queue = queue.Element(fmt.Sprintf("285475da-9152-4c83-822a-67ee2f116a79:%d", i))
		}
		require.NoError(t, c.Do(t.Context(), queue.Build()).Error())
		r := call(t, s.Addr(), "show", "job")
		require.Equal(t, mostLines+1, strings.Count(r.out, "\nfair queue "))
		require.Contains(t, r.out, "\nfair queue   and at least 980 more\n")
		v, _ := showJSON(t, s.Addr(), "job")
		require.Len(t, v.FairQueue, mostPlaces)
		require.NoError(t, c.Do(t.Context(), c.B().Ltrim().Key("redisson_lock_queue:{job}").Start(0).Stop(998).Build()).Error())
		require.Contains(t, call(t, s.Addr(), "show", "job").out, "\nfair queue   and 979 more\n")
	})
}

// show remarks on a lock that is likely to stay when its holder is gone.
func TestShowRemarksOnALongExpiry(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := s.Client(t)
		require.NoError(t, c.Do(t.Context(), c.B().Hset().Key("job").FieldValue().FieldValue("285475da-9152-4c83-822a-67ee2f116a79:54", "1").Build()).Error())
		require.Contains(t, call(t, s.Addr(), "show", "job").out, "\nttl          none (it does not expire: if its holder is gone, free it by rlock unlock -force)\n")
		require.NoError(t, c.Do(t.Context(), c.B().Pexpire().Key("job").Milliseconds((347*24+1)*3_600_000).Build()).Error())
		require.Contains(t, call(t, s.Addr(), "show", "job").out, "s (347 days: if its holder is gone, free it by rlock unlock -force)\n")
		require.NoError(t, c.Do(t.Context(), c.B().Pexpire().Key("job").Milliseconds(3_600_000).Build()).Error())
		require.Regexp(t, `\nttl          3[0-9]{3}\.[0-9]s\n`, call(t, s.Addr(), "show", "job").out)
	})
}
