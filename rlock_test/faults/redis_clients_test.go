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

// fill takes all connections that the server has left, and returns what gives them back.
func (b *netFixture) fill(t *testing.T) (empty func()) {
	t.Helper()
	require.NoError(t, do(t, b.direct, "CONFIG", "SET", "maxclients", "1").Error()) // those who are in stay
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

// connect has the clients make all connections that they will ever use for keyed commands: of four they pick one
// at random each time, and could not make it later.
func (b *netFixture) connect(t *testing.T) {
	t.Helper()
	for range 200 { // one is left out with 4*(3/4)^200
		for _, c := range []*rlock.Client{b.lock, b.other} {
			_, err := c.Mutex(b.name).IsLocked(context.Background())
			require.NoError(t, err)
		}
	}
}

// Fault 3 (maxclients), G4: the connection for a waiter's subscription is refused. It goes on waiting,
// and has the lock when the holder's lease ends, or soon after clients are let in again.
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

// oneWordOfWelcome makes a client's handshake a single command. Only then does rueidis hand on what a
// server says that refuses a connection; of a longer handshake it tells that the connection has ended.
func oneWordOfWelcome(o *rueidis.ClientOption) {
	o.DisableCache, o.ClientSetInfo = true, rueidis.DisableClientSetInfo
}

// Fault 3 (maxclients), G2, G5: a client loses its connections and is not let in again for some
// seconds. Its calls wait as they do when Redis is gone, whether or not they are told why, and what an
// unlock cannot tell in its time is made up for.
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
			require.NoError(t, got.err, "let in during its patience")
			require.NoError(t, got.unlock())
			require.NoError(t, ctx.Err())

			empty = refuse()
			err = returned(t, call(unlockLong), 3*time.Second+netSlack)
			require.Error(t, err)
			require.Equal(t, kind == "told why", strings.Contains(err.Error(), "max number of clients"), err)
			empty()
			redistest.Eventually(t, 5*time.Second, func() bool { return !exists(t, b.direct, b.name+":long") }, "made up for")
			require.NoError(t, ctx.Err(), "renewed in time")
			require.NoError(t, unlock())
			require.True(t, b.free(t))
		})
	}
}

// Fault 3 (maxclients), G5: a server that lets nobody in says so unasked. A connection that rueidis has just made, when the ctx of the call
// ends that it was for, and that says something, has rueidis v1.0.79 panic, which ends the process (pipe.Close). So no call begins at the
// end of its unlock's time.
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
