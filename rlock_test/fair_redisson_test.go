package rlock_test

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// besideRedisson is a fair lock with a queue in which others stand: a process of ours that is stopped, and listens, with two waiters, two
// waiters of Redisson's that have died, and one that lives, and asks when it is told.
type besideRedisson struct {
	*fairFixture
	server *redistest.Server
	heard  chan time.Time // when Redisson was told
}

const (
	stoppedOne  = "00000001-0000-4000-8000-000000000000:01"
	stoppedTwo  = "00000001-0000-4000-8000-000000000000:02"
	deadOne     = "00000002-0000-4000-8000-000000000000:1"
	deadTwo     = "00000002-0000-4000-8000-000000000000:2"
	theRedisson = "00000003-0000-4000-8000-000000000000:1"
)

func newBesideRedisson(t *testing.T, o rlock.Options) *besideRedisson {
	t.Helper()
	f, s := fairStandalone(t, 1, o)
	b := &besideRedisson{fairFixture: f, server: s, heard: make(chan time.Time, 10)}
	listener, giveBack := s.Client(t).Dedicate()
	t.Cleanup(giveBack)
	channel := "redisson_lock__channel:{" + b.name + "}:"
	listener.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) {
		if m.Channel == channel+theRedisson && m.Message == "0" {
			b.heard <- time.Now()
		}
	}})
	require.NoError(t, listener.Do(t.Context(), listener.B().Subscribe().Channel(channel+stoppedOne[:36], channel+theRedisson).Build()).Error())
	return b
}

// stand adds entries to the queue. Those of ours last as long as their waiter's last refresh made them, those of Redisson's for an hour.
func (b *besideRedisson) stand(entries ...string) {
	b.Helper()
	list, times := b.keys()
	for _, entry := range entries {
		lasts := time.Hour
		if entry[:36] == stoppedOne[:36] {
			lasts = 4 * time.Second
		}
		b.do("RPUSH", list, entry)
		b.do("ZADD", times, strconv.FormatInt(time.Now().Add(lasts).UnixMilli(), 10), entry)
	}
}

// requireIn requires that Redisson is told when it can have the lock, that long after a moment.
func (b *besideRedisson) requireIn(want time.Duration, after time.Time) {
	b.Helper()
	list, times := b.keys()
	for {
		at := redistest.Within(b.T, testTimeout, b.heard, "told")
		free := answer(b.do("EXISTS", b.name).AsInt64()).ok(b) == 0
		if first := answer(b.do("LINDEX", list, "0").ToString()).ok(b); !free || first != theRedisson {
			continue // it would be refused, and sleep on
		}
		late := at.Sub(after) - want
		require.True(b, late >= 0 && late <= 10*time.Millisecond, "%v late", late) // each look comes two ms later than Redis counts
		break
	}
	b.do("DEL", list)
	b.do("DEL", times)
	for len(b.heard) > 0 {
		<-b.heard
	}
	sleep(time.Minute)
	require.Empty(b, b.heard)
}

// Most versions of Redisson sleep without an end once they have asked. Whoever released the lock looks at it until Redisson is in, however
// many before it have died or been stopped.
func TestFairLooksUntilRedissonIsIn(t *testing.T) {
	const place = 5 * time.Second
	for name, c := range map[string]struct {
		before []string
		o      rlock.Options
		want   time.Duration
	}{
		"a stopped process with two waiters":       {[]string{stoppedOne, stoppedTwo}, rlock.Options{}, 4 * time.Second},
		"the same, which are told":                 {[]string{stoppedOne, stoppedTwo}, rlock.Options{HandOff: rlock.HandOff{Most: -1}}, place},
		"a stopped process, and a dead Redisson":   {[]string{stoppedOne, deadOne}, rlock.Options{}, 2*time.Second + place},
		"a Redisson that died with two waiters":    {[]string{deadOne, deadTwo}, rlock.Options{}, 2 * place},
		"the same, and a stopped process in front": {[]string{stoppedOne, stoppedTwo, deadOne, deadTwo}, rlock.Options{}, 4*time.Second + 2*place},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
				b := newBesideRedisson(t, c.o)
				unlock := b.lock(0)
				b.stand(append(c.before, theRedisson)...)
				began := time.Now()
				require.NoError(t, unlock())
				b.requireIn(c.want, began)
			})
		})
	}
}

// Redis refuses the look, until it has its memory, its disk or its replicas again.
func TestFairLooksAfterRefusals(t *testing.T) {
	const refuses = 20 * time.Second
	for _, says := range []string{
		"OOM command not allowed when used memory > 'maxmemory'. script: 6b1b, on @user_script:12.",
		"MISCONF Redis is configured to save RDB snapshots", "NOREPLICAS Not enough good replicas to write.",
	} {
		t.Run(strings.Fields(says)[0], func(t *testing.T) {
			redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
				b := newBesideRedisson(t, rlock.Options{})
				proxy := redistest.StartProxy(t, b.server.Addr())
				_, unlock := enter(t, t.Context(), newClient(t, b.server.Client(t, redistest.Via(proxy))).FairMutex(b.name))
				b.stand(stoppedOne, stoppedTwo, theRedisson)
				require.NoError(t, unlock())
				began := time.Now()
				var refused atomic.Int32
				proxy.OnRequest(func(cmd []string) redistest.Action {
					if isScript(cmd) && time.Since(began) < refuses {
						refused.Add(1)
						return redistest.Fail(says)
					}
					return redistest.Pass
				})
				told := redistest.Within(t, testTimeout, b.heard, "told")
				late := told.Sub(began) - refuses
				require.True(t, late >= 0 && late <= 2*time.Second, "%v late", late) // the longest pause
				require.Less(t, refused.Load(), int32(20))
			})
		})
	}
}

// A waiter of ours that looked at the lock gives up: it leaves Redisson behind a dead waiter.
func TestFairLooksAfterGivingUp(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		b := newBesideRedisson(t, rlock.Options{})
		b.heldByAnother()
		b.stand(deadOne, theRedisson)
		began := time.Now()
		waits := lockAsync(t, b.processes[0].FairMutex(b.name))
		redistest.Settle(t)
		b.do("DEL", b.name)
		sleep(2 * time.Second) // the dead one was told meanwhile
		waits.cancel()
		require.ErrorIs(t, waits.get(t, testTimeout).err, rlock.ErrNotAcquired)
		told := time.Now()
		b.requireIn(told.Sub(began)+5*time.Second, began)
	})
}

// A hold is lost, and its section does not end: Redis frees the lock without a message.
func TestFairLooksAfterALoss(t *testing.T) {
	const d = 20 * time.Second
	for name, option := range map[string]rlock.Option{"longest hold": rlock.WithMaxHold(d), "lease": rlock.WithLease(d)} {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
				b := newBesideRedisson(t, rlock.Options{WatchdogTimeout: 6 * time.Second})
				began := time.Now()
				ctx, unlock := enter(t, t.Context(), b.processes[0].FairMutex(b.name, option))
				b.stand(theRedisson)
				redistest.Within(t, testTimeout, ctx.Done(), "lost")
				left := time.Duration(answer(b.do("PTTL", b.name).AsInt64()).ok(t)) * time.Millisecond
				b.requireIn(time.Since(began)+left, began)
				require.ErrorIs(t, unlock(), rlock.ErrLost)
			})
		})
	}
}

// All holds are lost at once, in an outage that lasts for longer than their leases, or because all leases end: one call looks at many locks.
func TestFairLooksAfterManyLosses(t *testing.T) {
	const holds = 250
	for name, outage := range map[string]bool{"leases end": false, "outage": true} {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
				b := newBesideRedisson(t, rlock.Options{})
				proxy := redistest.StartProxy(t, b.server.Addr())
				c := newClient(t, b.server.Client(t, redistest.Via(proxy)))
				_, unlock := enter(t, t.Context(), c.FairMutex(b.name, rlock.WithLease(20*time.Second)))
				b.stand(theRedisson)
				var unlocks []rlock.UnlockFunc
				for i := range holds {
					_, unlock := enter(t, t.Context(), c.FairMutex(b.name+strconv.Itoa(i), rlock.WithLease(20*time.Second)))
					unlocks = append(unlocks, unlock)
				}
				before := costNow(t, b.server).scripts
				if outage {
					proxy.Refuse(true)
					proxy.CutAll()
				}
				sleep(time.Minute)
				require.Equal(t, outage, len(b.heard) == 0, "none heard in the outage")
				proxy.Refuse(false)
				redistest.Within(t, testTimeout, b.heard, "told")
				sleep(time.Minute)
				require.LessOrEqual(t, costNow(t, b.server).scripts-before, int64(2*(holds/100+2)))
				for _, unlock := range append(unlocks, unlock) {
					require.ErrorIs(t, unlock(), rlock.ErrLost)
				}
			})
		})
	}
}
