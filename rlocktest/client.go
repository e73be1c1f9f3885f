package rlocktest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// Client is an [rlock.Client] on a Redis of its own, in memory, for one test. Hand Client.Client to the code under test, or its
// locks. The other methods are for the test: they look at the locks of this Redis, or have something happen to them. They are safe
// for concurrent use until the test ends.
type Client struct {
	*rlock.Client

	t       testing.TB
	options rlock.Options
	server  *miniredis.Miniredis
	self    *process
	order   lockOrder

	mu       sync.Mutex // guards the following
	others   []*process
	held     map[string]bool // the owners of HoldElsewhere, and the ids of permits that are held elsewhere
	dead     map[string]bool // the ids of Clients that Crash ended
	clock    *time.Timer     // until endless looks again
	patience time.Duration   // for how long that is
	waiting  []string        // what it has seen
}

// process is what one process has: a way to Redis, and a Client.
type process struct {
	net   *network
	redis rueidis.Client
	locks *rlock.Client
}

// New returns a Client for a test, with the zero [rlock.Options]. In a bubble of testing/synctest, t is the bubble's.
//
// When the test has ended, New's clean-up reports each lock that is still held or waited for as an error of the test, but not those of
// [Client.HoldElsewhere]. Calls that are under way are given 3 seconds to come to an end, which take no time in a bubble. Then it
// closes everything: waiting calls return [rlock.ErrClosed], and the contexts of sections are cancelled.
func New(t testing.TB) *Client {
	t.Helper()
	return NewWith(t, rlock.Options{})
}

// NewWith is [New] with options. With Options.Replicas, as many replicas confirm as are asked for.
func NewWith(t testing.TB, o rlock.Options) *Client {
	t.Helper()
	s, err := newServer()
	if err != nil {
		t.Fatalf("rlocktest: %v", err)
	}
	c := &Client{t: t, options: o, server: s, held: make(map[string]bool), dead: make(map[string]bool), patience: patience}
	c.options.Trace = c.order.follow(o.Trace)
	if c.self, err = c.newProcess(); err != nil {
		s.Close()
		t.Fatalf("rlocktest: %v", err)
	}
	c.Client = c.self.locks
	c.mu.Lock()
	c.clock = time.AfterFunc(patience, c.endless)
	c.mu.Unlock()
	t.Cleanup(c.end)
	return c
}

func (c *Client) newProcess() (*process, error) {
	p := &process{net: newNetwork()}
	var err error
	if p.redis, err = dial(c.server, p.net); err != nil {
		return nil, err
	}
	if p.locks, err = rlock.New(p.redis, c.options); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *process) close() {
	p.redis.Close()
	p.net.close()
}

// processes returns all of them, that of the code under test first.
func (c *Client) processes() []*process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*process{c.self}, c.others...)
}

// closeLocks closes the Clients of all processes, which ends all calls.
func (c *Client) closeLocks() {
	for _, p := range c.processes() {
		p.locks.Close()
	}
}

// end is the last thing that happens.
func (c *Client) end() {
	c.clock.Stop()
	c.self.net.restoreAll()
	c.report()
	c.closeLocks()
	for _, p := range c.processes() {
		p.close()
	}
	c.server.Close()
}

// Redis returns a client of the Redis in memory, for code under test that needs one, or makes its own [rlock.Client]. It is that of
// the embedded Client, and closed with it at the end of the test.
//
// The server is a miniredis: it has most commands, and neither a cluster nor replicas. In a bubble its clock is the bubble's.
func (c *Client) Redis() rueidis.Client { return c.self.redis }

// Elsewhere returns a Client of another process that uses the same Redis with the same options: its holds exclude those of the code
// under test, and [Client.FailRedis] does not cut it off. Each call returns another one. Unlock what it locks, or have it die with
// [Client.Crash]: what is left held is reported.
func (c *Client) Elsewhere() *rlock.Client {
	c.t.Helper()
	p, err := c.newProcess()
	if err != nil {
		c.t.Fatalf("rlocktest: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others = append(c.others, p)
	return p.locks
}

// HoldElsewhere has another process hold the lock called name, until release is called or the test ends. If the lock cannot be had at
// once, that is an error of the test. release may be called more than once.
//
// The hold is that of a [rlock.Mutex]. For one side of a read/write lock, say, lock the one that [Client.Elsewhere] makes.
func (c *Client) HoldElsewhere(name string) (release func()) {
	c.t.Helper()
	ctx, unlock, err := c.Elsewhere().Mutex(name).TryLock(context.Background(), 0)
	if err != nil {
		c.t.Errorf("rlocktest: HoldElsewhere: %v", err)
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[rlock.Owner(ctx)] = true
	return sync.OnceFunc(func() {
		c.t.Helper()
		if err := unlock(); err != nil && !errors.Is(err, rlock.ErrLost) {
			c.t.Errorf("rlocktest: HoldElsewhere: %v", err)
		}
	})
}

// HoldPermitsElsewhere has another process take n permits of the [rlock.Semaphore] called name, until release is called or the test ends. If they
// cannot be had at once, that is an error of the test. release may be called more than once. To have the process die with them, do not call it:
// nobody owns such permits.
func (c *Client) HoldPermitsElsewhere(name string, n int64) (release func()) {
	c.t.Helper()
	s := c.Elsewhere().Semaphore(name)
	if err := s.TryAcquire(context.Background(), n, 0); err != nil {
		c.t.Errorf("rlocktest: HoldPermitsElsewhere: %v", err)
		return func() {}
	}
	return sync.OnceFunc(func() {
		c.t.Helper()
		if err := s.Release(context.Background(), n); err != nil {
			c.t.Errorf("rlocktest: HoldPermitsElsewhere: %v", err)
		}
	})
}

// HoldExpiringPermitsElsewhere has another process take n permits, from 1 to 100, of the [rlock.PermitSemaphore] called name, and renew them until
// their Release is called or the test ends. If they cannot be had at once, that is an error of the test, and there are none. To have the process
// die with them, take them with a Client of [Client.Elsewhere].
func (c *Client) HoldExpiringPermitsElsewhere(name string, n int) *rlock.Permit {
	c.t.Helper()
	_, p, err := c.Elsewhere().PermitSemaphore(name).TryAcquireN(context.Background(), n, 0)
	if err != nil {
		c.t.Errorf("rlocktest: HoldExpiringPermitsElsewhere: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range p.IDs() {
		c.held[id] = true
	}
	return p
}

// LosePermit ends a permit of the [rlock.PermitSemaphore] called name under its holder, as an operator does who gives it back: others can have it at
// once, also those that wait. Of the permits that the code under test holds it is the one with the lowest slot; if there is none, that is an error of
// the test. The ctx of the holder's section is cancelled with an [rlock.ErrLost] by its Release or its next renewal, about a third of
// [rlock.Options].WatchdogTimeout later. A permit with [rlock.WithLease] is not renewed, so that is when its lease is over.
//
// To end a certain one, have [Client.Elsewhere] release its id.
func (c *Client) LosePermit(name string) {
	c.t.Helper()
	for _, p := range c.permits(c.options.Prefix + name) {
		if c.isOther(p.client) {
			continue
		}
		if err := c.Elsewhere().PermitSemaphore(name).Release(context.Background(), p.id); err != nil {
			c.t.Errorf("rlocktest: LosePermit: %v", err)
		}
		return
	}
	c.t.Errorf("rlocktest: LosePermit: the code under test holds no permit of %q", name)
}

// isOther reports whether a process of Elsewhere has a Client whose id begins so.
func (c *Client) isOther(client string) bool {
	return slices.ContainsFunc(c.processes()[1:], func(p *process) bool { return strings.HasPrefix(p.locks.ID(), client) })
}

// CountDownElsewhere has another process count down the latch called name. If it has no count, that is an error of the test.
func (c *Client) CountDownElsewhere(name string) {
	c.t.Helper()
	l := c.Elsewhere().CountDownLatch(name)
	n, err := l.Count(context.Background())
	if err == nil && n == 0 {
		err = errors.New("it has no count")
	}
	if err == nil {
		err = l.CountDown(context.Background())
	}
	if err != nil {
		c.t.Errorf("rlocktest: CountDownElsewhere(%q): %v", name, err)
	}
}

// Crash has the process of a Client that [Client.Elsewhere] returned die at this moment. What it holds stays in Redis, and is renewed no
// more: others get the lock when its lease is over, which is [rlock.Options].WatchdogTimeout or its [rlock.WithWatchdog] after the last
// renewal, or that of its [rlock.WithLease]. A place in a queue stays, too, and nothing of all that is reported at the end of the test. Goroutines of the test
// that wait for its locks, or are in its sections, cannot die with it: they are told that their Client is closed.
func (c *Client) Crash(elsewhere *rlock.Client) {
	c.t.Helper()
	for _, p := range c.processes()[1:] {
		if p.locks == elsewhere {
			c.mu.Lock()
			c.dead[elsewhere.ID()] = true
			c.mu.Unlock()
			p.net.close() // before all else: nothing of what follows reaches Redis
			p.locks.Close()
			return
		}
	}
	c.t.Errorf("rlocktest: Crash: that Client is not one of Elsewhere")
}

// Lose ends the hold that somebody has on the lock called name, as a failover does that forgot it: its key is gone. From then on
// others can have the lock, if they ask; those that wait already ask when the lease that they saw is over. The ctx of the holder's section
// is cancelled with an [rlock.ErrLost] by its unlock or its next renewal, about a third of [rlock.Options].WatchdogTimeout later. A
// hold with [rlock.WithLease] is not renewed, so that is when its lease is over. If nobody holds the lock, that is an error of the test.
//
// A semaphore that is lost has no permits any more, and all that were held of an [rlock.PermitSemaphore] are gone: see also [Client.LosePermit].
func (c *Client) Lose(name string) {
	c.t.Helper()
	if !c.server.Del(c.options.Prefix + name) {
		c.t.Errorf("rlocktest: Lose: nobody holds %q", name)
	}
	for _, key := range c.server.Keys() {
		if gate.MatchString(key) && c.name(key) == name {
			c.server.Del(key)
		}
	}
	c.server.Del(permitsOf(c.options.Prefix + name))
}

// FailRedis cuts this process off from Redis, until restore is called or the test ends: what is sent is lost, in both directions, and
// new connections are not answered. The Redis lives on, so [Client.Elsewhere] and its holds work. Connections that have lost something
// break when the network is restored. If FailRedis was called more than once, that is when each restore was called; calling one again
// does nothing.
func (c *Client) FailRedis() (restore func()) {
	c.self.net.fail()
	return sync.OnceFunc(c.self.net.restore)
}

// AssertHeld reports an error of the test unless ctx carries an open hold of the lock called name, on whichever side if it is a
// read/write lock, and Redis has it, too. While [Client.FailRedis] keeps Redis from being asked, an open hold is enough. It is about
// locks of the embedded Client, and members of a [rlock.Quorum] are none.
//
// It belongs where the code under test has to be inside a lock, such as the fake of its store.
func (c *Client) AssertHeld(ctx context.Context, name string) {
	c.t.Helper()
	rw := c.RWMutex(name)
	var errs []string
	for _, m := range []*rlock.Mutex{c.Mutex(name), rw.Read(), rw.Write()} {
		held, err := m.IsHeld(context.WithoutCancel(ctx))
		switch {
		case held || errors.Is(err, rlock.ErrUnreachable):
			return
		case err != nil:
			errs = append(errs, err.Error())
		}
	}
	state := "the lock is free"
	if owners := c.owners(c.options.Prefix + name); len(owners) > 0 {
		state = "the lock is held by " + strings.Join(owners, ", ")
	}
	c.t.Errorf("rlocktest: the ctx carries no hold of %q: %s", name, strings.Join(append(errs, state), ": "))
}
