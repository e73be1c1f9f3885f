package rlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// fairFixture is a fair lock that several processes want, each a client of its own.
type fairFixture struct {
	*testing.T
	rdb       rueidis.Client // beside them
	name      string
	processes []*rlock.Client
	expected  int // in the queue
	in        chan string
	running   sync.WaitGroup
}

func newFairFixture(t *testing.T, rdb rueidis.Client, dial func() rueidis.Client, n int, o rlock.Options) *fairFixture {
	t.Helper()
	b := &fairFixture{T: t, rdb: rdb, name: redistest.Name(t), in: make(chan string, 1000)}
	for range n {
		b.processes = append(b.processes, newClient(t, dial(), o))
	}
	t.Cleanup(func() {
		if t.Failed() { // the lock may never become free
			for _, c := range b.processes {
				c.Close()
			}
		}
		b.running.Wait()
	})
	return b
}

// fairStandalone is a fairFixture with its own server, so that nothing else is counted.
func fairStandalone(t *testing.T, n int, o rlock.Options) (*fairFixture, *redistest.Server) {
	t.Helper()
	s := redistest.Start(t)
	return newFairFixture(t, s.Client(t), func() rueidis.Client { return s.Client(t) }, n, o), s
}

// fairProxied is a fairFixture of n processes, and one more behind a network that fails.
func fairProxied(t *testing.T, n int) (*fairFixture, *redistest.Proxy) {
	t.Helper()
	b, s := fairStandalone(t, n, rlock.Options{})
	proxy := redistest.StartProxy(t, s.Addr())
	b.processes = append(b.processes, newClient(t, s.Client(t, redistest.Via(proxy))))
	return b, proxy
}

// heldByAnother makes another library hold the lock for a minute.
func (b *fairFixture) heldByAnother() {
	b.do("HSET", b.name, foreignOwner, "1")
	b.do("PEXPIRE", b.name, "60000")
}

func (b *fairFixture) keys() (list, times string) {
	return "redisson_lock_queue:{" + b.name + "}", "redisson_lock_timeout:{" + b.name + "}"
}

func (b *fairFixture) do(cmd ...string) rueidis.RedisResult {
	return b.rdb.Do(context.Background(), b.rdb.B().Arbitrary(cmd[0]).Keys(cmd[1]).Args(cmd[2:]...).Build())
}

func (b *fairFixture) queue() []string {
	b.Helper()
	list, _ := b.keys()
	all, err := b.do("LRANGE", list, "0", "-1").AsStrSlice()
	require.NoError(b, err)
	return all
}

func (b *fairFixture) awaitQueue(n int) {
	b.Helper()
	b.expected = n
	redistest.Eventually(b.T, testTimeout, func() bool { return len(b.queue()) == n }, fmt.Sprintf("%d wait", n))
}

// lock takes the lock for a process.
func (b *fairFixture) lock(process int) (unlock rlock.UnlockFunc) {
	b.Helper()
	return locked(b.T, b.processes[process].FairMutex(b.name)).unlock
}

// wait has a goroutine of a process wait in the queue; it says its id when it is in, and unlocks at once.
func (b *fairFixture) wait(ctx context.Context, process int, id string) {
	b.Helper()
	b.running.Go(func() {
		_, unlock, err := b.processes[process].FairMutex(b.name).Lock(ctx)
		if ctx.Err() != nil {
			assert.ErrorIs(b, err, rlock.ErrNotAcquired)
			return
		}
		if assert.NoError(b, err) {
			b.in <- id
			assert.NoError(b, unlock())
		}
	})
	b.awaitQueue(b.expected + 1)
}

// requireOrder checks that exactly these get in, in order, and that nothing is left.
func (b *fairFixture) requireOrder(want ...string) {
	b.Helper()
	b.requireEntered(want...)
	b.requireNothingLeft()
}

// requireEntered checks that these got in, in order.
func (b *fairFixture) requireEntered(want ...string) {
	b.Helper()
	var got []string
	for range want {
		got = append(got, redistest.Within(b.T, testTimeout, b.in, fmt.Sprintf("another is in, after %v", got)))
	}
	require.Equal(b, want, got)
}

func (b *fairFixture) requireNothingLeft() {
	b.Helper()
	rwNothing(b.T, b.rdb, b.name)
}
