package lua_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// next is the owner that receives the hand-off.
const next = "11111111-2222-3333-4444-555555555555:9"

func (l lab) handOff(fenced bool) lua.ReleaseArgs {
	a := lua.ReleaseArgs{Name: l.name, Owner: me, Next: next, Stay: true, Lease: lease, Publish: lua.Publish{Name: l.channel}}
	if fenced {
		a.Fence = l.fence
	}
	return a
}

// handBack undoes a hand-off.
func (l lab) handBack() lua.ReleaseArgs {
	a := l.handOff(false)
	a.Owner, a.Next = a.Next, a.Owner
	return a
}

func nexts(count string) map[string]string { return map[string]string{next: count} }

func TestHandOffFromEveryState(t *testing.T) {
	t.Parallel()
	effects(t, "release", true, []effect{
		{name: "absent", at: absent, want: notHeld, ttl: noKey},
		{name: "expired, mine", at: expired(me), want: notHeld, ttl: noKey},
		{name: "expired, the next one's", at: expired(next), want: notHeld, ttl: noKey},

		{name: "mine, the expiry rises", at: holding(me, "1", short), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, the expiry falls", at: holding(me, "1", long), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine without expiry", at: holding(me, "1", 0), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, an unlock was not counted", at: holding(me, "2", short), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, garbage", at: holding(me, "x", short), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, and the next one is there", at: both("5"), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, and the next one is garbage", at: both("x"), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},

		{name: "the next one's", at: holding(next, "1", short), want: notHeld, fields: nexts("1"), ttl: short},
		{name: "the next one's, deeper", at: holding(next, "2", long), want: notHeld, fields: nexts("2"), ttl: long},
		{name: "another's", at: holding(other, "1", long), want: notHeld, fields: others("1"), ttl: long},
		{name: "another's without expiry", at: holding(other, "2", 0), want: notHeld, fields: others("2"), ttl: noExpiry},
		{name: "wrong type", at: text, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
	}, func(l lab, _ effect, fence string) (any, error) {
		a := l.handOff(false)
		a.Fence = fence
		return lua.Release(l.t.Context(), l.rdb, a)
	})
}

// both is a state with two holds, mine and the next owner's. No call leaves it, but another client could write it.
func both(count string) state {
	return func(l lab) {
		l.t.Helper()
		l.hold(me, "1", short)
		l.must("HSET", l.name, next, count)
	}
}

// Setting the expiry is the last step that can fail, and its failure is undone. Redis accepts every Duration.
func TestHandOffWithALeaseThatRedisRefuses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, lease := range []string{"", "x", "1.5", "9223372036854775807"} {
		l := newLab(t, rdb)
		l.hold(me, "1", short)
		cmd := rdb.B().Eval().Script(lua.Text("release")).Numkeys(2).Key(l.name, l.fence).Arg(me, l.channel, "", "publish", "0", lease, next, "1").Build()
		_, said := rueidis.IsRedisErr(rdb.Do(t.Context(), cmd).Error())
		require.True(t, said, "%q", lease)
		require.Equal(t, mine(1), l.fields(), "%q", lease)
		l.requireTTL(short)
	}
}

// A hand-off that is forbidden, or refused for lack of memory, leaves a lock that a normal unlock can release. Without the right to HDEL
// neither works; then the next owner may find a hold.
func TestHandOffRefused(t *testing.T) {
	t.Parallel()
	const everything = "~* &* +@all "
	left := map[string]string{me: "1", next: "1"}
	for name, row := range map[string]struct {
		rules  string // "": there is no memory
		fields map[string]string
	}{
		"hexists":          {everything + "-hexists", mine(1)},
		"incr":             {everything + "-incr", mine(1)},
		"hset":             {everything + "-hset", mine(1)},
		"pexpire":          {everything + "-pexpire", mine(1)},
		"hdel":             {everything + "-hdel", left},
		"pexpire and hdel": {everything + "-pexpire -hdel", left},
		"the counter":      {"~TestHandOff* &* +@all", mine(1)},
		"memory":           {"", mine(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			l := newLab(t, s.Client(t))
			l.hold(me, "1", short)
			limited := l.rdb
			if row.rules == "" {
				l.must("CONFIG", "SET", "maxmemory", "1")
			} else {
				limited = user(t, s, row.rules)
			}
			got, err := lua.Release(t.Context(), limited, l.handOff(true))
			requireSaid(t, err, "release script: ")
			require.Zero(t, got)
			require.Equal(t, row.fields, l.fields())
			require.Positive(t, l.ttl())
			ear := l.listen(false)
			got, err = lua.Release(t.Context(), limited, l.frees(me))
			if len(row.fields) > 1 {
				requireSaid(t, err)
				require.Equal(t, row.fields, l.fields())
				return
			}
			require.NoError(t, err)
			require.Equal(t, freed, got)
			require.Empty(t, l.fields())
			require.Equal(t, []string{"0"}, ear.said())
		})
	}
}

const (
	ticket  = "11111111-2222-3333-4444-555555555555:000123456789"
	adopter = "66666666-2222-3333-4444-555555555555:1"
)

// export leaves the owner's hold to the ticket, for the time lease.
func (l lab) export(side lua.Side) lua.ReleaseArgs {
	a := lua.ReleaseArgs{
		Name: l.name, Side: side, Owner: me, Ticket: ticket, Taken: time.Now().Add(lease), Publish: lua.Publish{Name: l.channel},
	}
	if side == lua.Writer {
		a.Owner, a.Ticket = me+":write", ticket+":write"
	}
	return a
}

// adopt takes the lock for the adopter, for the time short.
func (l lab) adopt(side lua.Side) lua.AcquireArgs {
	a := lua.AcquireArgs{
		Name: l.name, Side: side, Owner: adopter, Ticket: ticket, Lease: short, Count: 1, Publish: lua.Publish{Name: l.channel},
	}
	if side == lua.Writer {
		a.Owner, a.Ticket = adopter+":write", ticket+":write"
	}
	return a
}

func TestExport(t *testing.T) {
	t.Parallel()
	left := map[string]string{ticket: "1"}
	effects(t, "export", false, []effect{
		{name: "absent", at: absent, want: notHeld, ttl: noKey},
		{name: "expired", at: expired(me), want: notHeld, ttl: noKey},
		{name: "mine, the expiry rises", at: holding(me, "1", short), want: freed, fields: left, ttl: lease, said: []string{"01"}},
		{name: "mine, the expiry falls", at: holding(me, "1", long), want: freed, fields: left, ttl: lease, said: []string{"01"}},
		{name: "mine without expiry", at: holding(me, "1", 0), want: freed, fields: left, ttl: lease, said: []string{"01"}},
		{name: "mine, levels were counted", at: holding(me, "3", short), want: freed, fields: left, ttl: lease, said: []string{"01"}},
		{name: "a repeat", at: holding(ticket, "1", short), want: freed, fields: left, ttl: short},
		{name: "another's", at: holding(other, "1", short), want: notHeld, fields: others("1"), ttl: short},
		{name: "adopted", at: holding(adopter, "1", short), want: notHeld, fields: map[string]string{adopter: "1"}, ttl: short},
		{name: "wrong type", at: text, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
	}, func(l lab, _ effect, _ string) (any, error) {
		return lua.Release(l.t.Context(), l.rdb, l.export(lua.Whole))
	})
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	adopted, lost, acquired := map[string]string{adopter: "1"}, lua.AcquireReply{Status: lua.Lost}, lua.AcquireReply{Status: lua.Acquired}
	effects(t, "adopt", true, []effect{
		{name: "absent", at: absent, want: lost, ttl: noKey},
		{name: "expired", at: expired(ticket), want: lost, ttl: noKey},
		{name: "exported for longer", at: holding(ticket, "1", long), want: acquired, raised: firstCall, said: []string{"01"}, fields: adopted, ttl: short},
		{name: "exported for less", at: holding(ticket, "1", short/2), want: acquired, raised: firstCall, fields: adopted, ttl: short},
		{name: "a repeat", at: holding(adopter, "1", short/2), want: acquired, fields: adopted, ttl: short},
		{name: "a repeat after a renewal", at: holding(adopter, "1", long), want: acquired, fields: adopted, ttl: long},
		{name: "not exported yet", at: holding(me, "1", long), want: lost, fields: mine(1), ttl: long},
		{name: "adopted by another", at: holding(other, "1", long), want: lost, fields: others("1"), ttl: long},
	}, func(l lab, _ effect, fence string) (any, error) {
		a := l.adopt(lua.Whole)
		a.Fence = fence
		return lua.Acquire(l.t.Context(), l.rdb, a)
	})
}

// Export and adopt work on a server without memory: they need none.
func TestTicketsWithoutMemory(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Start(t).Client(t))
	l.hold(me, "1", long)
	l.must("CONFIG", "SET", "maxmemory", "1")
	require.Equal(t, freed, l.releases(l.export(lua.Whole)))
	require.Equal(t, lua.Acquired, l.acquire(l.adopt(lua.Whole)).Status)
}
