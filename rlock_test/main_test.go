// Package rlock_test tests the public API of package rlock, in the worlds of package redistest: in virtual time, and on real servers.
//
// Real tests that wait call redistest.Parallel. A test runs alone if it is quick, keeps the machine busy, needs an answer within a fraction of
// a second, or starts a thousand goroutines, which slow down every goroutine count.
package rlock_test

import (
	"context"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(soakEnv); job != "" {
		os.Exit(soakWorker(job))
	}
	redistest.Main(m)
}

// fixture has a lock client on the shared server, a bare client beside it, and a unique lock name.
type fixture struct {
	*rlock.Client
	rdb  rueidis.Client
	name string
}

func newFixture(t testing.TB, o ...rlock.Options) fixture {
	t.Helper()
	b := newBareFixture(t)
	b.Client = newClient(t, b.rdb, o...)
	return b
}

// virtual runs a test with a fixture in the virtual world, and runVirtual a subtest.
func virtual(t *testing.T, test func(t *testing.T, b fixture)) {
	t.Helper()
	redistest.Virtual(t, func(t *testing.T) { test(t, newFixture(t)) })
}

func runVirtual(t *testing.T, name string, test func(t *testing.T, b fixture)) {
	t.Helper()
	redistest.RunVirtual(t, name, func(t *testing.T) { test(t, newFixture(t)) })
}

// newBareFixture is a fixture without a lock client.
func newBareFixture(t testing.TB) fixture {
	t.Helper()
	return fixture{rdb: redistest.Dial(t, redistest.Shared(t)), name: redistest.Name(t)}
}

// loadScripts loads the scripts that c uses, so that no later call is repeated because of NOSCRIPT.
func loadScripts(t testing.TB, c *rlock.Client) {
	t.Helper()
	m := c.Mutex(redistest.Name(t), rlock.WithLease(time.Minute)) // independent of the Client's watchdog time
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
}

// newClient returns a lock client that is closed before rdb is.
func newClient(t testing.TB, rdb rueidis.Client, o ...rlock.Options) *rlock.Client {
	t.Helper()
	return withPatience(t, newHastyClient(t, rdb, o...))
}

// newHastyClient is newClient with the times of users, for a test that waits until one is over.
func newHastyClient(t testing.TB, rdb rueidis.Client, o ...rlock.Options) *rlock.Client {
	t.Helper()
	c := answer(rlock.New(rdb, unhurried(t, o...))).ok(t)
	clientsOf.add(t, c)
	t.Cleanup(c.Close)
	return c
}

// unhurried returns options whose unlocks wait for a real Redis as long as a test does: a busy machine may take longer than a section would wait.
func unhurried(t testing.TB, o ...rlock.Options) (options rlock.Options) {
	t.Helper()
	if len(o) > 0 {
		options = o[0]
	}
	if options.UnlockTimeout == 0 && !redistest.IsVirtual(t) {
		options.UnlockTimeout = testTimeout
	}
	return options
}

// withPatience gives a new Client longer leases of handed over locks and of places on real servers, and a TryLock more time, where no test is about
// them: a busy machine may take its time.
func withPatience(t testing.TB, c *rlock.Client) *rlock.Client {
	t.Helper()
	if !redistest.IsVirtual(t) && !redistest.RealWorld() && !strings.HasPrefix(t.Name(), "TestInterop") { // Redisson meets those of users
		enginetest.Patient(c)
	}
	return c
}

// clientsOf holds the Clients made by each test, by the test's name.
var clientsOf clientsOfTests

type clientsOfTests struct {
	mu sync.Mutex // guards the following
	of map[string][]*rlock.Client
}

func (all *clientsOfTests) add(t testing.TB, c *rlock.Client) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.of == nil {
		all.of = make(map[string][]*rlock.Client)
	}
	if name := t.Name(); all.of[name] == nil {
		t.Cleanup(func() {
			all.mu.Lock()
			defer all.mu.Unlock()
			delete(all.of, name)
		})
	}
	all.of[t.Name()] = append(all.of[t.Name()], c)
}

// waiting counts the goroutines that wait for locks of the Clients of a test and its parent tests: Redis has refused them, and
// they sleep until they are woken. All waiters for one semaphore or latch count as one.
func waiting(t testing.TB) (n int) {
	clientsOf.mu.Lock()
	defer clientsOf.mu.Unlock()
	for name, clients := range clientsOf.of {
		if strings.HasPrefix(t.Name()+"/", name+"/") {
			for _, c := range clients {
				n += c.Stats().Waiting
			}
		}
	}
	return n
}

// noCalls waits until the library's background calls for the test have ended: checks, releases and retries. In the virtual world the calls
// that are under way end at once.
func noCalls(t testing.TB) {
	t.Helper()
	if redistest.IsVirtual(t) {
		synctest.Wait()
		return
	}
	redistest.Eventually(t, testTimeout, func() bool { return redistest.Goroutines(engine, counters) == 0 }, "background work must end")
}

// engine and counters occur in the stacks of the library's goroutines that send commands to Redis.
const (
	engine   = "go-rlock/rlock/internal/engine."
	counters = "go-rlock/rlock/internal/counter."
)

func (b fixture) do(t testing.TB, cmd ...string) rueidis.RedisResult {
	t.Helper()
	return b.rdb.Do(context.Background(), b.rdb.B().Arbitrary(cmd...).Build())
}

// fields returns the lock's hash.
func (b fixture) fields(t testing.TB, name string) map[string]int64 {
	t.Helper()
	m := answer(b.do(t, "HGETALL", name).AsIntMap()).ok(t)
	return m
}

// awaitFields waits until the lock's hash equals want.
func (b fixture) awaitFields(t testing.TB, name string, want map[string]int64) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return maps.Equal(b.fields(t, name), want) }, "the hash of the lock")
}

// loseLock deletes a held lock in Redis, and waits for the cancellation of ctx once Redis cannot count the next level.
func (b fixture) loseLock(t testing.TB, ctx context.Context, m *rlock.Mutex) {
	t.Helper()
	require.NoError(t, b.do(t, "DEL", m.Name()).Error())
	_, unlock, err := m.Lock(ctx)
	require.NoError(t, err, "a re-entry must not ask Redis")
	redistest.Within(t, testTimeout, ctx.Done(), "the holder's ctx is cancelled")
	require.ErrorIs(t, unlock(), rlock.ErrLost)
}

// requireLostBy requires that the hold ended no later than then, when another owner had the lock. The timer that cancels
// ctx may fire a little later on a busy machine.
func requireLostBy(t testing.TB, ctx context.Context, then time.Time) {
	t.Helper()
	redistest.Within(t, soon, ctx.Done(), "the holder's ctx is cancelled")
	var lost *rlock.LostError
	require.ErrorAs(t, context.Cause(ctx), &lost)
	require.ErrorIs(t, lost, rlock.ErrLost)
	require.False(t, lost.Since.After(then), "the hold ended %v too late", lost.Since.Sub(then))
}

func (b fixture) exists(t testing.TB, name string) bool {
	t.Helper()
	n := answer(b.do(t, "EXISTS", name).AsInt64()).ok(t)
	return n == 1
}

// foreignOwner is an owner in another process.
const foreignOwner = "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41:1"

// onDeployments runs a test over RESP2, with a sentinel, and on a cluster with either kind of pub/sub.
func onDeployments(t *testing.T, test func(t *testing.T, rdb rueidis.Client, o rlock.Options)) {
	t.Helper()
	sentinel, cluster := redistest.SharedSentinel(t), redistest.SharedCluster(t)
	redistest.Parallel(t)
	for name, dial := range map[string]func(t *testing.T) rueidis.Client{
		"RESP2":                      func(t *testing.T) rueidis.Client { return redistest.Dial(t, redistest.Shared(t), protocol(true)) },
		"sentinel":                   func(t *testing.T) rueidis.Client { return sentinel.Client(t) },
		"cluster":                    func(t *testing.T) rueidis.Client { return cluster.Client(t) },
		"cluster with plain pub/sub": func(t *testing.T) rueidis.Client { return cluster.Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			test(t, dial(t), rlock.Options{PlainPubSub: strings.Contains(name, "plain")})
		})
	}
}

// proxiesOf starts a proxy before each node of a cluster.
func proxiesOf(t *testing.T, c *redistest.Cluster) (all []*redistest.Proxy) {
	t.Helper()
	for _, addr := range c.Addrs() {
		all = append(all, redistest.StartProxy(t, addr))
	}
	return all
}

// locker is a Mutex, or a Mutex locked by TryLock with a fixed wait.
type locker interface {
	Lock(context.Context) (context.Context, rlock.UnlockFunc, error)
}

type tryFor struct {
	*rlock.Mutex
	wait time.Duration
}

func (t tryFor) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return t.TryLock(ctx, t.wait)
}

// lockResult is the result of a Lock, and the time at which it returned.
type lockResult struct {
	ctx    context.Context
	unlock rlock.UnlockFunc
	err    error
	at     time.Time
}

// pendingLock is a Lock running on its own goroutine, which ends with the Lock.
type pendingLock struct {
	result chan lockResult
	cancel context.CancelFunc
}

// lockAsync starts a Lock on its own goroutine.
func lockAsync(t testing.TB, l locker) pendingLock {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p := pendingLock{make(chan lockResult, 1), cancel}
	go func() {
		var a lockResult
		a.ctx, a.unlock, a.err = l.Lock(ctx)
		a.at = time.Now()
		p.result <- a
	}()
	return p
}

func (p pendingLock) get(t testing.TB, within time.Duration) lockResult {
	t.Helper()
	return redistest.Within(t, within, p.result, "Lock returns")
}

// gets requires that the Lock gets the lock in time.
func (p pendingLock) gets(t testing.TB, within time.Duration) lockResult {
	t.Helper()
	a := p.get(t, within)
	require.NoError(t, a.err)
	return a
}

// getAndUnlock requires that the Lock gets the lock in time, and unlocks it.
func (p pendingLock) getAndUnlock(t testing.TB, within time.Duration) {
	t.Helper()
	require.NoError(t, p.gets(t, within).unlock())
}

func (p pendingLock) stillWaits(t testing.TB) {
	t.Helper()
	select {
	case a := <-p.result:
		require.FailNow(t, "Lock returned", "%v", a.err)
	default:
	}
}

// answer is what a call returned.
func answer[T any](value T, err error) answered[T] { return answered[T]{value, err} }

type answered[T any] struct {
	value T
	err   error
}

func (a answered[T]) ok(t testing.TB) T {
	t.Helper()
	require.NoError(t, a.err)
	return a.value
}

func (a answered[T]) is(t testing.TB, want T, says ...any) {
	t.Helper()
	require.NoError(t, a.err)
	require.Equal(t, want, a.value, says...)
}

func (a answered[T]) fails(t testing.TB, why error, says ...any) {
	t.Helper()
	require.ErrorIs(t, a.err, why, says...)
}

// enter locks under ctx.
func enter(t testing.TB, ctx context.Context, l locker) (section context.Context, unlock rlock.UnlockFunc) {
	t.Helper()
	section, unlock, err := l.Lock(ctx)
	require.NoError(t, err)
	return section, unlock
}

func requireLockFails(t testing.TB, ctx context.Context, l locker, why error) {
	t.Helper()
	_, _, err := l.Lock(ctx)
	require.ErrorIs(t, err, why)
}

// async runs f on a goroutine, which ends with f, and delivers its error.
func async(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// within requires that an async call returns in time, and returns its error.
func within(t testing.TB, result <-chan error, d time.Duration) error {
	t.Helper()
	return redistest.Within(t, d, result, "the call returns")
}

// awaitEnd waits until a ctx ends: for a day in the virtual world, which otherwise would go on for ever with a bug that keeps it open.
func awaitEnd(t testing.TB, ctx context.Context) {
	t.Helper()
	atMost := testTimeout
	if redistest.IsVirtual(t) {
		atMost = 24 * time.Hour
	}
	redistest.Within(t, atMost, ctx.Done(), "the ctx ends")
}

// awaitSubscribers waits until the unlock channel of a name has n subscribers.
func (b fixture) awaitSubscribers(t testing.TB, name string, n int) {
	t.Helper()
	channel := "redisson_lock__channel:{" + name + "}"
	redistest.Eventually(t, 10*time.Second, func() bool {
		got, err := b.do(t, "PUBSUB", "NUMSUB", channel).ToArray()
		if err != nil || len(got) != 2 {
			return false
		}
		count, err := got[1].AsInt64()
		return err == nil && count == int64(n)
	}, strconv.Itoa(n)+" subscribers of "+channel)
}

func protocol(resp2 bool) func(*rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) {
		if resp2 {
			o.AlwaysRESP2, o.DisableCache = true, true
		}
	}
}

// requireTook requires an exact time in the virtual world. On a machine it may be later, by less than the watchdog time.
func requireTook(t testing.TB, want time.Duration, began, ended time.Time) {
	t.Helper()
	if redistest.IsVirtual(t) {
		require.Equal(t, want, ended.Sub(began))
	} else {
		require.Less(t, ended.Sub(began), want+rlock.DefaultWatchdogTimeout)
	}
}

// requireTookAtMost requires a time of at most most: exactly in the virtual world, see requireTook.
func requireTookAtMost(t testing.TB, most time.Duration, began, ended time.Time) {
	t.Helper()
	if !redistest.IsVirtual(t) {
		most += rlock.DefaultWatchdogTimeout
	}
	require.LessOrEqual(t, ended.Sub(began), most)
}

// sleep waits for a fixed time. It is for tests about time.
func sleep(d time.Duration) { <-time.After(d) }
