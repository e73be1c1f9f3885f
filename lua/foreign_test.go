package lua_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

const uuid = "11111111-2222-3333-4444-555555555555"

func hash(fields ...string) state {
	return func(l lab) {
		l.t.Helper()
		for _, f := range fields {
			l.hold(f, "1", lease)
		}
	}
}

func wide(n int) []string {
	fields := make([]string, n)
	for i := range fields {
		fields[i] = fmt.Sprintf("field %d", i)
	}
	return fields
}

// A hash with other data is not a lock: no caller waits for it, and no script deletes it. A single field with a count would be a lock of
// another library if the key had an expiry.
func TestForeignHash(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for name, row := range map[string]struct {
		fields []string
		says   string
	}{
		"business":               {[]string{"customer"}, `the key holds a hash with the field "customer"`},
		"no name":                {[]string{""}, `the field ""`},
		"two fields":             {[]string{"mode", "theme"}, `the field "theme"`},
		"mode alone":             {[]string{"mode"}, `the field "mode"`},
		"beside an owner":        {[]string{other, "customer"}, `the field "customer"`},
		"of any size":            {wide(1000), `the field "field `},
		"long":                   {[]string{strings.Repeat("x", 10_000)}, `the field "` + strings.Repeat("x", 64) + `"`},
		"several lines":          {[]string{"a\r\nb\x00c"}, `the field "a??b?c"`},
		"no UUID":                {[]string{"a:1"}, `the field "a:1"`},
		"a short UUID":           {[]string{uuid[1:] + ":1"}, `the field "`},
		"a long UUID":            {[]string{"1" + uuid + ":1"}, `the field "`},
		"no hex":                 {[]string{"x" + uuid[1:] + ":1"}, `the field "`},
		"no number":              {[]string{uuid + ":"}, `the field "`},
		"half a number":          {[]string{uuid + ":1x"}, `the field "`},
		"UUID alone":             {[]string{uuid}, `the field "`},
		"another suffix":         {[]string{uuid + ":1:read"}, `the field "`},
		"something behind write": {[]string{uuid + ":1:write:1"}, `the field "`},
		"a value of a multilock": {[]string{"N8WvBTPBZYEBIuyWGbEkfw"}, `the field "N8WvBTPBZYEBIuyWGbEkfw"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			hash(row.fields...)(l)
			expires := lease
			if len(row.fields) == 1 && row.fields[0] != "" && row.fields[0] != "mode" {
				l.must("PERSIST", l.name)
				expires = noExpiry
			}
			before, ear := l.fields(), l.listen(false)
			p := lua.Publish{Name: l.channel}

			wants := l.wants(me)
			for _, wants.Fence = range []string{l.fence, ""} {
				got, err := lua.Acquire(t.Context(), rdb, wants)
				requireForeign(t, err, "acquire script: not a lock: ", row.says)
				require.Zero(t, got)
			}
			forced, err := lua.Force(t.Context(), rdb, l.name, p)
			requireForeign(t, err, "force script: not a lock: ", row.says)
			require.False(t, forced)

			require.Equal(t, notHeld, l.releases(l.frees(me)))
			require.Equal(t, notHeld, l.releases(l.handOff(true)))
			wants.Count = 2
			require.Equal(t, lua.AcquireReply{Status: lua.Lost}, l.acquire(wants))
			require.Equal(t, []lua.Renewal{lua.Gone}, l.renews(long, me))
			wants.Count = 1
			for _, wants.Side = range []lua.Side{lua.Reader, lua.Writer} {
				for _, mode := range []string{"", "read", "write"} {
					if mode != "" && slices.Contains(row.fields, "mode") {
						l.must("HSET", l.name, "mode", mode)
						before["mode"] = mode
					}
					_, err = lua.Acquire(t.Context(), rdb, wants)
					requireForeign(t, err, "acquire script: not a lock: ", row.says)
					_, err = lua.ForceSide(t.Context(), rdb, l.name, wants.Side, p)
					requireForeign(t, err, "force script: not a lock: ", row.says)
				}
			}

			require.Equal(t, before, l.fields())
			l.requireTTL(expires)
			require.Zero(t, l.number("EXISTS", l.fence))
			require.Empty(t, ear.said())
		})
	}
}

// Values that are no count show other data, whatever the expiry.
func TestForeignValue(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, value := range []string{"", "0", "-1", "01", "1.5", "1e3", "x", " 1", "1764244800", "12345678901234567890"} {
		l := newLab(t, rdb)
		l.hold("visits", value, lease)
		before := l.fields()
		wants := l.wants(me)
		for _, wants.Side = range []lua.Side{lua.Whole, lua.Reader, lua.Writer} {
			_, err := lua.Acquire(t.Context(), rdb, wants)
			requireForeign(t, err, `the field "visits"`)
		}
		_, err := lua.Force(t.Context(), rdb, l.name, lua.Publish{Name: l.channel})
		requireForeign(t, err, `the field "visits"`)
		_, err = lua.Look(t.Context(), rdb, lua.InfoArgs{Name: l.name, Publish: lua.Publish{Name: l.channel}})
		requireForeign(t, err, `the field "visits"`)
		require.Equal(t, before, l.fields())
		l.requireTTL(lease)
	}
}

// Other libraries write other owners into Redisson's plain lock, and Redisson waits for them.
func TestOwnersOfOtherLibraries(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for what, owner := range map[string]string{
		"node-redisson":            "ddcb083c-ff83-4c63-bed5-22fec267a194:a44594da-05bd-40a1-9ba6-5d8634fcd918",
		"node-redisson, as fair":   "ddcb083c-ff83-4c63-bed5-22fec267a194:05744594-05bd-40a1-9ba6-5d8634fcd918",
		"redi.go":                  "0106aa02509318a5e723fa3e04efb3c7:1",
		"crate redisson":           "64b9b232-fdb6-456d-8cc4-5672a16f7c9c",
		"a word, with line breaks": "a\r\nb",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, count := range []string{"1", "3"} {
				l := newLab(t, rdb)
				l.hold(owner, count, lease)
				wants := l.wants(me)
				for _, wants.Side = range []lua.Side{lua.Whole, lua.Reader, lua.Writer} {
					got := l.acquire(wants)
					require.Equal(t, lua.Held, got.Status)
					require.Equal(t, owner, got.Holder)
					require.True(t, l.remains(got.TTL, lease), "%v", got.TTL)
				}
				info, err := lua.Look(t.Context(), rdb, lua.InfoArgs{Name: l.name, Publish: lua.Publish{Name: l.channel}})
				require.NoError(t, err)
				require.Equal(t, map[string]string{owner: count}, info.Fields)
				ear := l.listen(false)
				require.True(t, l.forces())
				require.Equal(t, []string{"0"}, ear.said())
			}
		})
	}
}

// requireForeign also requires the common properties of errors by which a server reports that it did nothing.
func requireForeign(t *testing.T, err error, says ...string) {
	t.Helper()
	require.ErrorIs(t, err, lua.ErrForeign)
	requireSaid(t, err, says...)
	require.NotContains(t, err.Error(), "\n")
	require.Less(t, len(err.Error()), 300)
}

func TestAnotherType(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for name, set := range map[string][]string{
		"string": {"SET", "x"}, "list": {"RPUSH", "x"}, "set": {"SADD", "x"}, "zset": {"ZADD", "1", "x"}, "stream": {"XADD", "*", "a", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			l.must(slices.Insert(slices.Clone(set), 1, l.name)...)
			errs := calls(t.Context(), rdb, l)
			require.NoError(t, errs["renew"])
			delete(errs, "renew")
			for call, err := range errs {
				requireForeign(t, err, scriptOf(call)+"not a lock: the key")
				if call == "acquire" || call == "hand-off" { // whose second key may be the foreign one
					require.ErrorContains(t, err, l.fence)
				} else {
					require.ErrorContains(t, err, "the key holds another type than a hash")
				}
			}
			kept, err := l.do("TYPE", l.name).ToString()
			require.NoError(t, err)
			require.Equal(t, name, kept)
		})
	}
}

// All kinds of Redisson locks with the same name exclude each other, and can be forced open.
func TestLocksOfAllKinds(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for name, fields := range map[string][]string{
		"plain":                   {other},
		"negative":                {uuid + ":-9223372036854775808"},
		"upper case":              {"ABCDEFAB-2222-3333-4444-555555555555:1"},
		"writer":                  {"mode", other + ":write"},
		"writer that reads":       {"mode", other + ":write", other},
		"reader":                  {"mode", other},
		"readers":                 {"mode", other, uuid + ":10", uuid + ":11", uuid + ":12"},
		"two, which no lock does": {other, uuid + ":9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			hash(fields...)(l)
			for range 10 { // the fields are picked at random
				got := l.acquire(l.wants(me))
				require.Equal(t, lua.Held, got.Status)
				require.True(t, l.remains(got.TTL, lease), "%v", got.TTL)
				require.Contains(t, fields, got.Holder)
				require.NotEqual(t, "mode", got.Holder)
				if len(fields) == 2 || strings.HasSuffix(got.Holder, ":write") { // otherwise the mode need not be seen
					require.Equal(t, fields[0] == "mode", got.Other)
				}
				if fields[0] != "mode" {
					require.False(t, got.Other)
				}
			}
			require.True(t, l.forces())
			require.Empty(t, l.fields())
		})
	}
}

// Checking the fields adds no cost if the lock is free or held by the caller.
func TestCommandsInScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := newLab(t, rdb)
	acquire := lua.AcquireArgs{Name: l.name, Owner: me, Lease: lease, Count: 1}
	release := lua.ReleaseArgs{Name: l.name, Owner: me, Publish: lua.Publish{Name: l.channel}}
	run := func() map[string]int64 {
		before := redistest.Commands(t, rdb)
		_, err := lua.Acquire(t.Context(), rdb, acquire)
		require.NoError(t, err)
		_, err = lua.Release(t.Context(), rdb, release)
		require.NoError(t, err)
		during := make(map[string]int64)
		for name, n := range redistest.Commands(t, rdb) {
			if n > before[name] && name != "info" && name != "ping" && name != "hello" && !strings.HasPrefix(name, "client|") { // of an idle or one more connection
				during[name] = n - before[name]
			}
		}
		return during
	}
	run() // the server knows the scripts from here on
	require.Equal(t, map[string]int64{"evalsha": 2, "pttl": 1, "hincrby": 1, "pexpire": 1, "hdel": 1, "publish": 1}, run())
	l.hold(other, "1", lease)
	release.Owner = other
	require.Equal(t, map[string]int64{"evalsha": 2, "pttl": 1, "hrandfield": 1, "hdel": 1, "publish": 1}, run())

	// With an empty queue, a release also reads the queue.
	release.Owner, release.Queue = me, l.ends().Queue
	require.Equal(t, map[string]int64{"evalsha": 2, "pttl": 1, "hincrby": 1, "pexpire": 1, "zrange": 1, "hdel": 1, "publish": 1}, run())
	release.Next, release.Stay, release.Lease = other, true, lease
	require.Equal(t, map[string]int64{
		"evalsha": 2, "pttl": 1, "hincrby": 1, "zrange": 1, "hexists": 1, "hset": 1, "pexpire": 2, "hdel": 1,
	}, run())
	l.must("DEL", l.name)

	// A hand-over between processes: the first of the queue gets the lock, and who had it joins.
	l.hold(other, "1", brief)
	l.process(1)
	l.join(1)
	l.must("PEXPIRE", l.queue, "2500") // so that it does not depend on a millisecond
	acquire.Queue, acquire.GrantLease, acquire.Publish = l.queue, grantLease, lua.Publish{Name: l.channel}
	release.Owner, release.Next, release.Stay = other, "", false
	require.Equal(t, map[string]int64{
		"evalsha": 2, "pttl": 3, "hrandfield": 1, "zrange": 2, "zadd": 1, "pubsub|numsub": 2, "zcard": 1,
		"zrem": 1, "hset": 1, "pexpire": 2, "publish": 1, "hdel": 2,
	}, run())
	l.must("DEL", l.name, l.queue)

	// With a next owner in the process: a single release joins the queue and grants the lock. Both calls count listeners.
	l.hold(other, "1", brief)
	l.join(1)
	l.must("PEXPIRE", l.queue, strconv.FormatInt((grantLease+margin).Milliseconds()-1, 10)) // so that it does not depend on a millisecond
	release.Owner, release.Next, release.Stay = other, next, false
	require.Equal(t, map[string]int64{
		"evalsha": 2, "pttl": 3, "hrandfield": 1, "zrange": 3, "zadd": 2, "hexists": 1, "pubsub|numsub": 2, "zcard": 1,
		"zrem": 1, "hset": 1, "pexpire": 2, "publish": 1, "hdel": 2,
	}, run())
}
