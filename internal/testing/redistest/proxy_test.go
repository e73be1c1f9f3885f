package redistest_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// once makes a client send every command at most once.
func once(o *rueidis.ClientOption) { o.DisableRetry = true }

// impatient also makes it give up soon on a silent connection. It is not for tests that must tolerate a slow machine.
func impatient(o *rueidis.ClientOption) {
	once(o)
	o.ConnWriteTimeout = time.Second
	o.Dialer.KeepAlive = 100 * time.Millisecond
}

func resp2(o *rueidis.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true }

// rig is a server, a proxy before it, a client through the proxy, and a direct client.
type rig struct {
	*redistest.Proxy
	server   *redistest.Server
	far, via rueidis.Client
}

func newRig(t *testing.T, mod ...func(*rueidis.ClientOption)) rig {
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr())
	return rig{p, s, s.Client(t), redistest.Dial(t, p.Addr(), mod...)}
}

// incr runs a script by EVALSHA that counts its runs under key.
func incr(t *testing.T, c rueidis.Client, key string) error {
	return c.Do(within(t, soon), c.B().Arbitrary("EVALSHA", incrSHA(t, c), "1").Keys(key).Build()).Error()
}

func incrSHA(t *testing.T, c rueidis.Client) string {
	sha, err := c.Do(within(t, soon), c.B().ScriptLoad().Script("return redis.call('incr',KEYS[1])").Build()).ToString()
	require.NoError(t, err)
	return sha
}

// count returns how often incr has run.
func (r rig) count(t *testing.T, key string) int64 {
	n, err := r.far.Do(within(t, soon), r.far.B().Get().Key(key).Build()).AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0
	}
	require.NoError(t, err)
	return n
}

func TestProxyPassesEverything(t *testing.T) {
	t.Parallel()
	for _, mod := range []func(*rueidis.ClientOption){func(*rueidis.ClientOption) {}, resp2} {
		r := newRig(t, mod)
		var requests, replies atomic.Int64
		r.OnRequest(func(cmd []string) redistest.Action {
			if cmd[0] == "SET" || cmd[0] == "GET" {
				requests.Add(1)
			}
			return redistest.Pass
		})
		r.OnReply(func(cmd []string) redistest.Action {
			if cmd[0] == "SET" || cmd[0] == "GET" {
				replies.Add(1)
			}
			return redistest.Pass
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				key := fmt.Sprintf("k%d", i)
				for j := range 50 {
					value := fmt.Sprintf("%d\r\n%d", i, j)
					if err := r.via.Do(t.Context(), r.via.B().Set().Key(key).Value(value).Build()).Error(); err != nil {
						t.Error(err)
					}
					if got, err := r.via.Do(t.Context(), r.via.B().Get().Key(key).Build()).ToString(); err != nil || got != value {
						t.Errorf("%q %v", got, err)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 2000, requests.Load())
		require.EqualValues(t, 2000, replies.Load())
	}
}

func TestProxyCutsTheNthReply(t *testing.T) {
	t.Parallel()
	r := newRig(t, once)
	r.OnReply(redistest.Nth(2, "EVALSHA", redistest.Cut))
	require.NoError(t, incr(t, r.via, "k"))
	require.Error(t, incr(t, r.via, "k"))
	require.EqualValues(t, 2, r.count(t, "k"), "the server ran it")
	require.NoError(t, incr(t, r.via, "k"))
}

func TestProxyCutsARequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, once)
	r.OnRequest(redistest.Nth(1, "evalsha "+incrSHA(t, r.far), redistest.Cut))
	require.Error(t, incr(t, r.via, "k"))
	require.Zero(t, r.count(t, "k"), "the server never saw it")
	require.NoError(t, incr(t, r.via, "k"))
}

func TestProxyDropsAReply(t *testing.T) {
	t.Parallel()
	r := newRig(t, impatient)
	r.OnReply(redistest.Nth(1, "EVALSHA", redistest.Drop))
	require.Error(t, incr(t, r.via, "k"))
	require.EqualValues(t, 1, r.count(t, "k"), "the server ran it")
	require.NoError(t, incr(t, r.via, "k"), "the client found out and connected anew")
	require.EqualValues(t, 2, r.count(t, "k"))
}

func TestProxyIsSilentAfterADrop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.OnReply(redistest.Nth(1, "INCR", redistest.Drop))
	conn := dialTCP(t, r.Addr())
	send(t, conn, "PING\r\nINCR k\r\nPING\r\n")
	expect(t, conn, "+PONG\r\n")
	redistest.Eventually(t, soon, func() bool { return r.count(t, "k") == 1 }, "the server ran it")
	expectSilence(t, conn) // the second PONG would be taken for the answer to INCR
}

func TestProxyDropsARequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, impatient)
	r.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Drop))
	require.Error(t, incr(t, r.via, "k"))
	require.Zero(t, r.count(t, "k"))
	require.NoError(t, incr(t, r.via, "k"))
}

func TestProxyHoldsAReplyAndAllBehindIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.OnReply(redistest.Nth(1, "INCR", redistest.Hold))
	conn, other := dialTCP(t, r.Addr()), dialTCP(t, r.Addr())
	send(t, conn, "PING\r\nINCR k\r\nPING\r\n")
	expect(t, conn, "+PONG\r\n")
	redistest.Eventually(t, soon, func() bool { return r.Held() == 1 }, "reply is on hold")
	require.EqualValues(t, 1, r.count(t, "k"))
	expectSilence(t, conn)
	roundTrip(t, other)
	r.Release()
	expect(t, conn, ":1\r\n+PONG\r\n")
	require.Zero(t, r.Held())
}

func TestProxyDeliversAHeldRequestOfAGoneClient(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.OnRequest(redistest.Nth(1, "INCR", redistest.Hold))
	c := redistest.Dial(t, r.Addr(), once)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	gone := make(chan error, 1)
	go func() { gone <- c.Do(ctx, c.B().Incr().Key("k").Build()).Error() }() // ended by giveUp
	redistest.Eventually(t, soon, func() bool { return r.Held() == 1 }, "request is on hold")
	giveUp()
	require.ErrorIs(t, next(t, gone), context.Canceled)
	c.Close()
	require.Zero(t, r.count(t, "k"))
	r.Release()
	redistest.Eventually(t, soon, func() bool { return r.count(t, "k") == 1 }, "the late request arrives")
}

func TestProxyFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, once)
	r.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Fail("LOADING by request")))
	require.ErrorContains(t, incr(t, r.via, "k"), "LOADING by request")
	require.Zero(t, r.count(t, "k"))
	require.NoError(t, incr(t, r.via, "k"))
	r.OnReply(redistest.Each("EVALSHA", redistest.Fail("BUSY by reply")))
	for range 2 {
		require.ErrorContains(t, incr(t, r.via, "k"), "BUSY by reply")
	}
	require.EqualValues(t, 3, r.count(t, "k"))
	require.NoError(t, ping(t, r.via, soon))
}

// listen subscribes through the proxy; it returns the confirmations and the messages.
func listen(t *testing.T, c rueidis.Client, channel string) (confirmed, heard chan string) {
	confirmed, heard = make(chan string, 16), make(chan string, 16)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) { confirmed <- s.Kind })
	go func() { // ended by the clean-up
		defer close(ended)
		_ = c.Receive(hooked, c.B().Subscribe().Channel(channel).Build(), func(m rueidis.PubSubMessage) { heard <- m.Message })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return confirmed, heard
}

// next receives a value that must come soon.
func next[T any](t *testing.T, ch <-chan T) T {
	select {
	case v := <-ch:
		return v
	case <-within(t, soon).Done():
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func (r rig) publish(t *testing.T, channel, message string) int64 {
	n, err := r.far.Do(within(t, soon), r.far.B().Publish().Channel(channel).Message(message).Build()).AsInt64()
	require.NoError(t, err)
	return n
}

func TestProxyHoldsTheFirstSubscribe(t *testing.T) {
	t.Parallel()
	for _, mod := range []func(*rueidis.ClientOption){func(*rueidis.ClientOption) {}, resp2} {
		r := newRig(t, mod)
		r.OnRequest(redistest.Nth(1, "SUBSCRIBE", redistest.Hold))
		confirmed, heard := listen(t, r.via, "c")
		redistest.Eventually(t, soon, func() bool { return r.Held() == 1 }, "SUBSCRIBE is on hold")
		require.Zero(t, r.publish(t, "c", "lost"))
		require.Empty(t, confirmed)
		r.Release()
		require.Equal(t, "subscribe", next(t, confirmed))
		require.EqualValues(t, 1, r.publish(t, "c", "heard"))
		require.Equal(t, "heard", next(t, heard))
	}
}

func TestProxyHoldsAConfirmation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.OnReply(redistest.Nth(1, "SUBSCRIBE c", redistest.Hold))
	confirmed, heard := listen(t, r.via, "c")
	redistest.Eventually(t, soon, func() bool { return r.Held() == 1 }, "confirmation is on hold")
	require.EqualValues(t, 1, r.publish(t, "c", "early"))
	require.Empty(t, confirmed)
	r.Release()
	require.Equal(t, "subscribe", next(t, confirmed))
	require.Equal(t, "early", next(t, heard))
}

func TestProxyDropsAMessageAlone(t *testing.T) {
	t.Parallel()
	for _, mod := range []func(*rueidis.ClientOption){func(*rueidis.ClientOption) {}, resp2} {
		r := newRig(t, mod)
		r.OnReply(redistest.Nth(1, "MESSAGE c", redistest.Drop))
		confirmed, heard := listen(t, r.via, "c")
		next(t, confirmed)
		r.publish(t, "c", "lost")
		r.publish(t, "c", "heard")
		require.Equal(t, "heard", next(t, heard))
		require.NoError(t, ping(t, r.via, soon))
	}
}

func TestProxyCutsASubscriptionAndTheClientReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	confirmed, heard := listen(t, r.via, "c")
	next(t, confirmed)
	r.CutAll()
	next(t, confirmed) // again, on a new connection
	r.publish(t, "c", "heard")
	require.Equal(t, "heard", next(t, heard))
}
