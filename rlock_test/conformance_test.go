package rlock_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Every kind of lock, used as a mutex, does the same on whichever servers it is. The properties are in
// conformance_properties_test.go. A new kind gets a row here, and one in docs/testing.md.

// conformanceKind is a kind of lock.
type conformanceKind struct {
	name string
	// handles returns two handles on one lock, called place.name, of two Clients: place.client makes these.
	handles func(t *testing.T, p *place) (a, b rlock.Locker)
	// without names the properties that the kind does not have, and why.
	without map[string]string
	// keeps is what the names of keys begin with that outlive every hold.
	keeps string
	// keys is how many a hold has, if its Lock returns before all of them are there.
	keys int
}

const (
	reenters        = "re-entry"
	refusesReentry  = "re-entry refused"
	endsByOtherHand = "forced unlock"
)

func conformanceKinds() []conformanceKind {
	mutex := func(o rlock.Options, options ...rlock.Option) func(*testing.T, *place) (a, b rlock.Locker) {
		return func(t *testing.T, p *place) (a, b rlock.Locker) {
			return p.client(t, 0, o).Mutex(p.name, options...), p.client(t, 1, o).Mutex(p.name, options...)
		}
	}
	refuses := map[string]string{reenters: "has " + refusesReentry}
	enters := map[string]string{refusesReentry: "has " + reenters}
	return []conformanceKind{
		{name: "plain", handles: mutex(rlock.Options{}), without: enters},
		{name: "fenced", handles: func(t *testing.T, p *place) (a, b rlock.Locker) {
			return p.client(t, 0, rlock.Options{}).FencedMutex(p.name), p.client(t, 1, rlock.Options{}).FencedMutex(p.name)
		}, without: enters, keeps: "redisson_lock_token:"},
		{name: "fair", handles: func(t *testing.T, p *place) (a, b rlock.Locker) {
			return p.client(t, 0, rlock.Options{}).FairMutex(p.name), p.client(t, 1, rlock.Options{}).FairMutex(p.name)
		}, without: enters},
		{name: "write side", handles: func(t *testing.T, p *place) (a, b rlock.Locker) {
			return p.client(t, 0, rlock.Options{}).RWMutex(p.name).Write(), p.client(t, 1, rlock.Options{}).RWMutex(p.name).Write()
		}, without: enters},
		{name: "Upgradeable", handles: func(t *testing.T, p *place) (a, b rlock.Locker) {
			return p.client(t, 0, rlock.Options{}).RWMutex(p.name).Upgradeable(), p.client(t, 1, rlock.Options{}).RWMutex(p.name).Upgradeable()
		}, without: map[string]string{refusesReentry: "has " + reenters, endsByOtherHand: "has no such method"}},
		{name: "All", handles: func(t *testing.T, p *place) (a, b rlock.Locker) {
			both := func(side int) rlock.Locker {
				c := p.client(t, side, rlock.Options{})
				return rlock.All(c.Mutex(p.name), c.Mutex(p.name+":beside"))
			}
			return both(0), both(1)
		}, without: map[string]string{refusesReentry: "has " + reenters, endsByOtherHand: "has no such method"}},
		{name: "Quorum", handles: func(t *testing.T, p *place) (a, b rlock.Locker) {
			// Of three names on one server, where three servers should be: the lock does not know that they are one.
			quorum := func(side int) rlock.Locker {
				var members []rlock.Locker
				for _, name := range []string{p.name, p.name + ":2", p.name + ":3"} {
					members = append(members, p.client(t, side, rlock.Options{}).Mutex(name))
				}
				return rlock.Quorum(members...)
			}
			return quorum(0), quorum(1)
		}, keys: 3, without: map[string]string{
			refusesReentry: "has " + reenters, endsByOtherHand: "has no such method",
			"wake-up here": "nothing shows that one of them waits: they send nothing",
		}},
		{name: "Prefix", handles: mutex(rlock.Options{Prefix: "{shop}:"}), without: enters},
		{name: "WithGrace", handles: mutex(rlock.Options{}, rlock.WithGrace(time.Second)), without: enters},
		{name: "WithoutReentry", handles: mutex(rlock.Options{}, rlock.WithoutReentry()), without: refuses},
	}
}

// conformanceProperty is one thing that a lock does. A place of its own means that it may close a Client, or cut it off.
type conformanceProperty struct {
	name     string
	holds    func(t *testing.T, p *place, a, b rlock.Locker)
	watchdog time.Duration // 0: the default, which no test waits for
	proxies  bool          // the first side reaches Redis through proxies
}

// TestConformance tests G1 to G9 as far as one lock shows them, for each kind and deployment.
func TestConformance(t *testing.T) {
	redistest.Parallel(t)
	for name, start := range map[string]func(*testing.T) deployment{
		"standalone": func(t *testing.T) deployment { return standalone(redistest.Shared(t)) },
		"cluster": func(t *testing.T) deployment {
			c := redistest.StartCluster(t, 3, 0)
			return deployment{c.Addrs(), c.Client}
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			d := start(t)
			var shared [2]rueidis.Client // of the two sides, for all places without proxies
			for side := range shared {
				shared[side] = d.dial(t)
			}
			for _, kind := range conformanceKinds() {
				for _, property := range conformanceProperties {
					if kind.without[property.name] != "" {
						continue
					}
					t.Run(kind.name+"/"+property.name, func(t *testing.T) {
						redistest.Parallel(t)
						ctx, cancel := context.WithTimeout(t.Context(), atMost)
						defer cancel()
						p := &place{ctx: ctx, name: redistest.Name(t), deployment: d, sides: shared, kind: kind, property: property}
						p.watch = []rueidis.Client{shared[1]}
						a, b := kind.handles(t, p)
						property.holds(t, p, a, b)
						p.close()
						redistest.Eventually(t, p.beforeExpiry(), func() bool {
							keys := slices.DeleteFunc(p.keys(t), func(key string) bool {
								return kind.keeps != "" && strings.HasPrefix(key, kind.keeps)
							})
							return len(keys) == 0 && len(p.channels(t)) == 0
						}, "no key and no channel is left")
					})
				}
			}
		})
	}
}

// Each property that a kind is without is one that there is.
func TestConformanceExceptions(t *testing.T) {
	for _, kind := range conformanceKinds() {
		for name := range kind.without {
			require.True(t, slices.ContainsFunc(conformanceProperties, func(p conformanceProperty) bool { return p.name == name }), name)
		}
	}
}

// deployment is one server or several.
type deployment struct {
	addrs []string
	dial  func(t testing.TB, mod ...func(*rueidis.ClientOption)) rueidis.Client
}

func standalone(addr string) deployment {
	return deployment{[]string{addr}, func(t testing.TB, mod ...func(*rueidis.ClientOption)) rueidis.Client {
		return redistest.Dial(t, addr, mod...)
	}}
}

// place is where one property of one kind is looked at: one lock, and two sides that want it, like two processes.
type place struct {
	ctx        context.Context // of calls that do not take that long, if the kind is well
	name       string
	deployment deployment
	sides      [2]rueidis.Client
	watch      []rueidis.Client // of all servers concerned, past the proxies
	kind       conformanceKind
	property   conformanceProperty
	proxies    []*redistest.Proxy
	clients    [2][]*rlock.Client
}

// client returns a Client of a side, with the watchdog time that the property needs. A kind may need several for each side.
func (p *place) client(t *testing.T, side int, o rlock.Options) *rlock.Client {
	t.Helper()
	if p.property.proxies && p.proxies == nil {
		for _, addr := range p.deployment.addrs {
			p.proxies = append(p.proxies, redistest.StartProxy(t, addr))
		}
		p.sides[0] = p.deployment.dial(t, redistest.Via(p.proxies...))
	}
	if o.WatchdogTimeout == 0 {
		o.WatchdogTimeout = p.property.watchdog
	}
	c := newClient(t, p.sides[side], o)
	p.clients[side] = append(p.clients[side], c)
	return c
}

// closeSide closes the Clients of a side, and close those of both.
func (p *place) closeSide(side int) {
	for _, c := range p.clients[side] {
		c.Close()
	}
}

func (p *place) close() {
	p.closeSide(0)
	p.closeSide(1)
}

// beforeExpiry is a time in which no lease ends that the watchdog has kept: what is gone by then was taken away.
func (p *place) beforeExpiry() time.Duration {
	return cmp.Or(p.property.watchdog, rlock.DefaultWatchdogTimeout) * 2 / 3
}

// cutOff lets the first side have no answers any more, or again.
func (p *place) cutOff(off bool) {
	for _, proxy := range p.proxies {
		proxy.BlackHole(off)
	}
}

// keys returns the names of all keys of the lock.
func (p *place) keys(t *testing.T) []string { return p.list(t, "KEYS") }

// channels returns all channels of the lock to which anybody is subscribed.
func (p *place) channels(t *testing.T) []string {
	return append(p.list(t, "PUBSUB", "CHANNELS"), p.list(t, "PUBSUB", "SHARDCHANNELS")...)
}

// subscribers counts the processes that are subscribed to the unlock channel of a plain lock.
func (p *place) subscribers(t *testing.T) (n int) {
	t.Helper()
	for _, rdb := range p.watch {
		for _, node := range rdb.Nodes() {
			for _, cmd := range []string{"NUMSUB", "SHARDNUMSUB"} {
				channel := "redisson_lock__channel:{" + p.name + "}"
				counts, err := node.Do(t.Context(), node.B().Arbitrary("PUBSUB", cmd, channel).Build()).ToArray()
				if _, refused := rueidis.IsRedisErr(err); refused { // SHARDNUMSUB, before Redis 7
					continue
				}
				require.NoError(t, err)
				count, err := counts[1].AsInt64()
				require.NoError(t, err)
				n += int(count)
			}
		}
	}
	return n
}

func (p *place) list(t *testing.T, cmd ...string) (all []string) {
	t.Helper()
	for _, rdb := range p.watch {
		for _, node := range rdb.Nodes() {
			some, err := node.Do(t.Context(), node.B().Arbitrary(cmd...).Args("*"+p.name+"*").Build()).AsStrSlice()
			if _, refused := rueidis.IsRedisErr(err); refused { // SHARDCHANNELS, before Redis 7
				continue
			}
			require.NoError(t, err)
			all = append(all, some...)
		}
	}
	slices.Sort(all)
	return all
}

// forget deletes all keys of the lock, as a failover does that lost them.
func (p *place) forget(t *testing.T) {
	t.Helper()
	for _, rdb := range p.watch {
		for _, key := range p.keys(t) {
			require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key(key).Build()).Error())
		}
	}
}

// lockAndWait returns a Lock that waits, and is subscribed.
func (p *place) lockAndWait(t *testing.T, l rlock.Locker) pending {
	t.Helper()
	waiter := lockAsync(t, l)
	redistest.Eventually(t, 10*time.Second, func() bool { return len(p.channels(t)) > 0 }, "it waits")
	return waiter
}

// refused says that the lock is held, by anybody but ctx. An attempt is given a second at least: a machine that took longer to answer is
// asked with more time.
func refused(ctx context.Context, t *testing.T, l rlock.Locker) {
	t.Helper()
	began := time.Now()
	same, unlock, err := l.TryLock(ctx, 0)
	if errors.Is(err, rlock.ErrUnreachable) && time.Since(began) >= time.Second {
		began = time.Now().Add(5 * time.Second)
		same, unlock, err = l.TryLock(ctx, 5*time.Second)
	}
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NotErrorIs(t, err, rlock.ErrUnreachable)
	require.Equal(t, ctx, same)
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	require.Less(t, time.Since(began), soon)
}

// free says that the lock can be had: at once, or when it has passed those by that gave up.
func free(t *testing.T, l rlock.Locker) {
	t.Helper()
	freeUnder(t.Context(), t, l)
}

// freeUnder is free for a Lock under ctx.
func freeUnder(ctx context.Context, t *testing.T, l rlock.Locker) {
	t.Helper()
	_, unlock, err := l.TryLock(ctx, rlock.DefaultWatchdogTimeout/3)
	require.NoError(t, err)
	require.NoError(t, unlock())
}
