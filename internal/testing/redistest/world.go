package redistest

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/memnet"
)

// Virtual runs a test in the virtual world: in a testing/synctest bubble, where all waiting is over at once and clocks are exact, with
// servers in memory. [Start], [Shared], [StartProxy], [Dial], [Via] and [Eventually] work as in the real world, and so does everything made
// of them; deployments of several real servers don't exist there.
//
// The test binary must import package rlocktest, whose server it is. With RLOCK_TEST_WORLD=real the test runs on real servers. In
// either world, [Shared] is a server of its own.
//
// A test that leaves a goroutine behind fails.
func Virtual(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if realWorld {
		Parallel(t)
		alone.Store(t, sync.OnceValue(func() *Server { return Start(t) }))
		t.Cleanup(func() { alone.Delete(t) })
		test(t)
		return
	}
	inMemory(t, &world{alsoReal: true}, test)
}

// RunVirtual runs a subtest in the virtual world. On real servers, those of all tests run beside each other.
func RunVirtual(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	if test := t.Name(); realWorld && !inParallel(test) && !strings.Contains(test, "/") { // a group ends before its test goes on
		Parallel(t)
	}
	t.Run(name, func(t *testing.T) { Virtual(t, test) })
}

// OnlyVirtual is [Virtual] for a test that real servers can't pass, and says why: it needs exact times, or waits for long. It runs in the
// virtual world even with RLOCK_TEST_WORLD=real.
func OnlyVirtual(t *testing.T, _ string, test func(t *testing.T)) {
	t.Helper()
	inMemory(t, &world{}, test)
}

func inMemory(t *testing.T, w *world, test func(t *testing.T)) {
	t.Helper()
	if inParallel(t.Name()) {
		t.Error("redistest: a bubble has one P, so the real tests that run beside it would starve: don't call Parallel")
	}
	bubble.Test(t, func(t *testing.T) {
		worlds.Store(t, w)
		t.Cleanup(func() { worlds.Delete(t) })
		test(t)
	})
}

// RealWorld reports whether the tests of the virtual world run on real servers, and in real time.
func RealWorld() bool { return realWorld }

var realWorld = os.Getenv("RLOCK_TEST_WORLD") == "real"

// IsVirtual reports whether a test runs in the virtual world.
func IsVirtual(tb testing.TB) bool { return worldOf(tb) != nil }

// Settle waits until nothing happens any more before some time has passed. Only a test of [OnlyVirtual] can know that.
func Settle(tb testing.TB) {
	tb.Helper()
	if w := worldOf(tb); w == nil || w.alsoReal {
		tb.Fatal("redistest: on real servers, where this test runs too, it is not known that nothing happens: call OnlyVirtual, or wait for something")
	}
	synctest.Wait()
}

// alone has the function that starts the server of each test of the virtual world that runs in the real one, by its testing.TB.
var alone sync.Map

// worlds has the world of each test in a bubble, by its testing.TB.
var worlds sync.Map

// world is what a test in the virtual world has instead of a machine.
type world struct {
	memnet.Net

	alsoReal bool // the test runs in the real world, too

	once   sync.Once
	shared *Server
}

// worldOf returns nil for the real world.
func worldOf(tb testing.TB) *world {
	w, _ := worlds.Load(tb)
	mine, _ := w.(*world)
	return mine
}

// Connects makes a client that a program under test is about to create connect in the world of the test.
func Connects(tb testing.TB, opt *rueidis.ClientOption) {
	if w := worldOf(tb); w != nil {
		w.option(opt)
	}
}

// option makes a client connect in memory. The server has no client-side caching, and no commands on a subscribed connection.
func (w *world) option(opt *rueidis.ClientOption) {
	if strings.Contains(strings.Join(opt.InitAddress, ","), ",") {
		panic("redistest: there are no clusters in the virtual world")
	}
	opt.DialCtxFn = func(_ context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return w.Dial(addr)
	}
	opt.DisableCache, opt.AlwaysRESP2, opt.ForceSingleClient = true, true, true
	opt.ReadBufferEachConn, opt.WriteBufferEachConn, opt.RingScaleEachConn = 1<<10, 1<<10, 8
}

// dial connects to an address; without a world, to one of the machine.
func (w *world) dial(addr string) (net.Conn, error) {
	if w != nil {
		return w.Dial(addr)
	}
	return net.DialTimeout("tcp4", addr, startTimeout)
}

func (w *world) listen(addr string) (net.Listener, error) {
	if w != nil {
		return w.Listen(addr), nil
	}
	return net.Listen("tcp4", addr)
}
