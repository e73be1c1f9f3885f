package lua_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

var (
	freed         = lua.ReleaseReply{Status: lua.Freed}
	severalTold   = lua.ReleaseReply{Status: lua.Freed, Several: true}
	outsidersTold = lua.ReleaseReply{Status: lua.Freed, Several: true, Outsiders: true}
	notHeld       = lua.ReleaseReply{Status: lua.NotHeld}
)

// The reply shows whether several processes listen, including the releaser.
func TestReleaseSaysWhetherSeveralListen(t *testing.T) {
	t.Parallel()
	addr := redistest.Shared(t)
	for listen, want := range []lua.ReleaseReply{freed, freed, severalTold, severalTold} {
		l := newLab(t, redistest.Dial(t, addr))
		l.hold(me, "2", brief)
		ears := l.subscribers(func() rueidis.Client { return redistest.Dial(t, addr) }, listen, false, false)
		a := l.ends()
		a.Queue = lua.Queue{}
		a.Count = 1
		require.Equal(t, freed, l.releases(a), "a level")
		a.Count = 0
		require.Equal(t, want, l.releases(a), "%d listen", listen)
		for _, e := range ears {
			require.Equal(t, []string{"0"}, e.said())
		}
	}
}

// A writer's release says whether other processes listen. Those that listen to a pattern, as a monitor does, wait for no lock.
func TestWriterSaysWhetherOthersListen(t *testing.T) {
	t.Parallel()
	addr := redistest.Shared(t)
	const itself = true
	for name, row := range map[string]struct {
		listen  int
		itself  bool
		pattern bool
		want    lua.ReleaseReply
	}{
		"nobody":                {0, false, false, freed},
		"itself":                {1, itself, false, freed},
		"another":               {1, false, false, outsidersTold},
		"itself and another":    {2, itself, false, outsidersTold},
		"a monitor":             {0, false, true, freed},
		"itself and a monitor":  {1, itself, true, freed},
		"another and a monitor": {1, false, true, outsidersTold},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, redistest.Dial(t, addr))
			l.must("HSET", l.name, "mode", "write")
			l.hold(me+":write", "1", brief)
			ears := l.subscribers(func() rueidis.Client { return redistest.Dial(t, addr) }, row.listen, false, false)
			if row.pattern {
				c, end := redistest.Dial(t, addr).Dedicate()
				defer end()
				confirmed := make(chan struct{})
				c.SetPubSubHooks(rueidis.PubSubHooks{OnSubscription: func(rueidis.PubSubSubscription) { close(confirmed) }})
				require.NoError(t, c.Do(t.Context(), c.B().Psubscribe().Pattern(l.channel+"*").Build()).Error())
				<-confirmed
			}
			got := l.releases(lua.ReleaseArgs{
				Name: l.name, Side: lua.Writer, Owner: me + ":write", Publish: lua.Publish{Name: l.channel}, Listens: row.itself,
			})
			require.Equal(t, row.want, got)
			for _, e := range ears {
				require.Equal(t, []string{"00", "1"}, e.said())
			}
		})
	}
}

func TestReleaseFromEveryState(t *testing.T) {
	t.Parallel()
	effects(t, "release", false, []effect{
		{name: "absent", at: absent, want: notHeld, ttl: noKey},
		{name: "absent, partial", at: absent, count: 1, want: notHeld, ttl: noKey},
		{name: "expired", at: expired(me), want: notHeld, ttl: noKey},
		{name: "expired, partial", at: expired(me), count: 1, want: notHeld, ttl: noKey},

		{name: "mine ends", at: holding(me, "1", short), want: freed, again: notHeld, ttl: noKey, said: []string{"0"}},
		{name: "mine twice ends", at: holding(me, "2", short), want: freed, again: notHeld, ttl: noKey, said: []string{"0"}},
		{name: "mine without expiry ends", at: holding(me, "1", 0), want: freed, again: notHeld, ttl: noKey, said: []string{"0"}},
		{name: "mine, garbage ends", at: holding(me, "x", short), want: freed, again: notHeld, ttl: noKey, said: []string{"0"}},

		{name: "partial extends", at: holding(me, "2", short), count: 1, want: freed, fields: mine(1), ttl: lease},
		{name: "partial does not shorten", at: holding(me, "2", long), count: 1, want: freed, fields: mine(1), ttl: long},
		{name: "partial, two levels at once", at: holding(me, "3", long), count: 1, want: freed, fields: mine(1), ttl: long},
		{name: "partial, repeat", at: holding(me, "1", short), count: 1, want: freed, fields: mine(1), ttl: lease},
		{name: "partial never raises", at: holding(me, "1", long), count: 2, want: freed, fields: mine(1), ttl: long},
		{name: "partial without expiry gets one", at: holding(me, "2", 0), count: 1, want: freed, fields: mine(1), ttl: lease},
		{name: "partial, garbage", at: holding(me, "x", short), count: 1, err: "nil", fields: map[string]string{me: "x"}, ttl: short},

		{name: "another's", at: holding(other, "1", short), want: notHeld, fields: others("1"), ttl: short},
		{name: "another's, partial", at: holding(other, "2", short), count: 1, want: notHeld, fields: others("2"), ttl: short},
		{name: "another's without expiry", at: holding(other, "1", 0), want: notHeld, fields: others("1"), ttl: noExpiry},
		{name: "wrong type", at: text, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
		{name: "wrong type, partial", at: text, count: 1, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
	}, func(l lab, e effect, _ string) (any, error) {
		a := l.frees(me)
		a.Count = e.count
		return lua.Release(l.t.Context(), l.rdb, a)
	})
}

func TestForceFromEveryState(t *testing.T) {
	t.Parallel()
	effects(t, "force", false, []effect{
		{name: "absent", at: absent, want: false, ttl: noKey},
		{name: "expired", at: expired(other), want: false, ttl: noKey},
		{name: "mine", at: holding(me, "2", long), want: true, again: false, ttl: noKey, said: []string{"0"}},
		{name: "another's", at: holding(other, "1", long), want: true, again: false, ttl: noKey, said: []string{"0"}},
		{name: "without expiry", at: holding(other, "1", 0), want: true, again: false, ttl: noKey, said: []string{"0"}},
		{name: "garbage", at: holding(other, "x", 0), want: true, again: false, ttl: noKey, said: []string{"0"}},
		{name: "wrong type", at: text, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
	}, func(l lab, _ effect, _ string) (any, error) {
		return lua.Force(l.t.Context(), l.rdb, l.name, lua.Publish{Name: l.channel})
	})
}

// An unlock of one level at the very end of the lease leaves no lock without expiry, because setting the expiry may delete the lock.
func TestPartialReleaseWhenTheLeaseEnds(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for side, owner := range map[lua.Side]string{lua.Whole: me, lua.Reader: me, lua.Writer: me + ":write"} {
		t.Run(owner, func(t *testing.T) {
			t.Parallel()
			const levels = 100
			for range 20 {
				l := newLab(t, rdb)
				if side == lua.Reader {
					for level := range levels {
						l.must("SET", fmt.Sprintf("{%s}:%s:rwlock_timeout:%d", l.name, owner, level+1), "1", "PX", "60000")
					}
				}
				if side != lua.Whole {
					l.must("HSET", l.name, "mode", map[lua.Side]string{lua.Reader: "read", lua.Writer: "write"}[side])
				}
				l.hold(owner, strconv.Itoa(levels), 3*time.Millisecond)
				for level := levels; level > 1; {
					level--
					a := lua.ReleaseArgs{Name: l.name, Side: side, Owner: owner, Count: level, Publish: lua.Publish{Name: l.channel}}
					if l.releases(a) == notHeld {
						break
					}
				}
				redistest.Eventually(t, slack, func() bool { return len(l.fields()) == 0 }, "the lease has ended")
			}
		})
	}
}
