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
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, row := range []struct {
		name   string
		at     state
		count  int
		held   bool
		again  bool // what a repeat reports
		err    string
		fields map[string]string
		ttl    time.Duration
		said   []string
	}{
		{name: "absent", at: absent, ttl: noKey},
		{name: "absent, partial", at: absent, count: 1, ttl: noKey},
		{name: "expired", at: expired(me), ttl: noKey},
		{name: "expired, partial", at: expired(me), count: 1, ttl: noKey},

		{name: "mine ends", at: holding(me, "1", short), held: true, ttl: noKey, said: []string{"0"}},
		{name: "mine twice ends", at: holding(me, "2", short), held: true, ttl: noKey, said: []string{"0"}},
		{name: "mine without expiry ends", at: holding(me, "1", 0), held: true, ttl: noKey, said: []string{"0"}},
		{name: "mine, garbage ends", at: holding(me, "x", short), held: true, ttl: noKey, said: []string{"0"}},

		{name: "partial extends", at: holding(me, "2", short), count: 1, held: true, again: true, fields: mine(1), ttl: lease},
		{name: "partial does not shorten", at: holding(me, "2", long), count: 1, held: true, again: true, fields: mine(1), ttl: long},
		{name: "partial, two levels at once", at: holding(me, "3", long), count: 1, held: true, again: true, fields: mine(1), ttl: long},
		{name: "partial, repeat", at: holding(me, "1", short), count: 1, held: true, again: true, fields: mine(1), ttl: lease},
		{name: "partial never raises", at: holding(me, "1", long), count: 2, held: true, again: true, fields: mine(1), ttl: long},
		{name: "partial without expiry gets one", at: holding(me, "2", 0), count: 1, held: true, again: true, fields: mine(1), ttl: lease},
		{name: "partial, garbage", at: holding(me, "x", short), count: 1, err: "nil", fields: map[string]string{me: "x"}, ttl: short},

		{name: "another's", at: holding(other, "1", short), fields: others("1"), ttl: short},
		{name: "another's, partial", at: holding(other, "2", short), count: 1, fields: others("2"), ttl: short},
		{name: "another's without expiry", at: holding(other, "1", 0), fields: others("1"), ttl: noExpiry},
		{name: "wrong type", at: text, err: "WRONGTYPE", ttl: noExpiry},
		{name: "wrong type, partial", at: text, count: 1, err: "WRONGTYPE", ttl: noExpiry},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			row.at(l)
			ear := l.listen(false)
			held, said := row.held, row.said
			for range 3 { // the first call and two repeats
				got, err := lua.Release(t.Context(), rdb, lua.ReleaseArgs{
					Name: l.name, Owner: me, Count: row.count, Lease: lease, Publish: lua.Publish{Name: l.channel},
				})
				if row.err != "" {
					var redisErr *rueidis.RedisError
					require.ErrorAs(t, err, &redisErr)
					require.ErrorContains(t, err, row.err)
					require.ErrorContains(t, err, "release script: ")
				} else {
					require.NoError(t, err)
				}
				switch {
				case held:
					require.Equal(t, freed, got)
				case row.err == "":
					require.Equal(t, notHeld, got)
				default:
					require.Zero(t, got)
				}
				l.requireFields(row.fields, row.err)
				l.requireTTL(row.ttl)
				require.Equal(t, said, ear.said())
				held, said = row.again, nil
			}
		})
	}
}

// requireFields compares the hash, or checks that a key of another type was left alone.
func (l lab) requireFields(want map[string]string, err string) {
	l.t.Helper()
	switch {
	case err == "WRONGTYPE":
		kept, err := l.do("GET", l.name).ToString()
		require.NoError(l.t, err)
		require.Equal(l.t, "no lock", kept)
	case want == nil:
		require.Empty(l.t, l.fields())
	default:
		require.Equal(l.t, want, l.fields())
	}
}

func TestForceFromEveryState(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, row := range []struct {
		name string
		at   state
		held bool
		err  string
		ttl  time.Duration
	}{
		{name: "absent", at: absent, ttl: noKey},
		{name: "expired", at: expired(other), ttl: noKey},
		{name: "mine", at: holding(me, "2", long), held: true, ttl: noKey},
		{name: "another's", at: holding(other, "1", long), held: true, ttl: noKey},
		{name: "without expiry", at: holding(other, "1", 0), held: true, ttl: noKey},
		{name: "garbage", at: holding(other, "x", 0), held: true, ttl: noKey},
		{name: "wrong type", at: text, err: "WRONGTYPE", ttl: noExpiry},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			row.at(l)
			ear := l.listen(false)
			held := row.held
			for range 3 {
				got, err := lua.Force(t.Context(), rdb, l.name, lua.Publish{Name: l.channel})
				if row.err != "" {
					require.ErrorContains(t, err, row.err)
					require.ErrorContains(t, err, "force script: ")
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, held, got)
				l.requireFields(nil, row.err)
				l.requireTTL(row.ttl)
				if held {
					require.Equal(t, []string{"0"}, ear.said())
				} else {
					require.Empty(t, ear.said())
				}
				held = false
			}
		})
	}
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
				for level := range levels { // of a reader
					l.must("SET", fmt.Sprintf("{%s}:%s:rwlock_timeout:%d", l.name, owner, level+1), "1", "PX", "60000")
				}
				switch side {
				case lua.Whole:
				case lua.Reader:
					l.must("HSET", l.name, "mode", "read")
				case lua.Writer:
					l.must("HSET", l.name, "mode", "write")
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
