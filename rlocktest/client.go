package rlocktest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/memnet"
	"github.com/go-rlock/rlock/internal/testing/memredis"
	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest/internal/memory"
)

// Client is an [rlock.Client] with its own in-memory Redis, for one test. Give Client.Client, or its locks, to the code under test. The
// other methods are for the test itself: they inspect the locks of this Redis or disturb them. They are safe for concurrent use until the
// test ends.
type Client struct {
	*rlock.Client

	t       testing.TB
	options rlock.Options
	server  *memory.Server
	self    *process
	order   lockOrder
	places  lockPlaces
	bubble  bubble // of New

	mu       sync.Mutex // guards the following
	others   []*process
	fails    int             // open failures of FailRedis
	held     map[string]bool // owners of HoldElsewhere, and ids of permits held elsewhere
	dead     map[string]bool // ids of crashed Clients
	clock    *time.Timer     // until the next run of endless
	patience time.Duration   // the clock's interval
	waiting  []string        // the waiters seen by the last run
}

// process is a simulated process: a Client and its connection to Redis.
type process struct {
	way   *memnet.Way
	redis rueidis.Client
	locks *rlock.Client
}

// New returns a Client for a test, with the zero [rlock.Options]. In a testing/synctest bubble, pass the bubble's t.
//
// New registers a cleanup that reports each lock still held or waited for as a test error, except holds of [Client.HoldElsewhere]. Calls in
// progress get 3 seconds to finish, which pass instantly in a bubble. Then it closes everything: waiting calls return [rlock.ErrClosed],
// and section contexts are cancelled.
func New(t testing.TB) *Client {
	t.Helper()
	return NewWith(t, rlock.Options{})
}

// NewWith is [New] with options. If Options.Replicas is set, as many replicas confirm as requested.
func NewWith(t testing.TB, o rlock.Options) *Client {
	t.Helper()
	s, err := memory.New(memredis.Options{})
	if err != nil {
		t.Fatalf("rlocktest: %v", err)
	}
	c := &Client{t: t, options: o, server: s, held: make(map[string]bool), dead: make(map[string]bool), patience: patience}
	c.bubble = currentBubble()
	c.options.Trace = c.follow(o.Trace)
	if c.self, err = c.newProcess(c.options); err != nil {
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

func (c *Client) newProcess(o rlock.Options) (*process, error) {
	p := new(process)
	var err error
	if p.redis, p.way, err = dial(c.server, c.bubble); err != nil {
		return nil, err
	}
	if p.locks, err = rlock.New(p.redis, o); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *process) close() {
	p.redis.Close()
	p.way.Kill()
}

// processes returns all processes, the one of the code under test first.
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

// end is the test's cleanup.
func (c *Client) end() {
	c.t.Helper()
	if currentBubble() != c.bubble { // where the timer cannot be stopped
		c.t.Errorf("rlocktest: New in a synctest bubble was given a t from outside of it, so the Client is not closed before the bubble ends: " +
			"pass the t that synctest.Test gives its function")
		return
	}
	c.clock.Stop()
	c.self.way.Heal()
	c.report()
	c.closeLocks()
	for _, p := range c.processes() {
		p.close()
	}
	c.server.Close()
}

// Redis returns the embedded Client's connection to the in-memory Redis, for code under test that needs a Redis client or makes its own
// [rlock.Client]. It is closed at the end of the test.
//
// The server is a miniredis: it supports most commands, but no cluster and no replicas. In a bubble it uses the bubble's clock.
func (c *Client) Redis() rueidis.Client { return c.self.redis }

// Elsewhere returns a Client of another, new process with the same Redis and options. Its holds exclude those of the code under test, and
// [Client.FailRedis] does not disconnect it. Unlock its locks, or end it with [Client.Crash]: holds left at the end of the test are
// reported.
func (c *Client) Elsewhere() *rlock.Client {
	c.t.Helper()
	p, err := c.newProcess(c.options)
	if err != nil {
		c.t.Fatalf("rlocktest: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others = append(c.others, p)
	return p.locks
}

// HoldElsewhere makes another process hold the named lock until release is called or the test ends. If the lock cannot be acquired at once,
// the test fails. release may be called more than once.
//
// The lock is a [rlock.Mutex]. For other kinds, such as one side of a read/write lock, use a Client of [Client.Elsewhere].
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

// HoldPermitsElsewhere makes another process hold n permits of the named [rlock.Semaphore] until release is called or the test ends. If
// they cannot be acquired at once, the test fails. release may be called more than once. To simulate a crash with the permits, never call
// it: these permits have no owner.
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

// HoldExpiringPermitsElsewhere makes another process hold and renew n permits (1 to 100) of the named [rlock.PermitSemaphore] until their
// Release is called or the test ends. If they cannot be acquired at once, the test fails, and no permits are taken. To simulate a crash
// with the permits, take them with a Client of [Client.Elsewhere].
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

// LosePermit releases a permit of the named [rlock.PermitSemaphore] under its holder, as an operator could. Others, including waiters, can
// acquire it at once. It picks the lowest slot held by the code under test; if there is none, the test fails. The ctx of the holder's
// section is cancelled with an [rlock.ErrLost] at its Release or its next renewal, about a third of [rlock.Options].WatchdogTimeout later.
// A permit with [rlock.WithLease] is not renewed: its ctx is cancelled when the lease expires.
//
// To release a certain permit, pass its id to Release of a Client of [Client.Elsewhere].
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

// isOther reports whether a Client of Elsewhere has an id with this prefix.
func (c *Client) isOther(client string) bool {
	return slices.ContainsFunc(c.processes()[1:], func(p *process) bool { return strings.HasPrefix(p.locks.ID(), client) })
}

// CountDownElsewhere makes another process count down the named latch. If the latch has no count, the test fails.
func (c *Client) CountDownElsewhere(name string) {
	c.t.Helper()
	l := c.Elsewhere().CountDownLatch(name)
	n, err := l.Count(context.Background())
	if err == nil && n == 0 {
		err = errors.New("the latch has no count")
	}
	if err == nil {
		err = l.CountDown(context.Background())
	}
	if err != nil {
		c.t.Errorf("rlocktest: CountDownElsewhere(%q): %v", name, err)
	}
}

// Crash kills the process of a Client returned by [Client.Elsewhere]. Its holds stay in Redis, without renewal. They expire
// [rlock.Options].WatchdogTimeout (or their [rlock.WithWatchdog]) after the last renewal, or at the end of their [rlock.WithLease]; then
// others get the lock. Its queue places stay, too. The end of the test reports none of these. The test's goroutines that wait for its
// locks, or are in its sections, get [rlock.ErrClosed].
func (c *Client) Crash(elsewhere *rlock.Client) {
	c.t.Helper()
	for _, p := range c.processes()[1:] {
		if p.locks == elsewhere {
			c.mu.Lock()
			c.dead[elsewhere.ID()] = true
			c.mu.Unlock()
			p.way.Kill() // first: nothing of the following may reach Redis
			p.locks.Close()
			return
		}
	}
	c.t.Errorf("rlocktest: Crash: the Client is not from Elsewhere")
}

// Lose deletes the named lock under its holder, as a failover that lost it would. From then on new Locks acquire it; existing waiters ask
// again when the lease they saw expires. The ctx of the holder's section is cancelled with an [rlock.ErrLost] at its unlock or its next
// renewal, about a third of [rlock.Options].WatchdogTimeout later. A hold with [rlock.WithLease] is not renewed: its ctx is cancelled when
// the lease expires. If nobody holds the lock, the test fails.
//
// A lost semaphore has no permits left, and a lost [rlock.PermitSemaphore] no held ones: see also [Client.LosePermit].
func (c *Client) Lose(name string) {
	c.t.Helper()
	if !c.server.Now().Del(c.options.Prefix + name) {
		c.t.Errorf("rlocktest: Lose: nobody holds %q", name)
	}
	for _, key := range c.server.Now().Keys() {
		if gate.MatchString(key) && c.name(key) == name {
			c.server.Del(key)
		}
	}
	c.server.Del(permitsOf(c.options.Prefix + name))
}

// FailRedis disconnects the code under test from Redis until restore is called or the test ends: traffic is lost in both directions, and
// new connections get no answer. Redis itself stays up, so [Client.Elsewhere] and its holds work. Once the network is back, connections
// that lost traffic break. After several calls of FailRedis, the network is back when every restore has been called. Further calls of a
// restore do nothing.
func (c *Client) FailRedis() (restore func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails++
	c.self.way.Silence()
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.fails--; c.fails == 0 {
			c.self.way.Heal()
		}
	})
}

// AssertHeld fails the test unless ctx carries an open hold of the named lock (of either side, for a read/write lock) and Redis confirms
// it. During [Client.FailRedis] an open hold is enough. It checks locks of the embedded Client only, and not the members of a
// [rlock.Quorum].
//
// Call it in code that must run inside a lock, such as a fake store.
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
