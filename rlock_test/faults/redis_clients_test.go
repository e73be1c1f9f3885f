package faults

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// fill takes all remaining connections of the server, and returns a func that frees them.
func (b *netFixture) fill(t *testing.T) (empty func()) {
	t.Helper()
	require.NoError(t, do(t, b.direct, "CONFIG", "SET", "maxclients", "1").Error()) // existing connections stay
	redistest.Eventually(t, netSlack, func() bool {
		conn, err := net.Dial("tcp", b.server.Addr())
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
		said := make([]byte, 8)
		_, err = conn.Read(said)
		return err == nil && string(said) == "-ERR max"
	}, "no more clients are let in")
	return func() { require.NoError(t, do(t, b.direct, "CONFIG", "SET", "maxclients", "1000").Error()) }
}

// connect makes the clients open every connection they will use for keyed commands. They pick one of four at
// random for each call, and could not open it later.
func (b *netFixture) connect(t *testing.T) {
	t.Helper()
	for range 200 { // P(one is missed) < 4*(3/4)^200
		for _, c := range []*rlock.Client{b.lock, b.other} {
			_, err := c.Mutex(b.name).IsLocked(context.Background())
			require.NoError(t, err)
		}
	}
}

// Fault 3 (maxclients), G4: the server refuses the connection for a waiter's subscription. The waiter keeps
// waiting, and gets the lock when the holder's lease expires, or soon after the server accepts clients again.
func TestRedisSubscriptionRefusedForTooManyClients(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		t.Run(map[bool]string{true: "it ends", false: "it stays"}[ends], func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{})
			b.connect(t)
			const lease = 8 * time.Second
			_, unlock, err := b.other.Mutex(b.name, rlock.WithLease(lease)).Lock(context.Background())
			require.NoError(t, err)
			expiry := b.expiry(t)
			empty := b.fill(t)
			rejected := netInfo(t, b.direct, "rejected_connections")
			waiter := startLock(context.Background(), b.lock.Mutex(b.name))
			redistest.Eventually(t, netSlack, func() bool {
				return netInfo(t, b.direct, "rejected_connections") != rejected
			}, "the subscription is refused")
			waiter.waits(t)
			if ends {
				empty()
				b.awaitSubscribers(t, 1)
				require.NoError(t, unlock())
				got := waiter.within(t, netSlack)
				require.NoError(t, got.err)
				require.True(t, got.at.Before(expiry), "woken by the unlock")
				require.NoError(t, got.unlock())
				return
			}
			require.NoError(t, unlock())
			got := waiter.within(t, time.Until(expiry)+netSlack)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
		})
	}
}

// oneWordOfWelcome makes the handshake a single command. Only then does rueidis pass on the error with which a
// server refuses a connection; with a longer handshake it reports a closed connection.
func oneWordOfWelcome(o *rueidis.ClientOption) {
	o.DisableCache, o.ClientSetInfo = true, rueidis.DisableClientSetInfo
}

// Fault 3 (maxclients), G2, G5: a client loses its connections and cannot reconnect for some seconds. Its calls
// wait as they do when Redis is gone, whether or not they see the reason. An unlock that fails meanwhile is
// completed later.
func TestRedisReconnectRefusedForTooManyClients(t *testing.T) {
	t.Parallel()
	for kind, handshake := range map[string]func(*rueidis.ClientOption){
		"not told why": netProtocols["RESP3"], "told why": oneWordOfWelcome,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{WatchdogTimeout: 12 * time.Second}, handshake)
			ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			_, unlockLong, err := b.lock.Mutex(b.name+":long", rlock.WithLease(time.Minute)).Lock(context.Background())
			require.NoError(t, err)

			refuse := func() func() {
				b.proxy.CutAll()
				return b.fill(t)
			}
			empty := refuse()
			fresh := startLock(context.Background(), b.lock.Mutex(b.name+":new"))
			sleep(time.Second)
			fresh.waits(t)
			empty()
			got := fresh.within(t, netSlack)
			require.NoError(t, got.err, "accepted before Lock gave up")
			require.NoError(t, got.unlock())
			require.NoError(t, ctx.Err())

			empty = refuse()
			err = returned(t, call(unlockLong), 3*time.Second+netSlack)
			require.Error(t, err)
			require.Equal(t, kind == "told why", strings.Contains(err.Error(), "max number of clients"), err)
			empty()
			redistest.Eventually(t, 5*time.Second, func() bool { return !exists(t, b.direct, b.name+":long") }, "released in the background")
			require.NoError(t, ctx.Err(), "renewed in time")
			require.NoError(t, unlock())
			require.True(t, b.free(t))
		})
	}
}

// Fault 3 (maxclients), G5: a full server sends its refusal unasked. If the ctx of a call ends just after
// rueidis v1.0.79 has dialled for it, and the server says something, rueidis panics and the process dies
// (pipe.Close). So no call begins at the end of its unlock's time.
func TestRedisRefusesClientsAtTheEndOfManyUnlocks(t *testing.T) {
	t.Parallel()
	const clients = 100
	b := newNetFixture(t, rlock.Options{}, oneWordOfWelcome)
	var unlocks [clients]rlock.UnlockFunc
	for i := range unlocks {
		c := newClient(t, redistest.Dial(t, b.proxy.Addr(), oneWordOfWelcome), rlock.Options{UnlockTimeout: 2 * time.Second})
		var err error
		_, unlocks[i], err = c.Mutex(b.name + ":" + strconv.Itoa(i)).Lock(context.Background())
		require.NoError(t, err)
	}
	b.proxy.CutAll()
	empty := b.fill(t)
	var wg sync.WaitGroup
	for _, unlock := range unlocks {
		wg.Go(func() { assert.ErrorIs(t, unlock(), rlock.ErrUnreachable) })
	}
	wg.Wait()
	empty()
	redistest.Eventually(t, 2*netSlack, func() bool {
		n, err := do(t, b.direct, "DBSIZE").AsInt64()
		return err == nil && n == 0
	}, "released in the background")
}
