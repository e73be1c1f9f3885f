// Package conformance is the test suite for locks of every kind, used as a mutex, on any servers. The kinds are in
// this file, the properties in properties.go. A new kind gets a row here, and one in docs/internals/testing.md.
package conformance

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/rlock"
)

// Deployment is one server or several, as two processes reach them.
type Deployment struct {
	// Run runs one cell of the table of kinds and properties, as a test or in a bubble of its own.
	Run func(t *testing.T, cell func(t *testing.T))
	// Connect returns a client for each of two processes. If cuts is set, it also returns a function that cuts the
	// first process off from the servers, or reconnects it.
	Connect func(t *testing.T, cuts bool) (sides [2]rueidis.Client, cutOff func(off bool))
	// Watchdog is the watchdog time of holds that are renewed or lost while the test looks: a machine that stands still for two thirds of it
	// loses them.
	Watchdog time.Duration
	// Timed are the kinds with which the properties of such holds, and those whose point is time, are tested.
	Timed Kinds
	// Soon is how much later than promised something may happen: nothing but the moment of a timer in a bubble.
	Soon time.Duration
	// UnlockTimeout is for Clients whose servers stay reachable; 0 means the default.
	UnlockTimeout time.Duration
	// Made is called with each new Client, unless it is nil.
	Made func(c *rlock.Client)
}

// Kinds are kinds of locks.
type Kinds int

const (
	AllKinds  Kinds = iota
	PlainLock       // as a smoke test, where time is real
	NoKind
)

func (of Kinds) have(k kind) bool { return of == AllKinds || of == PlainLock && k.name == plain }

// Run tests G1 to G9 on one lock of each kind, as far as that shows them.
func Run(t *testing.T, d Deployment) {
	t.Helper()
	for _, k := range kinds() {
		for _, property := range properties {
			if k.without[property.name] != "" || (property.renewed || property.timed) && !d.Timed.have(k) {
				continue
			}
			t.Run(k.name+"/"+property.name, func(t *testing.T) {
				d.Run(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), atMost)
					defer cancel()
					p := &place{ctx: ctx, name: redistest.Name(t), kind: k, property: property, d: d}
					p.sides, p.cutOff = d.Connect(t, property.cuts)
					a, b := k.handles(t, p)
					property.holds(t, p, a, b)
					p.close()
					p.awaitSilence(t, p.beforeExpiry())
					redistest.Eventually(t, p.beforeExpiry(), func() bool {
						keys := slices.DeleteFunc(p.keys(t), func(key string) bool {
							return k.keeps != "" && strings.HasPrefix(key, k.keeps)
						})
						return len(keys) == 0
					}, "no key is left")
				})
			})
		}
	}
}

// kind is a kind of lock.
type kind struct {
	name string
	// handles returns two handles on the lock place.name, of two Clients made by place.client.
	handles func(t *testing.T, p *place) (a, b rlock.Locker)
	// keys is the number of a hold's keys in Redis.
	keys int
	// without maps the properties that the kind does not have to the reasons.
	without map[string]string
	// keeps is the prefix of keys that outlive every hold.
	keeps string
}

const (
	plain           = "plain"
	reenters        = "re-entry"
	refusesReentry  = "re-entry refused"
	refusedNow      = "refused at once"
	endsByOtherHand = "forced unlock"
	unlockedUnheard = "unlock in silence"
	moves           = "export"
	expires         = "ticket expires"
)

func kinds() []kind {
	// of is a kind whose two sides have a Client each.
	of := func(o rlock.Options, handle func(c *rlock.Client, p *place) rlock.Locker) func(*testing.T, *place) (a, b rlock.Locker) {
		return func(t *testing.T, p *place) (a, b rlock.Locker) {
			return handle(p.client(t, 0, o), p), handle(p.client(t, 1, o), p)
		}
	}
	mutex := func(o rlock.Options, options ...rlock.Option) func(*testing.T, *place) (a, b rlock.Locker) {
		return of(o, func(c *rlock.Client, p *place) rlock.Locker {
			return c.Mutex(p.name, slices.Concat(options, p.property.options)...)
		})
	}
	enters := map[string]string{refusesReentry: "has " + reenters}
	entersOnly := map[string]string{
		refusesReentry: "has " + reenters, endsByOtherHand: "has no such method", moves: "cannot be exported", expires: "cannot be exported",
	}
	return []kind{
		{name: plain, keys: 1, handles: mutex(rlock.Options{}), without: enters},
		{name: "fenced", keys: 2, handles: of(rlock.Options{}, func(c *rlock.Client, p *place) rlock.Locker {
			return c.FencedMutex(p.name, p.property.options...)
		}), without: enters, keeps: "redisson_lock_token:"},
		{name: "WithLinger", keys: 1, handles: mutex(rlock.Options{}, rlock.WithLinger(time.Minute)), without: map[string]string{
			refusesReentry: "has " + reenters, refusedNow: "a TryLock that does not wait may find that the other side keeps the lock",
			unlockedUnheard: "keeps the lock, and sends nothing",
		}},
		{name: "fair", keys: 1, handles: of(rlock.Options{}, func(c *rlock.Client, p *place) rlock.Locker {
			return c.FairMutex(p.name, p.property.options...)
		}), without: map[string]string{refusesReentry: "has " + reenters, moves: "cannot be exported", expires: "cannot be exported"}},
		{name: "write side", keys: 1, handles: of(rlock.Options{}, func(c *rlock.Client, p *place) rlock.Locker {
			return c.RWMutex(p.name, p.property.options...).Write()
		}), without: enters},
		{name: "fenced write side", keys: 2, handles: of(rlock.Options{}, func(c *rlock.Client, p *place) rlock.Locker {
			return c.FencedRWMutex(p.name, p.property.options...).Write()
		}), without: enters, keeps: "redisson_lock_token:"},
		{name: "Upgradeable", keys: 3, handles: of(rlock.Options{}, func(c *rlock.Client, p *place) rlock.Locker {
			return c.RWMutex(p.name, p.property.options...).Upgradeable()
		}), without: entersOnly},
		{name: "All", keys: 2, handles: of(rlock.Options{}, func(c *rlock.Client, p *place) rlock.Locker {
			return rlock.All(c.Mutex(p.name, p.property.options...), c.Mutex(p.name+":beside", p.property.options...))
		}), without: entersOnly},
		{name: "Quorum", keys: 3, handles: func(t *testing.T, p *place) (a, b rlock.Locker) {
			// Three names on one server stand for three servers: the lock does not know that they are one.
			quorum := func(side int) rlock.Locker {
				var members []rlock.Locker
				for _, name := range []string{p.name, p.name + ":2", p.name + ":3"} {
					members = append(members, p.client(t, side, rlock.Options{}).Mutex(name, p.property.options...))
				}
				return rlock.Quorum(members...)
			}
			return quorum(0), quorum(1)
		}, without: map[string]string{
			refusesReentry: "has " + reenters, endsByOtherHand: "has no such method", moves: "cannot be exported", expires: "cannot be exported",
			"count": "a level asks no server", "loss found by a level": "a level asks no server",
			"wake-up here": "nothing shows that one of them waits: they send nothing",
		}},
		{name: "Prefix", keys: 1, handles: mutex(rlock.Options{Prefix: "{shop}:"}), without: enters},
		{name: "WithGrace", keys: 1, handles: mutex(rlock.Options{}, rlock.WithGrace(time.Second)), without: enters},
		{name: "WithoutReentry", keys: 1, handles: mutex(rlock.Options{}, rlock.WithoutReentry()), without: map[string]string{
			reenters: "has " + refusesReentry, "count": "has no levels", "levels in silence": "has no levels", "loss found by a level": "has no levels",
		}},
	}
}

// property is one behaviour of a lock.
type property struct {
	name     string
	holds    func(t *testing.T, p *place, a, b rlock.Locker)
	renewed  bool           // holds live by renewals, or are lost: with Deployment.Watchdog
	timed    bool           // its point is when something ends
	watchdog time.Duration  // 0: longWatchdog
	options  []rlock.Option // of the handles
	cuts     bool           // the first side can be cut off
}

// place is the setting in which one property of one kind is tested: one lock, and two sides that want it, like two
// processes.
type place struct {
	ctx      context.Context // of calls that finish in time if the kind works
	name     string
	kind     kind
	property property
	sides    [2]rueidis.Client
	cutOff   func(bool) // of the first side
	d        Deployment
	clients  [2][]*rlock.Client
}

// client returns a Client of a side, with the watchdog time of the property. A kind may need several for each side.
func (p *place) client(t *testing.T, side int, o rlock.Options) *rlock.Client {
	t.Helper()
	if o.WatchdogTimeout == 0 {
		o.WatchdogTimeout = p.watchdog()
	}
	if o.UnlockTimeout == 0 && !p.property.cuts {
		o.UnlockTimeout = p.d.UnlockTimeout
	}
	c, err := rlock.New(p.sides[side], o)
	require.NoError(t, err)
	if p.d.Made != nil {
		p.d.Made(c)
	}
	t.Cleanup(c.Close)
	p.clients[side] = append(p.clients[side], c)
	return c
}

// closeSide closes the Clients of a side; close closes those of both.
func (p *place) closeSide(side int) {
	for _, c := range p.clients[side] {
		c.Close()
	}
}

// shutDown begins the Shutdown of all Clients of a side, and delivers their errors.
func (p *place) shutDown(ctx context.Context, side int) <-chan error {
	down := make(chan error, len(p.clients[side]))
	for _, c := range p.clients[side] {
		go func() { down <- c.Shutdown(ctx) }() // ends with the Client's holds, or with ctx
	}
	return down
}

func (p *place) close() {
	p.closeSide(0)
	p.closeSide(1)
}

// keys returns the names of all keys of the lock.
func (p *place) keys(t *testing.T) []string { return p.list(t, "KEYS") }

// channels returns all channels of the lock with subscribers.
func (p *place) channels(t *testing.T) []string {
	return append(p.list(t, "PUBSUB", "CHANNELS"), p.list(t, "PUBSUB", "SHARDCHANNELS")...)
}

// awaitSilence waits until nobody is subscribed any more. That may take half a second: subscriptions linger.
func (p *place) awaitSilence(t *testing.T, within time.Duration) {
	t.Helper()
	redistest.Eventually(t, within, func() bool {
		if len(p.channels(t)) == 0 {
			return true
		}
		<-time.After(10 * time.Millisecond) // in a bubble, nothing but the looks takes time
		return false
	}, "no channel is left")
}

func (p *place) list(t *testing.T, cmd ...string) (all []string) {
	t.Helper()
	for _, node := range p.sides[1].Nodes() { // it is never cut off
		some, err := node.Do(t.Context(), node.B().Arbitrary(cmd...).Args("*"+p.name+"*").Build()).AsStrSlice()
		if _, refused := rueidis.IsRedisErr(err); refused { // SHARDCHANNELS, before Redis 7
			continue
		}
		require.NoError(t, err)
		all = append(all, some...)
	}
	slices.Sort(all)
	return all
}

// allHold returns the keys of a hold once all of them are there: Lock returns when most of a quorum is held, and a waiter that comes earlier
// may have the rest for a while.
func (p *place) allHold(t *testing.T) (keys []string) {
	t.Helper()
	redistest.Eventually(t, p.d.Soon, func() bool {
		keys = p.keys(t)
		return len(keys) == p.kind.keys
	}, "all of it is held")
	return keys
}

// awaitCount waits until Redis counts n levels of a hold.
func (p *place) awaitCount(t *testing.T, n int) {
	t.Helper()
	redistest.Eventually(t, p.beforeExpiry(), func() bool {
		most := 0
		for _, key := range p.keys(t) {
			counts, _ := p.sides[1].Do(t.Context(), p.sides[1].B().Hvals().Key(key).Build()).AsStrSlice() // some keys are no hashes
			for _, count := range counts {
				is, _ := strconv.Atoi(count) // one may be the mode
				most = max(most, is)
			}
		}
		return most == n
	}, "the count in Redis")
}

// forget deletes all keys of the lock, like a failover that lost them.
func (p *place) forget(t *testing.T) {
	t.Helper()
	for _, key := range p.keys(t) {
		require.NoError(t, p.sides[1].Do(t.Context(), p.sides[1].B().Del().Key(key).Build()).Error())
	}
}

// lockAndWait returns a Lock that waits, and is subscribed.
func (p *place) lockAndWait(t *testing.T, l rlock.Locker) pending {
	t.Helper()
	waiter := lockAsync(t, l)
	redistest.Eventually(t, 10*time.Second, func() bool { return len(p.channels(t)) > 0 }, "it waits")
	return waiter
}

func (p *place) watchdog() time.Duration {
	if p.property.renewed {
		return p.d.Watchdog
	}
	return cmp.Or(p.property.watchdog, longWatchdog)
}

// beforeExpiry is a time in which no renewed lease ends: a hold gone by then was removed.
func (p *place) beforeExpiry() time.Duration {
	return p.watchdog() * 2 / 3
}

// refused checks that the lock is held, by anybody but ctx.
func (p *place) refused(ctx context.Context, t *testing.T, l rlock.Locker) {
	t.Helper()
	began := time.Now()
	same, unlock, err := l.TryLock(ctx, 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NotErrorIs(t, err, rlock.ErrUnreachable)
	require.Equal(t, ctx, same)
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	require.LessOrEqual(t, time.Since(began), p.d.Soon)
}

// answered waits until Redis has answered the Clients of a side. On a busy machine a Lock may have left calls that it had not answered for longer
// than a TryLock takes for an outage.
func (p *place) answered(t *testing.T, side int) {
	t.Helper()
	for _, c := range p.clients[side] {
		_, err := c.Mutex(p.name).IsLocked(p.ctx)
		require.NoError(t, err)
	}
}

// free checks that the lock can be acquired: at once, or after it has passed by waiters that gave up.
func free(t *testing.T, l rlock.Locker) {
	t.Helper()
	freeUnder(t.Context(), t, l)
}

// freeUnder is free for a Lock under ctx.
func freeUnder(ctx context.Context, t *testing.T, l rlock.Locker) {
	t.Helper()
	_, unlock, err := l.TryLock(ctx, longWatchdog/3)
	require.NoError(t, err)
	require.NoError(t, unlock())
}
