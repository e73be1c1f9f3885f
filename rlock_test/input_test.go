package rlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestBadOptions(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		rdb := redistest.Dial(t, redistest.Shared(t))
		_, err := rlock.New(nil, rlock.Options{})
		require.EqualError(t, err, "rlock: rueidis client is nil")
		for _, d := range []time.Duration{-time.Second, 1, time.Millisecond, rlock.MinWatchdogTimeout - 1} {
			_, err = rlock.New(rdb, rlock.Options{WatchdogTimeout: d})
			require.ErrorContains(t, err, "WatchdogTimeout")
		}
		for _, prefix := range []string{"{", "}", "a{", "a}", "{}", "a{}b", "}a{", "}{a}", "x}{a}"} {
			_, err = rlock.New(rdb, rlock.Options{Prefix: prefix})
			require.ErrorContains(t, err, "rlock: Options.Prefix is ", prefix)
		}
		for _, prefix := range []string{"", "shop:", "{shop}:", "a:{b}{", "a:{b}}:", "\xff\x00"} {
			c, err := rlock.New(rdb, rlock.Options{Prefix: prefix})
			require.NoError(t, err, prefix)
			c.Close()
		}
	})
}

// All keys and channels in Redis have the prefix; names and errors do not. A name that already includes the prefix is the same lock.
func TestPrefix(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		prefix := b.name + ":"
		c := newClient(t, b.rdb, rlock.Options{Prefix: prefix})
		m, same := c.FencedMutex("x"), b.FencedMutex(prefix+"x")
		require.Equal(t, "x", m.Name())
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		keys, err := b.do(t, "KEYS", "*"+b.name+"*").AsStrSlice()
		require.NoError(t, err)
		require.ElementsMatch(t, []string{prefix + "x", "redisson_lock_token:{" + prefix + "x}"}, keys)
		require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t, prefix+"x"))
		token, ok := rlock.FencingToken(ctx, "x")
		require.True(t, ok)
		require.EqualValues(t, 1, token)
		_, ok = rlock.FencingToken(ctx, prefix+"x")
		require.False(t, ok)
		for query, got := range map[string]func() (bool, error){
			"IsLocked": func() (bool, error) { return m.IsLocked(ctx) },
			"IsHeld":   func() (bool, error) { return m.IsHeld(ctx) },
			"TTL":      func() (bool, error) { d, err := m.TTL(ctx); return d > 0, err },
		} {
			is, err := got()
			require.NoError(t, err, query)
			require.True(t, is, query)
		}

		_, _, err = m.TryLock(context.Background(), 0)
		require.ErrorContains(t, err, `rlock: "x": not acquired`)
		waiter := lockAsync(t, same)
		b.awaitSubscribers(t, prefix+"x", 1)
		require.NoError(t, unlock())
		require.Contains(t, context.Cause(ctx).Error(), `rlock: "x": unlocked`)
		got := waiter.get(t, soon)
		require.NoError(t, got.err)
		ok, err = m.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, ok)
		require.ErrorIs(t, got.unlock(), rlock.ErrLost)

		rw := c.RWMutex("x")
		require.NoError(t, rw.Upgradeable().Do(context.Background(), func(ctx context.Context) error {
			keys, err := b.do(t, "KEYS", "*"+b.name+"*").AsStrSlice()
			require.NoError(t, err)
			require.ElementsMatch(t, []string{
				prefix + "x", "rlock_upgrade:{" + prefix + "x}", "redisson_lock_token:{" + prefix + "x}",
				"{" + prefix + "x}:" + rlock.Owner(ctx) + ":rwlock_timeout:1",
			}, keys)
			return nil
		}))

		// One name under another prefix is another lock, also to the ctx that carries a hold of it.
		ctx, unlock, err = m.Lock(context.Background())
		require.NoError(t, err)
		other := newClient(t, b.rdb, rlock.Options{Prefix: prefix + "y"})
		require.NoError(t, other.Mutex("x").Do(ctx, func(context.Context) error { return nil }))
		b.do(t, "DEL", prefix+"x")
		require.ErrorContains(t, unlock(), `rlock: "x": lost`)
		b.do(t, "DEL", "redisson_lock_token:{"+prefix+"x}")
	})
}

func TestBadHandles(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
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

// Names are bytes; Redisson's rules for keys and channels hold for all of them.
func TestNames(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		for _, name := range []string{
			"a{b}c", "{}", "a{}b", "{", "}", "}{", "a:b", "with space", "new\nline", "\r\n", "\x00", "\xff\xfe",
			"größe", "锁", "*", "a?[b]", strings.Repeat("x", 64<<10),
		} {
			name = b.name + name
			m := b.FencedMutex(name)
			channel, token := "redisson_lock__channel:{"+name+"}", "redisson_lock_token:{"+name+"}"
			if strings.Contains(name, "{") {
				channel, token = "redisson_lock__channel:"+name, "redisson_lock_token:"+name
			}
			ctx, unlock, err := m.Lock(context.Background())
			require.NoError(t, err)
			require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t, name))
			require.True(t, b.exists(t, token))
			waiter := lockAsync(t, m)
			redistest.Eventually(t, 5*time.Second, func() bool {
				n, err := b.do(t, "PUBSUB", "CHANNELS").AsStrSlice()
				return err == nil && slices.Contains(n, channel)
			}, "subscribed")
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, 2*time.Second)
			require.False(t, b.exists(t, name))
			b.do(t, "DEL", token)
		}
	})
}

func TestLongNamesDoNotFillTheLog(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		_, _, err := b.Mutex(strings.Repeat("n", 64<<10), rlock.WithLease(-1)).Lock(context.Background())
		require.Less(t, len(err.Error()), 300)
	})
}

func TestWrongType(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
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

		value, err := b.do(t, "GET", b.name).ToString()
		require.NoError(t, err)
		require.Equal(t, "precious", value)
		b.do(t, "DEL", b.name)

		// The key becomes one of another type while it is held.
		held, unlock, err := m.Lock(ctx)
		require.NoError(t, err)
		b.do(t, "SET", b.name, "precious")
		_, err = m.HoldCount(held)
		require.ErrorContains(t, err, "WRONGTYPE")
		require.ErrorContains(t, unlock(), "WRONGTYPE")
		require.True(t, b.exists(t, b.name))
		b.do(t, "DEL", b.name)
	})
}

func TestForbiddenByACL(t *testing.T) {
	s := redistest.Start(t)
	admin := fixture{rdb: s.Client(t)}
	user := func(t *testing.T, rules ...string) *rlock.Client {
		t.Helper()
		cmd := append([]string{"ACL", "SETUSER", "app", "reset", "resetchannels", "on", ">secret"}, rules...)
		require.NoError(t, admin.do(t, cmd...).Error())
		return newClient(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" }))
	}
	ctx := context.Background()

	t.Run("script", func(t *testing.T) {
		_, _, err := user(t, "~*", "&*", "+@all", "-evalsha", "-eval").Mutex("acl").Lock(ctx)
		require.ErrorContains(t, err, "NOPERM")
		require.ErrorContains(t, err, "acquire script")
		require.ErrorContains(t, err, "evalsha")
		require.False(t, admin.exists(t, "acl"))
	})
	t.Run("key", func(t *testing.T) {
		_, _, err := user(t, "~other:*", "&*", "+@all").Mutex("acl").Lock(ctx)
		require.ErrorContains(t, err, "NOPERM")
		require.False(t, admin.exists(t, "acl"))
	})
	t.Run("only this key", func(t *testing.T) { // the channel is no key
		c := user(t, "~acl", "&redisson_lock__channel:*", "+@all")
		require.NoError(t, c.Mutex("acl").Do(ctx, func(context.Context) error { return nil }))
	})
	t.Run("subscribe", func(t *testing.T) {
		_, unlock, err := user(t, "~*", "&*", "+@all").Mutex("acl").Lock(ctx)
		require.NoError(t, err)
		waiter := user(t, "~*", "&other", "+@all")
		_, _, err = waiter.Mutex("acl").Lock(ctx)
		require.ErrorContains(t, err, "NOPERM")
		require.ErrorContains(t, err, "redisson_lock__channel:{acl}")
		_, _, err = waiter.Mutex("acl").TryLock(ctx, 5*time.Second)
		require.ErrorContains(t, err, "NOPERM")
		user(t, "~*", "&*", "+@all")
		require.NoError(t, unlock())
	})
	t.Run("the queue, and no marks", func(t *testing.T) { // one that may not be used says nothing of the other
		c := user(t, "~acl*", "~{acl*", "~rlock_queue:*", "&*", "+@all")
		rw := c.RWMutex("aclrw")
		_, unlock, err := rw.Write().Lock(ctx)
		require.NoError(t, err)
		second := lockAsync(t, rw.Write())
		redistest.Eventually(t, soon, func() bool { return waiting(t) == 1 }, "it waits, without a mark")
		require.NoError(t, unlock())
		got := second.get(t, soon)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())

		m := c.Mutex("acl")
		_, unlock, err = newClient(t, s.Client(t)).Mutex("acl").Lock(ctx)
		require.NoError(t, err)
		next := lockAsync(t, m)
		redistest.Eventually(t, soon, func() bool { return admin.exists(t, "rlock_queue:{acl}") }, "it is in the queue")
		require.NoError(t, unlock())
		got = next.get(t, soon)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	})
	t.Run("publish", func(t *testing.T) {
		_, unlock, err := user(t, "~*", "&other", "+@all").Mutex("acl").Lock(ctx)
		require.NoError(t, err)
		err = unlock()
		require.ErrorContains(t, err, "release script")
		require.ErrorContains(t, err, "channel")
		require.False(t, admin.exists(t, "acl"), "released, though nobody was told")
	})
}
