package redistest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

func TestProxyDelaysWithoutSerialising(t *testing.T) {
	t.Parallel()
	const delay, calls = 200 * time.Millisecond, 20
	r := newRig(t)
	r.Delay(delay)
	begin := time.Now()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if err := r.via.Do(t.Context(), r.via.B().Incr().Key("k").Build()).Error(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ended := time.Now()
	require.GreaterOrEqual(t, ended.Sub(begin), 2*delay)
	require.Less(t, redistest.Ran(t, begin, ended), calls*2*delay/2, "round trips overlap")
}

func TestProxyBlackHole(t *testing.T) {
	t.Parallel()
	r := newRig(t, once)
	live := dialTCP(t, r.Addr())
	roundTrip(t, live)
	r.BlackHole(true)
	require.Error(t, incr1(t, r, 50*time.Millisecond))
	fresh := dialTCP(t, r.Addr())
	for _, conn := range []net.Conn{live, fresh} {
		send(t, conn, "PING\r\n")
		redistest.Eventually(t, soon, func() bool { return r.Swallowed(conn) }, "it is lost")
		expectSilence(t, conn)
	}
	r.BlackHole(false)
	require.Zero(t, r.count(t, "k"))
	for _, conn := range []net.Conn{live, fresh} {
		expectEnd(t, conn) // with a hole in its stream it cannot go on
	}
	redistest.Eventually(t, soon, func() bool { return incr1(t, r, soon) == nil }, "client recovers")
	require.EqualValues(t, 1, r.count(t, "k"))
}

func incr1(t *testing.T, r rig, d time.Duration) error {
	return r.via.Do(within(t, d), r.via.B().Incr().Key("k").Build()).Error()
}

func dialTCP(t *testing.T, addr string) net.Conn {
	conn, err := net.Dial("tcp4", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
}

func expect(t *testing.T, conn net.Conn, want string) {
	_ = conn.SetReadDeadline(time.Now().Add(soon))
	got := make([]byte, len(want))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// expectSilence expects that nothing comes on a connection that stays open.
func expectSilence(t *testing.T, conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// expectEnd expects that the other side closes the connection: with a reset, if it had not read everything.
func expectEnd(t *testing.T, conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(soon))
	_, err := conn.Read(make([]byte, 1))
	require.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET), err)
}

func roundTrip(t *testing.T, conn net.Conn) {
	send(t, conn, "ping\r\n")
	expect(t, conn, "+PONG\r\n")
}

func TestProxyCutAllAndRefuse(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr())
	a, b := dialTCP(t, p.Addr()), dialTCP(t, p.Addr())
	roundTrip(t, a)
	roundTrip(t, b)
	require.Equal(t, 2, p.Conns())

	p.Refuse(true)
	p.Refuse(true)
	roundTrip(t, a) // open connections stay open
	_, err := net.Dial("tcp4", p.Addr())
	require.Error(t, err)
	p.CutAll()
	for _, conn := range []net.Conn{a, b} {
		expectEnd(t, conn)
	}
	redistest.Eventually(t, soon, func() bool { return p.Conns() == 0 }, "connections are gone")
	p.Refuse(false)
	p.Refuse(false)
	roundTrip(t, dialTCP(t, p.Addr()))
}

func TestProxyFollowsItsServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr())
	conn := dialTCP(t, p.Addr())
	roundTrip(t, conn)
	s.Kill()
	expectEnd(t, conn) // the server's end is passed on
	s.Restart()
	roundTrip(t, dialTCP(t, p.Addr()))
}

func TestViaReachesNodesThroughProxies(t *testing.T) {
	t.Parallel()
	cl := redistest.StartCluster(t, 3, 0)
	var proxies []*redistest.Proxy
	for _, n := range cl.Nodes() {
		proxies = append(proxies, redistest.StartProxy(t, n.Addr()))
	}
	c := cl.Client(t, redistest.Via(proxies...), once)
	owner := cl.Owner(t, cl.Slot(t, "k"))
	for i, n := range cl.Nodes() {
		if n == owner {
			proxies[i].OnReply(redistest.Nth(1, "INCR k", redistest.Fail("BUSY proxy")))
		}
	}
	require.ErrorContains(t, c.Do(t.Context(), c.B().Incr().Key("k").Build()).Error(), "BUSY proxy")
	require.NoError(t, c.Do(t.Context(), c.B().Incr().Key("k").Build()).Error())
}

// TestProxyCleanupEndsEverything is not parallel: it counts goroutines of all proxies.
func TestProxyCleanupEndsEverything(t *testing.T) {
	s := redistest.Start(t)
	var client net.Conn
	t.Run("inner", func(t *testing.T) {
		p := redistest.StartProxy(t, s.Addr())
		client = dialTCP(t, p.Addr())
		roundTrip(t, client)
		p.OnReply(redistest.Each("PING", redistest.Hold))
		send(t, client, "PING\r\n")
		redistest.Eventually(t, soon, func() bool { return p.Held() == 1 }, "reply is on hold")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c := redistest.Dial(t, p.Addr(), func(o *rueidis.ClientOption) { o.DisableCache = true })
		p.BlackHole(true)
		_ = dialTCP(t, p.Addr())
		_ = c.Do(ctx, c.B().Get().Key("k").Build())
	})
	redistest.Eventually(t, soon, func() bool { return redistest.ProxyGoroutines() == 0 }, "goroutines are gone")
}

// A process that is being started has a copy of every socket until it runs its program.
func TestProxyListensAgainWhileProcessesStart(t *testing.T) {
	t.Parallel()
	p := redistest.StartProxy(t, redistest.Start(t).Addr())
	over := make(chan struct{})
	var starts sync.WaitGroup
	defer starts.Wait()
	defer close(over)
	for range 4 {
		starts.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					_ = exec.Command("true").Run()
				}
			}
		})
	}
	for range 500 {
		p.Refuse(true)
		p.Refuse(false)
	}
}

// A connection that is just being made when the port is closed is not served: a client that is cut off would go on through it.
func TestProxyRefusesWhatItHasJustAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var over atomic.Bool
	var dialling sync.WaitGroup
	for range 4 {
		dialling.Go(func() {
			for !over.Load() {
				if conn, err := net.Dial("tcp4", r.Addr()); err == nil {
					_, _ = conn.Read(make([]byte, 1)) // until the proxy closes it
					_ = conn.Close()
				}
			}
		})
	}
	for range 200 {
		redistest.Eventually(t, soon, func() bool { return r.Conns() > 0 }, "somebody dials")
		r.Refuse(true)
		r.CutAll()
		redistest.Eventually(t, soon, func() bool { return r.Conns() == 0 }, "nobody is connected")
		r.Refuse(false)
	}
	over.Store(true)
	r.Refuse(true)
	r.CutAll()
	dialling.Wait()
}
