package rlock_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/rlock"
)

// proxied is a process whose goroutines hand a lock on, behind a network that fails, and another process
// beside it.
type proxied struct {
	fixture // Client is behind the network, rdb is not
	server  *redistest.Server
	proxy   *redistest.Proxy
	other   *rlock.Client
	release string       // the name of the script in Redis
	asked   atomic.Int64 // how many attempts of Client were sent
}

func newProxied(t testing.TB, o ...rlock.Options) *proxied {
	t.Helper()
	return newProxiedOn(t, redistest.Start(t), o...)
}

func newProxiedOn(t testing.TB, s *redistest.Server, o ...rlock.Options) *proxied {
	t.Helper()
	r := &proxied{server: s, proxy: redistest.StartProxy(t, s.Addr())}
	r.rdb, r.name = s.Client(t), redistest.Name(t)
	r.other = newClient(t, r.rdb, o...)
	r.Client = newClient(t, redistest.Dial(t, r.proxy.Addr()), o...)
	r.load(t, "renew") // so that none is sent twice
	r.release = r.load(t, "release")
	acquire := r.load(t, "acquire")
	r.proxy.OnRequest(func(cmd []string) redistest.Action {
		if cmd[0] == "EVALSHA" && cmd[1] == acquire {
			r.asked.Add(1)
		}
		return redistest.Pass
	})
	return r
}

// byCall keeps a Lock from going on with the tenure of the one before it: it has a bound of its own, which no test reaches. So it is handed
// the lock by a call.
var byCall = rlock.WithMaxHold(24 * time.Hour)

// Mutex is a handle whose unlocks hand off by a call, also inside of the process. What they do without one is in passon_test.go.
func (r *proxied) Mutex(name string, o ...rlock.Option) *rlock.Mutex {
	return r.Client.Mutex(name, append([]rlock.Option{byCall}, o...)...)
}

// nthHandOff does a with the n-th release that names the next owner; 0: with each.
func (r *proxied) nthHandOff(n int, a redistest.Action) redistest.Hook {
	return r.nthRelease(n, true, a)
}

// nthRelease does a with the n-th of the releases that name the next owner, or of the others; 0: with each.
func (r *proxied) nthRelease(n int, handsOff bool, a redistest.Action) redistest.Hook {
	seen := 0
	return func(cmd []string) redistest.Action {
		const next = 6 // of the script's arguments
		if cmd[0] != "EVALSHA" || cmd[1] != r.release {
			return redistest.Pass
		}
		keys, _ := strconv.Atoi(cmd[2])
		if handsOff != (len(cmd) > 3+keys+next && cmd[3+keys+next] != "") {
			return redistest.Pass
		}
		if seen++; n != 0 && seen != n {
			return redistest.Pass
		}
		return a
	}
}

// load makes Redis know a script, and returns its name there.
func (r *proxied) load(t testing.TB, script string) string {
	t.Helper()
	sent := lua.Text(script)
	require.NoError(t, r.do(t, "SCRIPT", "LOAD", sent).Error())
	sum := sha1.Sum([]byte(sent))
	return hex.EncodeToString(sum[:])
}

// line takes the lock, and lets others wait behind each other for it; all of them know that it is held.
func (r *proxied) line(t testing.TB, behind ...locker) (lockResult, []pendingLock) {
	t.Helper()
	return r.lineOf(t, r.Mutex(r.name), behind...)
}

func (r *proxied) lineOf(t testing.TB, first locker, behind ...locker) (lockResult, []pendingLock) {
	t.Helper()
	return locked(t, first), r.queue(t, behind...)
}

// forceOpen has another process force the lock open.
func (r *proxied) forceOpen(t testing.TB) {
	t.Helper()
	answer(r.other.Mutex(r.name).ForceUnlock(context.Background())).is(t, true)
}

// queue lets others wait for a lock that is held.
func (r *proxied) queue(t testing.TB, behind ...locker) []pendingLock {
	t.Helper()
	before, asked := waiting(t), r.asked.Load()
	if before == 0 {
		asked += attempts
	}
	var line []pendingLock
	for i, l := range behind {
		line = append(line, lockAsync(t, l))
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == before+i+1 }, "it waits")
	}
	r.settle(t, before+len(behind), asked)
	return line
}

// attempts are those of the first waiter: when it comes, and again when its subscription stands.
const attempts = 2

// settle waits until so many attempts were sent, and so many goroutines have their answer and sleep: an unlock that meets an
// attempt does not hand off. How long nothing has happened would not tell on a machine that stands still now and then.
func (r *proxied) settle(t testing.TB, asleep int, asked int64) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		return r.asked.Load() >= asked && waiting(t) == asleep
	}, "all have asked and wait")
}

// held says that the lock is one owner's, and how deep.
func (r *proxied) held(t testing.TB, a lockResult, depth int64) {
	t.Helper()
	require.NoError(t, a.ctx.Err())
	r.awaitFields(t, r.name, map[string]int64{rlock.Owner(a.ctx): depth})
}

// gets is get for a waiter that has to get the lock.
func (r *proxied) gets(t testing.TB, p pendingLock) lockResult {
	t.Helper()
	a := p.gets(t, testTimeout)
	r.held(t, a, 1)
	return a
}

// clear proves that nothing is left of the lock: no key, no subscription, no waiter.
func (r *proxied) clear(t testing.TB) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return !r.exists(t, r.name) }, "the lock is free")
	r.awaitSubscribers(t, r.name, 0)
	require.Zero(t, waiting(t))
	lockAndUnlock(t, tryFor{r.other.Mutex(r.name), wakeTimeout}) // with less a try has a second for its answer, on any machine
}
