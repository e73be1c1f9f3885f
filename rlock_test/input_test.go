package rlock_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestBadOptions(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		rdb := redistest.Dial(t, redistest.Shared(t))
		_, err := rlock.New(nil, rlock.Options{})
		require.EqualError(t, err, "rlock: rueidis client is nil")
		bad := make(map[string][]rlock.Options)
		for _, d := range []time.Duration{-time.Second, 1, time.Millisecond, rlock.MinWatchdogTimeout - 1} {
			bad["WatchdogTimeout"] = append(bad["WatchdogTimeout"], rlock.Options{WatchdogTimeout: d})
		}
		for _, prefix := range []string{"{", "}", "a{", "a}", "{}", "a{}b", "}a{", "}{a}", "x}{a}"} {
			bad["rlock: Options.Prefix is "] = append(bad["rlock: Options.Prefix is "], rlock.Options{Prefix: prefix})
		}
		for _, h := range []rlock.HandOff{{For: -1}, {For: math.MinInt64, Most: -1}, {For: -time.Nanosecond, Most: 1}} {
			bad["Options.HandOff.For is "+h.For.String()] = []rlock.Options{{HandOff: h}}
		}
		for _, label := range []string{strings.Repeat("x", 101), "two\nlines", "tab\t", "\x00", "\xff", "\u200b", "\u2028"} {
			const want = ", want at most 100 bytes of printable UTF-8, on one line"
			bad[want] = append(bad[want], rlock.Options{Label: label})
		}
		for want, d := range map[string]rlock.Deadlock{
			"Options.Deadlock.After is -1s": {After: -time.Second}, "Options.Deadlock.After is 1µs": {After: time.Microsecond},
			"Options.Deadlock.Action is 7": {After: time.Second, Action: 7}, "has an Action and no After: set": {Action: rlock.DeadlockFail},
		} {
			bad[want] = []rlock.Options{{Deadlock: d}}
		}
		for want, all := range bad {
			for _, o := range all {
				_, err = rlock.New(rdb, o)
				require.ErrorContains(t, err, "rlock: Options.")
				require.ErrorContains(t, err, want, "%+v", o)
				require.NotContains(t, err.Error(), "\n")
			}
		}
		for _, prefix := range []string{"", "shop:", "{shop}:", "a:{b}{", "a:{b}}:", "\xff\x00"} {
			newClient(t, rdb, rlock.Options{Prefix: prefix})
		}
		for _, label := range []string{strings.Repeat("x", 100), "Büro 7, 東京 (pid 1)"} {
			newClient(t, rdb, rlock.Options{Label: label})
		}
	})
}

// All keys and channels in Redis have the prefix; names and errors do not. A name that already includes the prefix is the same lock.
func TestPrefix(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		prefix := b.name + ":"
		c := newClient(t, b.rdb, rlock.Options{Prefix: prefix})
		m, same := c.FencedMutex("x"), b.FencedMutex(prefix+"x")
		require.Equal(t, "x", m.Name())
		requireKeys := func(want ...string) {
			t.Helper()
			keys := answer(b.do(t, "KEYS", "*"+b.name+"*").AsStrSlice()).ok(t)
			require.ElementsMatch(t, append(want, "redisson_lock_token:{"+prefix+"x}"), keys)
		}
		a := locked(t, m)
		requireKeys(prefix + "x")
		require.Equal(t, map[string]int64{rlock.Owner(a.ctx): 1}, b.fields(t, prefix+"x"))
		token, ok := rlock.FencingToken(a.ctx, "x")
		require.True(t, ok)
		require.EqualValues(t, 1, token)
		_, ok = rlock.FencingToken(a.ctx, prefix+"x")
		require.False(t, ok)
		answer(m.IsHeld(a.ctx)).is(t, true)
		ttl := answer(m.TTL(a.ctx)).ok(t)
		require.Positive(t, ttl)

		require.ErrorContains(t, refusalOf(t, m, 0), `rlock: "x": not acquired`)
		waiter := lockAsync(t, same)
		b.awaitSubscribers(t, prefix+"x", 1)
		require.NoError(t, a.unlock())
		require.ErrorContains(t, context.Cause(a.ctx), `rlock: "x": unlocked`)
		got := waiter.gets(t, soon)
		answer(m.ForceUnlock(context.Background())).is(t, true)
		require.ErrorIs(t, got.unlock(), rlock.ErrLost)

		a = locked(t, c.RWMutex("x").Upgradeable())
		requireKeys(prefix+"x", "rlock_upgrade:{"+prefix+"x}", "{"+prefix+"x}:"+rlock.Owner(a.ctx)+":rwlock_timeout:1")
		require.NoError(t, a.unlock())

		// One name under another prefix is another lock, also to the ctx that carries a hold of it.
		a = locked(t, m)
		other := newClient(t, b.rdb, rlock.Options{Prefix: prefix + "y"})
		require.NoError(t, other.Mutex("x").Do(a.ctx, nothing))
		b.do(t, "DEL", prefix+"x")
		require.ErrorContains(t, a.unlock(), `rlock: "x": lost`)
	})
}

func TestBadHandles(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		for _, tc := range []struct {
			m    *rlock.Mutex
			want string
		}{
			{b.Mutex(""), "the name is empty"},
			{b.FencedMutex(""), "the name is empty"},
			{b.Mutex(b.name, rlock.WithLease(0)), "WithLease is 0s, want at least 1ms"},
			{b.Mutex(b.name, rlock.WithLease(-time.Second)), "WithLease is -1s, want at least 1ms"},
			{b.Mutex(b.name, rlock.WithLease(time.Millisecond-1)), "want at least 1ms"},
			{b.Mutex(b.name, rlock.WithMaxHold(0)), "WithMaxHold is 0s, want at least 1ms"},
			{b.Mutex(b.name, rlock.WithMinHold(-1)), "WithMinHold is -1ns, want at least 1ms"},
			{b.Mutex(b.name, rlock.WithGrace(time.Millisecond-1)), "WithGrace is 999.999µs, want at least 1ms"},
			{b.Mutex(b.name, rlock.WithWatchdog(0)), "WithWatchdog is 0s, want at least 100ms"},
			{b.Mutex(b.name, rlock.WithWatchdog(rlock.MinWatchdogTimeout-1)), "WithWatchdog is 99.999999ms, want at least 100ms"},
			{b.Mutex(b.name, rlock.WithWatchdog(time.Second), rlock.WithLease(time.Second)), "use one of them"},
			{b.FairMutex(b.name, rlock.WithMinHold(time.Second)), "cannot stay taken after its unlock"},
		} {
			got, noop, err := tc.m.Lock(ctx)
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, ctx, got)
			require.ErrorIs(t, noop(), rlock.ErrNotHeld)
			_, _, err = tc.m.TryLock(ctx, 0)
			require.ErrorContains(t, err, tc.want)
			_, err = tc.m.IsLocked(ctx)
			require.ErrorContains(t, err, tc.want)
			_, err = tc.m.IsHeld(ctx)
			require.ErrorContains(t, err, tc.want)
			_, err = tc.m.TTL(ctx)
			require.ErrorContains(t, err, tc.want)
			_, err = tc.m.ForceUnlock(ctx)
			require.ErrorContains(t, err, tc.want)
		}
	})
}

// Names are bytes: waiters for any of them hear of an unlock. FuzzNames looks at keys and channels.
func TestNames(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		for _, name := range []string{
			"a{b}c", "{}", "a{}b", "{", "}", "}{", "a:b", "with space", "new\nline", "\r\n", "\x00", "\xff\xfe",
			"größe", "锁", "*", "a?[b]", strings.Repeat("x", 64<<10),
		} {
			a := locked(t, b.Mutex(b.name+name))
			waiter := lockAsync(t, other.Mutex(b.name+name))
			b.awaitWaiters(t, 1)
			require.NoError(t, a.unlock())
			waiter.getAndUnlock(t, 2*time.Second)
			require.False(t, b.exists(t, b.name+name))
		}
	})
}

func TestLongNamesDoNotFillTheLog(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		_, _, err := b.Mutex(strings.Repeat("n", 64<<10), rlock.WithLease(-1)).Lock(context.Background())
		require.Less(t, len(err.Error()), 300)
	})
}

func TestWrongType(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		b.do(t, "SET", b.name, "precious")
		m := b.Mutex(b.name)
		_, _, err := m.Lock(ctx)
		require.ErrorContains(t, err, "WRONGTYPE")
		_, _, err = m.TryLock(ctx, 0)
		require.ErrorContains(t, err, "WRONGTYPE")
		_, err = m.ForceUnlock(ctx)
		require.ErrorContains(t, err, "WRONGTYPE")
		var said *rueidis.RedisError
		require.ErrorAs(t, err, &said, "the server's error can be found")
		const foreign = `: not a lock: the key holds another type than a hash (WRONGTYPE); give the lock a name that no other data uses`
		_, err = m.Ask(ctx)
		require.EqualError(t, err, `rlock: "`+b.name+`"`+foreign)
		require.ErrorAs(t, err, &said)
		answer(b.do(t, "GET", b.name).ToString()).is(t, "precious")
		b.do(t, "DEL", b.name)

		// The key becomes one of another type while it is held.
		a := locked(t, m)
		b.do(t, "SET", b.name, "precious")
		_, err = m.HoldCount(a.ctx)
		require.EqualError(t, err, `rlock: "`+b.name+`"`+foreign)
		require.ErrorContains(t, a.unlock(), "WRONGTYPE")
		require.True(t, b.exists(t, b.name))
		b.do(t, "DEL", b.name)
	})
}

// TestForbiddenCalls in package lua takes away the right to the scripts and keys.
func TestForbiddenByACL(t *testing.T) {
	s := redistest.Start(t)
	admin := fixture{rdb: s.Client(t)}
	user := func(t *testing.T, rules ...string) *rlock.Client {
		t.Helper()
		cmd := append([]string{"ACL", "SETUSER", "app", "reset", "resetchannels", "on", ">secret"}, rules...)
		require.NoError(t, admin.do(t, cmd...).Error())
		return newClient(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" }))
	}
	t.Run("subscribe", func(t *testing.T) {
		a := locked(t, user(t, "~*", "&*", "+@all").Mutex("acl"))
		waiter := user(t, "~*", "&other", "+@all")
		_, _, err := waiter.Mutex("acl").Lock(t.Context())
		require.ErrorContains(t, err, "NOPERM")
		require.ErrorContains(t, err, "redisson_lock__channel:{acl}")
		_, _, err = waiter.Mutex("acl").TryLock(t.Context(), 5*time.Second)
		require.ErrorContains(t, err, "NOPERM")
		user(t, "~*", "&*", "+@all")
		require.NoError(t, a.unlock())
	})
	t.Run("the queue, and no marks", func(t *testing.T) { // one that may not be used says nothing of the other
		c := user(t, "~acl*", "~{acl*", "~rlock_queue:*", "&*", "+@all")
		rw := c.RWMutex("aclrw")
		a := locked(t, rw.Write())
		second := lockAsync(t, rw.Write())
		admin.awaitWaiters(t, 1) // without a mark
		require.NoError(t, a.unlock())
		second.getAndUnlock(t, soon)

		a = locked(t, newClient(t, s.Client(t)).Mutex("acl"))
		next := lockAsync(t, c.Mutex("acl"))
		admin.awaitPlace(t, "acl")
		require.NoError(t, a.unlock())
		next.getAndUnlock(t, soon)
	})
	t.Run("publish", func(t *testing.T) {
		err := locked(t, user(t, "~*", "&other", "+@all").Mutex("acl")).unlock()
		require.ErrorContains(t, err, "release script")
		require.ErrorContains(t, err, "channel")
		require.False(t, admin.exists(t, "acl"), "released, though nobody was told")
	})
}
