package rlock_test

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Info names the holder of a lock, its depth and the number of waiters, for each kind.
func TestInfo(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		bg := context.Background()
		b := newFixture(t)
		other := newClient(t, b.rdb)
		rw := b.RWMutex(b.name + ":rw")
		for kind, m := range map[string][2]*rlock.Mutex{
			"plain":  {b.Mutex(b.name), other.Mutex(b.name)},
			"fenced": {b.FencedMutex(b.name + ":fenced"), other.FencedMutex(b.name + ":fenced")},
			"fair":   {b.FairMutex(b.name + ":fair"), other.FairMutex(b.name + ":fair")},
			"write":  {rw.Write(), other.RWMutex(b.name + ":rw").Write()},
			"fenced write": {
				b.FencedRWMutex(b.name + ":fenced rw").Write(), other.FencedRWMutex(b.name + ":fenced rw").Write(),
			},
		} {
			info, err := m[0].Info(bg)
			require.NoError(t, err, kind)
			require.Equal(t, rlock.Info{}, info, kind)
			a := locked(t, m[0])
			inner := locked(t, under{a.ctx, m[0]})
			next := lockAsync(t, m[1])
			redistest.Eventually(t, testTimeout, func() bool {
				info, err = m[1].Info(bg)
				return err == nil && info.Listening == 1 && len(info.Queue) == 1 && info.Holders[0].Depth == 2
			}, kind+": it waits, and the count has followed")
			require.Equal(t, []rlock.Holder{{Owner: rlock.Owner(a.ctx), Depth: 2, Write: strings.HasSuffix(kind, "write")}}, info.Holders, kind)
			require.Greater(t, info.TTL, rlock.DefaultWatchdogTimeout/2, kind)
			require.Regexp(t, "^"+other.ID()+`:\d+(:write)?$`, info.Queue[0], kind)
			token, _ := m[0].FencingToken(a.ctx)
			require.Equal(t, token, info.Token, kind)
			require.NoError(t, inner.unlock(), kind)
			require.NoError(t, a.unlock(), kind)
			next.getAndUnlock(t, testTimeout)
		}

		one, two := locked(t, rw.Read()), locked(t, other.RWMutex(b.name+":rw").Read())
		info := answer(rw.Read().Info(bg)).ok(t)
		require.Len(t, info.Holders, 2)
		require.Contains(t, info.Holders, rlock.Holder{Owner: rlock.Owner(one.ctx), Depth: 1})
		require.NoError(t, one.unlock())
		require.NoError(t, two.unlock())

		for _, stock := range []map[string]string{{"customer": "x"}, {"apples": "3"}, {"apples": "3", "pears": "5"}, {"mode": "1"}, {foreignOwner: "one"}} {
			for field, value := range stock {
				require.NoError(t, b.do(t, "HSET", b.name, field, value).Error())
			}
			rw := b.RWMutex(b.name)
			for _, m := range []*rlock.Mutex{b.Mutex(b.name), b.FairMutex(b.name), rw.Read(), rw.Write()} {
				_, err := m.Info(bg)
				require.ErrorContains(t, err, "not a lock", "%v", stock)
			}
			require.NoError(t, b.do(t, "DEL", b.name).Error())
		}
	})
}

// An expiry further away than a Duration reaches is the longest Duration, not none. miniredis has no such expiry.
func TestInfoOfALongLease(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	hold := locked(t, b.Mutex(b.name))
	b.do(t, "PEXPIRE", b.name, "9999999999999")
	require.Equal(t, time.Duration(math.MaxInt64), answer(b.Mutex(b.name).Info(t.Context())).ok(t).TTL)
	require.NoError(t, hold.unlock())
}

// awaitNamed waits until the connection for messages of c has its name: it gets it after it has subscribed.
func (b fixture) awaitNamed(t testing.TB, c *rlock.Client) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		list := answer(b.do(t, "CLIENT", "LIST").ToString()).ok(t)
		return strings.Contains(list, "name=rlock:"+c.ID()+" ")
	}, "named")
}

// The connection of a process that waits has the name of its Client, so that operators find it.
func TestConnectionNamed(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
	b.Client = newClient(t, b.rdb)
	a := locked(t, newClient(t, b.rdb).Mutex(b.name))
	next := lockAsync(t, b.Mutex(b.name))
	b.awaitNamed(t, b.Client)
	require.NoError(t, a.unlock())
	next.getAndUnlock(t, testTimeout)
}

// A Lock that waits for its own caller is warned of at its first refusal after the watchdog time. It asks at least once in such a time, when the lease
// that it has been told of ends.
func TestWaitForOneselfIsLogged(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var log lockedBuffer
		const watchdog = 3 * time.Second
		const longer = 2*watchdog + soon
		b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		_, unlock := enter(t, context.Background(), b.Mutex(b.name))
		others := b.Mutex(b.name + ":others")
		other := locked(t, others)
		nobodys := b.Mutex(b.name+":nobody", rlock.WithMinHold(time.Minute))
		require.NoError(t, nobodys.Do(context.Background(), nothing))
		waits := []pendingLock{lockAsync(t, tryFor{others, longer}), lockAsync(t, tryFor{nobodys, longer})}
		_, _, err := b.Mutex(b.name).TryLock(context.Background(), longer) // of the wrong ctx
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		for _, w := range waits {
			require.ErrorIs(t, w.get(t, testTimeout).err, rlock.ErrNotAcquired)
		}
		require.Regexp(t, `level=WARN msg="rlock: a Lock waits for a hold of this client that .*" name=`+b.name+` owner=`+b.ID()+`:`, log.String())
		require.Equal(t, 1, strings.Count(log.String(), "a Lock waits"), "for itself alone")
		require.NoError(t, unlock())
		require.NoError(t, other.unlock())
		answer(nobodys.ForceUnlock(t.Context())).ok(t)
	})
}
