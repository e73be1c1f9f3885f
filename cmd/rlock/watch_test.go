package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c, other := newLocks(t, rdb), newLocks(t, s.Client(t))
	w := start(t, nil, "watch", "-redis", s.Addr(), "-every", "50ms", "job")
	w.saw("free")
	w.saw("waiting 0")

	ctx, unlock := lock(t.Context(), t, c.FencedMutex("job"))
	w.saw("acquired by " + rlock.Owner(ctx) + ", token 1")
	_, inner := lock(ctx, t, c.FencedMutex("job"))
	w.saw("re-entered by " + rlock.Owner(ctx) + ", depth 2")
	require.NoError(t, inner())
	w.saw("a level released by " + rlock.Owner(ctx) + ", depth 1")

	got := waitFor(t, other, other.FencedMutex("job"))
	w.saw("waiting 1")
	redistest.Eventually(t, patience, func() bool { v, _ := showJSON(t, s.Addr(), "job"); return len(v.Queue) == 1 }, "it is in the queue")
	owner := rlock.Owner(ctx)
	require.NoError(t, unlock())
	w.saw("released by " + owner + ", handed on")
	owner = rlock.Owner(<-got) // which a lost hold has no longer
	w.saw("acquired by " + owner)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key("job").Build()).Error())
	w.saw("no longer held by " + owner + ": deleted")

	const java = "285475da-9152-4c83-822a-67ee2f116a79:54"
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Eval().Script(
		`redis.call('hset', KEYS[1], ARGV[1], 1) return redis.call('pexpire', KEYS[1], 800)`).Numkeys(1).Key("job").Arg(java).Build()).Error())
	w.saw("acquired by " + java)
	w.saw("lost by " + java + ": its lease expired")

	w.signal(syscall.SIGINT)
	require.Zero(t, w.rest().code)
}

// An unlock message is noticed at once, long before the next look, and watch does not count as a waiter.
func TestWatchHearsUnlocks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := newLocks(t, rdb)
	for name, m := range map[string]*rlock.Mutex{"a*[b]\\": c.Mutex("a*[b]\\"), "rw": c.RWMutex("rw").Write()} {
		ctx, unlock := lock(t.Context(), t, m)
		owner := rlock.Owner(ctx)
		w := start(t, nil, "watch", "-json", "-redis", s.Addr(), "-every", "1h", name)
		var held change
		require.NoError(t, json.Unmarshal([]byte(w.saw("held")), &held))
		require.Equal(t, owner, held.Owner)
		var waiting change
		require.NoError(t, json.Unmarshal([]byte(w.saw(`"waiting"`)), &waiting))
		require.Zero(t, *waiting.Waiting)
		listens(t, rdb)
		require.NoError(t, unlock())
		w.saw(`"event":"released","owner":"` + owner)
		v, _ := showJSON(t, s.Addr(), name)
		require.Zero(t, v.Processes)
		w.signal(syscall.SIGTERM)
		require.Zero(t, w.rest().code)
		redistest.Eventually(t, patience, func() bool {
			n, err := rdb.Do(t.Context(), rdb.B().PubsubNumpat().Build()).AsInt64()
			return err == nil && n == 0
		}, "it listens no more")
	}
}

// A lock that rlock unlock -force frees is not released. Without the right to hear that, watch still hears unlocks.
func TestWatchTellsForcedUnlocks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := newLocks(t, rdb)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary("ACL", "SETUSER", "watcher", "on", ">pw", "~*", "+@all", "resetchannels").
		Args("&"+prefixed(lockChannel, "job"), "&"+prefixed(rwChannel, "job"), "&"+latchChannelOf("job"), "&"+prefixed(semaphoreChannel, "job")).
		Build()).Error())
	for user, said := range map[string]string{"": "forced open: no longer held by ", "watcher:pw@": "released by "} {
		ctx, unlock := lock(t.Context(), t, c.Mutex("job"))
		owner := rlock.Owner(ctx)
		w := start(t, nil, "watch", "-redis", "redis://"+user+s.Addr(), "-every", "1h", "job")
		w.saw("held by " + owner)
		patterns := int64(5)
		if user != "" {
			patterns = 4
		}
		hears(t, rdb, patterns)
		require.Zero(t, call(t, s.Addr(), "unlock", "-force", "-yes", "job").code)
		w.saw(said + owner)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		w.signal(syscall.SIGINT)
		require.Zero(t, w.rest().code)
		hears(t, rdb, 0)
	}
}

// listens waits until watch listens for locks, read/write locks, latches, semaphores and forced unlocks.
func listens(t *testing.T, rdb rueidis.Client) {
	t.Helper()
	redistest.Eventually(t, patience, func() bool {
		n, err := rdb.Do(t.Context(), rdb.B().PubsubNumpat().Build()).AsInt64()
		return err == nil && n == 5
	}, "it listens")
}

// However many messages a hot lock has, watch looks at most 20 times a second.
func TestWatchOfAHotLockIsCheap(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	proxy := redistest.StartProxy(t, s.Addr())
	const most = 20
	looks, over := 0, make(chan struct{})
	proxy.OnRequest(func(cmd []string) redistest.Action {
		if cmd[0] == "HRANDFIELD" {
			if looks++; looks == 1+1+most { // one before the messages, one at the first
				close(over)
			}
		}
		return redistest.Pass
	})
	w := start(t, nil, "watch", "-redis", proxy.Addr(), "-every", "1h", "hot")
	w.saw("waiting 0")
	listens(t, rdb)
	began := time.Now()
	for done := false; !done; {
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Publish().Channel("redisson_lock__channel:{hot}").Message("0").Build()).Error())
		select {
		case <-over:
			done = true
		default:
		}
	}
	require.GreaterOrEqual(t, time.Since(began), most*watchInterval)
	w.signal(syscall.SIGINT)
	require.Zero(t, w.rest().code)
}

// Before Redis has confirmed the subscription, a missing message says nothing.
func TestWatchBeforeItListens(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.StartProxy(t, s.Addr())
	proxy.OnRequest(func(cmd []string) redistest.Action {
		if cmd[0] == "PSUBSCRIBE" {
			return redistest.Hold
		}
		return redistest.Pass
	})
	ctx, unlock := lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
	w := start(t, nil, "watch", "-redis", proxy.Addr(), "-every", "50ms", "job")
	w.saw("held by")
	require.NoError(t, unlock())
	w.saw("released by " + rlock.Owner(ctx))
	w.signal(syscall.SIGINT)
	require.Zero(t, w.rest().code)
}

// A subscription that breaks is replaced, while the connection for commands stays.
func TestWatchListensAgain(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"", "?protocol=2"} {
		s := redistest.Start(t)
		rdb := s.Client(t)
		ctx, unlock := lock(t.Context(), t, newLocks(t, rdb).Mutex("job"))
		w := start(t, nil, "watch", "-redis", "redis://"+s.Addr()+protocol, "-every", "1h", "job")
		listens(t, rdb)
		require.NoError(t, rdb.Do(t.Context(), rdb.B().ClientKill().TypePubsub().Build()).Error())
		listens(t, rdb)
		require.NoError(t, unlock())
		w.saw("released by " + rlock.Owner(ctx))
		w.signal(syscall.SIGINT)
		require.Zero(t, w.rest().code)
	}
}

// A Redis outage is reported once, and the watch continues.
func TestWatchOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := start(t, nil, "watch", "-redis", s.Addr(), "-every", "50ms", "job")
	w.saw("waiting 0")
	s.Stop()
	w.saw(s.Addr())
	s.Restart()
	ctx, _ := lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
	w.saw("acquired by " + rlock.Owner(ctx))
	w.signal(syscall.SIGINT)
	require.Zero(t, w.rest().code)
}

func TestChanges(t *testing.T) {
	t.Parallel()
	held := func(ttl int64, processes int, owners ...string) *view {
		v := &view{state: state{Kind: "mutex", TTL: ttl}, Held: len(owners) > 0, Processes: processes}
		for _, o := range owners {
			v.Holders = append(v.Holders, holder{Owner: o, Depth: 1})
		}
		return v
	}
	readers := func(owners ...string) *view {
		v := held(30_000, 0, owners...)
		v.Kind = "read"
		return v
	}
	fair := held(30_000, 1, "a")
	fair.Kind = "fair"
	free := held(0, 0)
	for name, c := range map[string]struct {
		before, now       *view
		unlocked, listens bool
		want              string
	}{
		"nothing":                   {held(30_000, 0, "a"), held(29_500, 0, "a"), false, true, ""},
		"released":                  {held(30_000, 0, "a"), free, true, true, "released a"},
		"gone":                      {held(30_000, 0, "a"), free, false, true, "gone a"},
		"gone, where nobody tells":  {held(30_000, 0, "a"), free, false, false, "released a"},
		"ran out":                   {held(400, 0, "a"), free, false, true, "expired a"},
		"ran out, taken by another": {held(400, 0, "a"), held(30_000, 0, "b"), false, true, "expired a, acquired b"},
		"unlocked at the last":      {held(400, 0, "a"), free, true, true, "released a"},
		"no expiry":                 {held(-1, 0, "a"), free, false, true, "gone a"},
		"handed on":                 {held(30_000, 1, "a"), held(2_000, 0, "b"), false, true, "released a, acquired b, waiting 0"},
		"too short to be seen":      {free, free, true, true, "released "},
		"fair, and free":            {fair, free, false, true, "released a, waiting 0"},
		"a reader leaves":           {readers("a", "b"), readers("b"), false, true, "released a"},
		"a reader comes":            {readers("a"), readers("a", "b"), false, true, "acquired b"},
		"unknown who waits":         {held(1, -1, "a"), held(1, -1, "a"), false, true, ""},
	} {
		var got []string
		for _, c := range changes(c.before, c.now, 500*time.Millisecond, c.unlocked, c.listens) {
			text := c.Event + " " + c.Owner
			if c.Waiting != nil {
				text = c.Text
			}
			got = append(got, text)
		}
		require.Equal(t, c.want, strings.Join(got, ", "), name)
	}
}
