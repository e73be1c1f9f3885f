package lua_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

var (
	freed         = lua.ReleaseReply{Status: lua.Freed}
	outsidersTold = lua.ReleaseReply{Status: lua.Freed, Several: true, Outsiders: true}
	notHeld       = lua.ReleaseReply{Status: lua.NotHeld}
)

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
				redistest.Eventually(t, 15*time.Second, func() bool { return len(l.fields()) == 0 }, "the lease has ended")
			}
		})
	}
}

const nobody = "11111111-2222-3333-4444-555555555555:00"

// leaveTaken releases the lock but leaves it taken for the time lease.
func (l lab) leaveTaken() lua.ReleaseArgs {
	return lua.ReleaseArgs{
		Name: l.name, Owner: me, Next: nobody, Taken: time.Now().Add(lease), Publish: lua.Publish{Name: l.channel},
	}
}

func TestReleaseLeavesTheLockTaken(t *testing.T) {
	t.Parallel()
	kept := map[string]string{nobody: "1"}
	for name, queued := range map[string]bool{"nobody waits": false, "queued": true} {
		t.Run(name, func(t *testing.T) {
			effects(t, "release", false, []effect{
				{name: "absent", at: absent, want: notHeld, ttl: noKey},
				{name: "expired", at: expired(me), want: notHeld, ttl: noKey},
				{name: "mine, the expiry rises", at: holding(me, "1", short), want: freed, again: notHeld, fields: kept, ttl: lease, said: []string{"01"}},
				{name: "mine, the expiry falls", at: holding(me, "1", long), want: freed, again: notHeld, fields: kept, ttl: lease, said: []string{"01"}},
				{name: "mine without expiry", at: holding(me, "1", 0), want: freed, again: notHeld, fields: kept, ttl: lease, said: []string{"01"}},
				{name: "mine, an unlock was not counted", at: holding(me, "3", short), want: freed, again: notHeld, fields: kept, ttl: lease, said: []string{"01"}},
				{name: "taken already", at: holding(nobody, "1", short), want: notHeld, fields: kept, ttl: short},
				{name: "another's", at: holding(other, "1", short), want: notHeld, fields: others("1"), ttl: short},
				{name: "wrong type", at: text, want: lua.ReleaseReply{WithoutQueue: queued}, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
			}, func(l lab, _ effect, _ string) (any, error) {
				a := l.leaveTaken()
				if queued { // waiters in the queue stay there, and get the message to all
					a.Queue = lua.Queue{Key: l.queue, GrantLease: lease}
					l.must("ZADD", l.queue, "2", waiter(1))
					defer l.requirePlaces(waiter(1))
				}
				return lua.Release(l.t.Context(), l.rdb, a)
			})
		})
	}
}

// The time for which the lock stays taken counts from the call, so a late repeat does not extend it. Afterwards the lock is free, and never
// left without an expiry.
func TestTakenIsCountedFromTheCall(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(me, "1", long)
	a := l.leaveTaken()
	a.Taken = time.Now().Add(-time.Minute)
	ear := l.listen(false)
	require.Equal(t, freed, l.releases(a))
	redistest.Eventually(t, time.Second, func() bool { return len(l.fields()) == 0 }, "after the shortest time that there is")
	require.Equal(t, []string{"01"}, ear.said())

	l.hold(me, "2", long)
	a.Count, a.Lease = 1, lease
	require.Equal(t, freed, l.releases(a))
	l.requireFields(mine(1))
	l.requireTTL(long)
}

// A server without memory accepts a release that leaves the lock taken, like any unlock. A sweep leaves it taken as well.
func TestLockIsLeftTakenWithoutMemory(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := newLab(t, rdb)
	for _, all := range []bool{false, true} {
		l.hold(me, "1", long)
		l.must("CONFIG", "SET", "maxmemory", "1")
		if all {
			require.Equal(t, freed, lua.ReleaseAll(t.Context(), rdb, []lua.ReleaseArgs{l.leaveTaken()})[0].ReleaseReply)
		} else {
			require.Equal(t, freed, l.releases(l.leaveTaken()))
		}
		l.must("CONFIG", "SET", "maxmemory", "0")
		l.requireFields(map[string]string{nobody: "1"})
		l.requireTTL(lease)
		l.must("DEL", l.name)
	}
}

// notEmpty is a client that fails on an empty pipeline.
type notEmpty struct {
	rueidis.Client
	t *testing.T
}

func (c notEmpty) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	if len(all) == 0 {
		c.t.Error("a pipeline of nothing")
	}
	return c.Client.DoMulti(ctx, all...)
}

// ReleaseAll returns the result of Release for each lock, on several slots and on servers that do not know the script yet.
func TestReleaseAll(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]rueidis.Client{
		"standalone": redistest.Start(t).Client(t),
		"no pool":    redistest.Start(t).Client(t, func(o *rueidis.ClientOption) { o.DisableAutoPipelining = true }),
		"cluster":    redistest.StartCluster(t, 3, 0).Client(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := notEmpty{rdb, t}
			require.Empty(t, lua.ReleaseAll(t.Context(), rdb, nil))
			kinds := []struct {
				at     state
				status lua.Released
				err    error
			}{
				{at: holding(me, "1", short), status: lua.Freed},
				{at: holding(other, "1", short), status: lua.NotHeld},
				{at: absent, status: lua.NotHeld},
				{at: text, err: lua.ErrForeign},
				{at: hash("customer"), status: lua.NotHeld},
			}
			before := redistest.Commands(t, rdb)
			for round := range 2 { // in the second one all servers know the script
				var all []lua.ReleaseArgs
				var ears []*ear
				for i := range 50 {
					l := newLab(t, rdb)
					kinds[i%len(kinds)].at(l)
					if i < len(kinds) {
						ears = append(ears, l.listen(false))
					}
					all = append(all, l.frees(me))
				}
				got := lua.ReleaseAll(t.Context(), rdb, all)
				require.Len(t, got, len(all))
				for i, r := range got {
					kind := kinds[i%len(kinds)]
					require.Equal(t, kind.status, r.Status)
					if kind.err == nil {
						require.NoError(t, r.Err)
					} else {
						require.ErrorIs(t, r.Err, kind.err)
						require.ErrorContains(t, r.Err, "release script: ")
					}
				}
				after := redistest.Commands(t, rdb)
				require.EqualValues(t, len(all), after["evalsha"]-before["evalsha"])
				require.Equal(t, round == 0, after["eval"] > before["eval"])
				require.Equal(t, []string{"0"}, ears[0].said())
				for _, e := range ears[1:] {
					require.Empty(t, e.said())
				}
				before = redistest.Commands(t, rdb)
			}
		})
	}
}

// A long pipeline needs no connection of the blocking pool, which may be exhausted.
func TestReleaseAllWithAnExhaustedPool(t *testing.T) {
	t.Parallel()
	for name, mod := range map[string]func(*rueidis.ClientOption){
		"long": func(*rueidis.ClientOption) {},
		"any":  func(o *rueidis.ClientOption) { o.BlockingPipeline = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, redistest.Dial(t, redistest.Shared(t), func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 }, mod))
			exhaust(t, l)
			lua.ReleaseAll(t.Context(), l.rdb, []lua.ReleaseArgs{l.frees(me)}) // loads the script: one that has to be repeated is not the first
			l.hold(me, "1", short)
			all := make([]lua.ReleaseArgs, 3000)
			for i := range all {
				all[i] = l.frees(me)
			}
			got := lua.ReleaseAll(t.Context(), l.rdb, all)
			require.Equal(t, lua.ReleaseResult{ReleaseReply: freed}, got[0])
			require.Equal(t, lua.ReleaseResult{ReleaseReply: notHeld}, got[len(got)-1])
		})
	}
}

func TestReleaseAllOnAClosedClient(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	rdb.Close()
	for _, r := range lua.ReleaseAll(t.Context(), rdb, make([]lua.ReleaseArgs, 3)) {
		require.Zero(t, r.ReleaseReply)
		require.ErrorIs(t, r.Err, rueidis.ErrClosing)
		require.ErrorContains(t, r.Err, "release script: ")
	}
}
