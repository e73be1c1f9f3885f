package lua_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
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
	rdb := redistest.Dial(t, redistest.Shared(t))
	left := map[string]string{ticket: "1"}
	for _, row := range []struct {
		name        string
		at          state
		held, again bool
		err         string
		fields      map[string]string
		ttl         time.Duration
	}{
		{name: "absent", at: absent, ttl: noKey},
		{name: "expired", at: expired(me), ttl: noKey},
		{name: "mine, the expiry rises", at: holding(me, "1", short), held: true, again: true, fields: left, ttl: lease},
		{name: "mine, the expiry falls", at: holding(me, "1", long), held: true, again: true, fields: left, ttl: lease},
		{name: "mine without expiry", at: holding(me, "1", 0), held: true, again: true, fields: left, ttl: lease},
		{name: "mine, levels were counted", at: holding(me, "3", short), held: true, again: true, fields: left, ttl: lease},
		{name: "a repeat", at: holding(ticket, "1", short), again: true, fields: left, ttl: short},
		{name: "another's", at: holding(other, "1", short), fields: others("1"), ttl: short},
		{name: "adopted", at: holding(adopter, "1", short), fields: map[string]string{adopter: "1"}, ttl: short},
		{name: "wrong type", at: text, err: "WRONGTYPE", ttl: noExpiry},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			row.at(l)
			ear := l.listen(false)
			held := row.held
			for range 3 { // the first call and two repeats
				got, err := lua.Release(t.Context(), rdb, l.export(lua.Whole))
				if row.err != "" {
					var redisErr *rueidis.RedisError
					require.ErrorAs(t, err, &redisErr)
					require.ErrorContains(t, err, row.err)
					require.ErrorContains(t, err, "export script: ")
					return
				}
				require.NoError(t, err)
				if held || row.again {
					require.Equal(t, freed, got)
				} else {
					require.Equal(t, notHeld, got)
				}
				if held {
					require.Equal(t, []string{"01"}, ear.said())
				} else {
					require.Empty(t, ear.said())
				}
				l.requireFields(row.fields, "")
				l.requireTTL(row.ttl)
				held = false
			}
		})
	}
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	adopted := map[string]string{adopter: "1"}
	for _, row := range []struct {
		name   string
		at     state
		status lua.Status
		told   bool
		fields map[string]string
		ttl    time.Duration
	}{
		{name: "absent", at: absent, status: lua.Lost, ttl: noKey},
		{name: "expired", at: expired(ticket), status: lua.Lost, ttl: noKey},
		{name: "exported for longer", at: holding(ticket, "1", long), status: lua.Acquired, told: true, fields: adopted, ttl: short},
		{name: "exported for less", at: holding(ticket, "1", short/2), status: lua.Acquired, fields: adopted, ttl: short},
		{name: "a repeat", at: holding(adopter, "1", short/2), status: lua.Acquired, fields: adopted, ttl: short},
		{name: "a repeat after a renewal", at: holding(adopter, "1", long), status: lua.Acquired, fields: adopted, ttl: long},
		{name: "not exported yet", at: holding(me, "1", long), status: lua.Lost, fields: mine(1), ttl: long},
		{name: "adopted by another", at: holding(other, "1", long), status: lua.Lost, fields: others("1"), ttl: long},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for _, fenced := range []bool{false, true} {
				l := newLab(t, rdb)
				row.at(l)
				ear := l.listen(false)
				a, token := l.adopt(lua.Whole), int64(0)
				if fenced {
					a.Fence = l.fence
					l.must("SET", l.fence, "7")
					if token = 7; row.status == lua.Acquired && row.fields[adopter] != "" && l.fields()[adopter] == "" {
						token = 8
					}
				}
				for i := range 3 {
					got, err := lua.Acquire(t.Context(), rdb, a)
					require.NoError(t, err)
					require.Equal(t, row.status, got.Status)
					if row.status == lua.Acquired {
						require.Equal(t, token, got.Token, "a repeat raises nothing")
					}
					if row.told && i == 0 {
						require.Equal(t, []string{"01"}, ear.said())
					} else {
						require.Empty(t, ear.said())
					}
					l.requireTTL(row.ttl)
					got2 := l.fields()
					require.Equal(t, len(row.fields), len(got2))
					for field, count := range row.fields {
						require.Equal(t, count, got2[field])
					}
				}
			}
		})
	}
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
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, has := range []string{ticket, adopter} {
		l := newLab(t, rdb)
		l.hold(has, "1", short)
		p := lua.Publish{Name: l.channel}
		late := func(count int) {
			_, err := lua.Acquire(t.Context(), rdb, lua.AcquireArgs{Name: l.name, Owner: me, Lease: long, Count: count})
			require.NoError(t, err)
		}
		late(1)
		late(2)
		_, err := lua.Renew(t.Context(), rdb, long, []lua.Hold{{Name: l.name, Owner: me}})
		require.NoError(t, err)
		for _, count := range []int{0, 1} {
			require.Equal(t, notHeld, l.releases(lua.ReleaseArgs{Name: l.name, Owner: me, Count: count, Lease: long, Publish: p}))
		}
		require.Equal(t, notHeld, lua.ReleaseAll(t.Context(), rdb, []lua.ReleaseArgs{{Name: l.name, Owner: me, Publish: p}})[0].ReleaseReply)
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
	acquire := func(a lua.AcquireArgs) lua.Status {
		got, err := lua.Acquire(t.Context(), l.rdb, a)
		require.NoError(t, err)
		return got.Status
	}
	writer := lua.AcquireArgs{Name: l.name, Side: lua.Writer, Owner: me + ":write", Lease: lease, Count: 1}
	reader := lua.AcquireArgs{Name: l.name, Side: lua.Reader, Owner: other, Lease: lease, Count: 1, Within: writer.Owner}
	require.Equal(t, lua.Acquired, acquire(writer))
	require.Equal(t, lua.Acquired, acquire(reader))
	_, err := lua.Release(t.Context(), l.rdb, l.export(lua.Writer))
	require.ErrorContains(t, err, "READERS")
	require.Equal(t, map[string]string{"mode": "write", me + ":write": "1", other: "1"}, l.fields())

	_, err = lua.Release(t.Context(), l.rdb, lua.ReleaseArgs{Name: l.name, Side: lua.Reader, Owner: other, Publish: lua.Publish{Name: l.channel}})
	require.NoError(t, err)
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
	require.Equal(t, freed, l.releases(lua.ReleaseArgs{
		Name: l.name, Side: lua.Writer, Owner: adopter + ":write", Publish: lua.Publish{Name: l.channel},
	}))
	require.Equal(t, 0, len(l.fields()))
}

// Export and adopt work on a server without memory: they need none.
func TestTicketsWithoutMemory(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := newLab(t, rdb)
	l.hold(me, "1", long)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary("CONFIG", "SET", "maxmemory", "1").Build()).Error())
	require.Equal(t, freed, l.releases(l.export(lua.Whole)))
	got, err := lua.Acquire(t.Context(), rdb, l.adopt(lua.Whole))
	require.NoError(t, err)
	require.Equal(t, lua.Acquired, got.Status)
}
