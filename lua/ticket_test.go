package lua_test

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

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

// A ticket stays valid if the fencing counter gives no token.
func TestAdoptWithoutAToken(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(ticket, "1", long)
	l.must("SET", l.fence, "9007199254740991")
	a := l.adopt(lua.Whole)
	a.Fence = l.fence
	_, err := lua.Acquire(t.Context(), l.rdb, a)
	require.ErrorContains(t, err, "adopt script: TOKEN")
	require.Equal(t, map[string]string{ticket: "1"}, l.fields())
	l.requireTTL(long)
}

// Late repeats of the exported hold's calls find nothing: neither the ticket's field nor the adopter's changes.
func TestLateCallsOfTheExported(t *testing.T) {
	t.Parallel()
	for _, has := range []string{ticket, adopter} {
		l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
		l.hold(has, "1", short)
		for count := range 2 {
			late, ends := l.wants(me), l.frees(me)
			late.Count, ends.Count = count+1, count
			require.NotEqual(t, lua.Acquired, l.acquire(late).Status)
			require.Equal(t, notHeld, l.releases(ends))
		}
		require.Equal(t, []lua.Renewal{lua.Gone}, l.renews(long, me))
		require.Equal(t, notHeld, lua.ReleaseAll(t.Context(), l.rdb, []lua.ReleaseArgs{l.frees(me)})[0].ReleaseReply)
		if has == adopter {
			require.Equal(t, notHeld, l.releases(l.export(lua.Whole)))
		}
		require.Equal(t, map[string]string{has: "1"}, l.fields())
		l.requireTTL(short)
	}
}

// The write side keeps its mode, and does not leave readers of the section to another owner.
func TestExportOfAWriter(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	acquire := func(a lua.AcquireArgs) lua.Status { return l.acquire(a).Status }
	writer := lua.AcquireArgs{Name: l.name, Side: lua.Writer, Owner: me + ":write", Lease: lease, Count: 1}
	reader := lua.AcquireArgs{Name: l.name, Side: lua.Reader, Owner: other, Lease: lease, Count: 1, Within: writer.Owner}
	require.Equal(t, lua.Acquired, acquire(writer))
	require.Equal(t, lua.Acquired, acquire(reader))
	_, err := lua.Release(t.Context(), l.rdb, l.export(lua.Writer))
	require.ErrorIs(t, err, lua.ErrReaders)
	require.Equal(t, map[string]string{"mode": "write", me + ":write": "1", other: "1"}, l.fields())

	require.Equal(t, freed, l.releases(l.ended(lua.Reader, other)))
	for range 2 {
		require.Equal(t, freed, l.releases(l.export(lua.Writer)))
		require.Equal(t, map[string]string{"mode": "write", ticket + ":write": "1"}, l.fields())
	}
	reader.Within = ""
	require.Equal(t, lua.Held, acquire(reader))
	for range 2 {
		require.Equal(t, lua.Acquired, acquire(l.adopt(lua.Writer)))
		require.Equal(t, map[string]string{"mode": "write", adopter + ":write": "1"}, l.fields())
	}
	require.Equal(t, freed, l.releases(l.ended(lua.Writer, adopter+":write")))
	require.Equal(t, 0, len(l.fields()))
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
