package faults

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// earAlone are options of a holder that checks its locks only every twenty minutes. Anything it learns earlier comes
// from a message, or from the look after its subscription (its ear) was renewed.
var earAlone = rlock.Options{WatchdogTimeout: time.Hour}

// earPatience bounds how long it takes until a holder is asked. While a server is away, a look is repeated after 1, 2, 4, 8 s and so on: as late
// after the outage as that was long, or twice. All that is far below the twenty minutes.
const earPatience = 2 * time.Minute

// earFixture is a deployment that loses a node, with holders who want to know of waiters, and a Client that waits.
type earFixture struct {
	options rlock.Options
	nodes   map[*redistest.Server]rueidis.Client
	dial    func(mod ...func(*rueidis.ClientOption)) rueidis.Client
	rdb     rueidis.Client // of the waiting Client
	waits   *rlock.Client
}

func newEarScene(t *testing.T, o rlock.Options, nodes []*redistest.Server, dial func(mod ...func(*rueidis.ClientOption)) rueidis.Client) *earFixture {
	t.Helper()
	s := &earFixture{options: o, nodes: make(map[*redistest.Server]rueidis.Client), dial: dial, rdb: dial()}
	for _, n := range nodes {
		s.nodes[n] = n.Client(t, redistest.Single, quickToNotice)
	}
	s.waits = newClient(t, s.rdb, o)
	return s
}

// askable is a holder's Client, the proxies in front of it, and its hold.
type askable struct {
	*rlock.Client

	name    string
	proxies []*redistest.Proxy
	lost    atomic.Bool // whether messages to it are dropped
	ctx     context.Context
	unlock  rlock.UnlockFunc
}

// askable takes a lock and has its holder notified of waiters. Its ear listens at from.
func (s *earFixture) askable(t *testing.T, name string) (a *askable, from *redistest.Server) {
	t.Helper()
	return s.holds(t, name, func(c *rlock.Client) *rlock.Mutex { return c.Mutex(name, rlock.WithAsked()) })
}

// holds takes a lock in a Client with an ear that listens at from.
func (s *earFixture) holds(t *testing.T, name string, of func(c *rlock.Client) *rlock.Mutex) (a *askable, from *redistest.Server) {
	t.Helper()
	a = &askable{name: name}
	for n := range s.nodes {
		p := redistest.StartProxy(t, n.Addr())
		p.OnReply(func(cmd []string) redistest.Action {
			if a.lost.Load() && isMessage(cmd) && strings.HasPrefix(cmd[1], "rlock_client:") {
				return redistest.Drop
			}
			return redistest.Pass
		})
		a.proxies = append(a.proxies, p)
	}
	a.Client = newClient(t, s.dial(redistest.Via(a.proxies...)), s.options)
	var err error
	a.ctx, a.unlock, err = of(a.Client).Lock(context.Background())
	require.NoError(t, err)
	return a, s.awaitEar(t, a.Client)
}

// awaitEar waits until messages can reach a Client, and returns the server of its ear.
func (s *earFixture) awaitEar(t *testing.T, c *rlock.Client) (at *redistest.Server) {
	t.Helper()
	ear := "rlock_client:{" + c.ID() + "}"
	redistest.Eventually(t, earPatience, func() bool {
		for n, rdb := range s.nodes {
			if n.Pid() == 0 {
				continue
			}
			for _, how := range []string{"NUMSUB", "SHARDNUMSUB"} {
				if counts, err := do(t, rdb, "PUBSUB", how, ear).AsIntMap(); err == nil && counts[ear] == 1 {
					at = n
					return true
				}
			}
		}
		return false
	}, "the ear")
	return at
}

// awaitWaiter waits until the lock has a waiter, whichever node it subscribes to.
func (s *earFixture) awaitWaiter(t *testing.T, name string) {
	t.Helper()
	redistest.Eventually(t, earPatience, func() bool {
		for n, rdb := range s.nodes {
			if n.Pid() != 0 && max(subscribers(t, rdb, name, false), subscribers(t, rdb, name, true)) > 0 {
				return true
			}
		}
		return false
	}, "somebody waits")
}

// cutOff disconnects it from all servers, or reconnects it.
func (a *askable) cutOff(on bool) {
	for _, p := range a.proxies {
		p.Refuse(on)
		if on {
			p.CutAll()
		}
	}
}

func (a *askable) notAsked(t *testing.T) {
	t.Helper()
	select {
	case <-rlock.Asked(a.ctx):
		require.FailNow(t, "the holder was asked for its lock")
	default:
	}
}

// isAsked waits until the holder is asked for its lock; it unlocks, and the waiter gets the lock.
func (a *askable) isAsked(t *testing.T, w waiter) {
	t.Helper()
	select {
	case <-rlock.Asked(a.ctx):
	case <-time.After(earPatience):
		require.FailNow(t, "nobody asked for the lock", a.name)
	}
	require.NoError(t, a.ctx.Err())
	w.waits(t)
	require.NoError(t, a.unlock())
	require.NoError(t, w.gets(t, earPatience, "given up").unlock())
}

// loses takes a scene through the loss of the node of the first holder's ear. fail makes the node fail, and returns a
// function that waits until another node has replaced it.
func (s *earFixture) loses(t *testing.T, fail func(earsAt *redistest.Server) (settled func())) {
	t.Helper()
	const kept = "kept"
	hears, at := s.askable(t, "hears")
	deaf, _ := s.askable(t, "deaf")
	missed, missedAt := s.askable(t, "missed")
	keeper, _ := s.askable(t, "held")
	lingers := keeper.Mutex(kept, rlock.WithLinger(time.Hour))
	redistest.Eventually(t, patience, func() bool {
		require.NoError(t, lingers.Do(context.Background(), func(context.Context) error { return nil }))
		return keeper.Stats().Idle == 1
	}, "it is kept")

	missed.lost.Store(true)
	early := startStubbornLock(s.waits.Mutex(missed.name))
	s.awaitWaiter(t, missed.name)
	sleep(notice / 10) // the message is on its way
	missed.notAsked(t)

	deaf.cutOff(true)
	settled := fail(at)
	amid := startStubbornLock(s.waits.Mutex(hears.name))
	settled()
	late := startStubbornLock(s.waits.Mutex(deaf.name))
	s.awaitWaiter(t, deaf.name)
	sleep(notice / 10)
	deaf.notAsked(t)
	deaf.cutOff(false)
	missed.lost.Store(false)
	if missedAt != at { // the ear was never interrupted
		missed.cutOff(true)
		missed.cutOff(false)
	}
	hears.isAsked(t, amid)
	deaf.isAsked(t, late)
	missed.isAsked(t, early)

	require.NoError(t, startStubbornLock(s.waits.Mutex(kept)).gets(t, earPatience, "given up").unlock())
	require.NoError(t, keeper.unlock())
}

// Fault 4: the master is killed under holders that want to know of waiters. Their ears follow to the new master. They
// find waiters that asked while the ear was deaf or the message was lost, and a lock that was kept is given up. G4.
func TestSentinelFailoverUnderTheEar(t *testing.T) {
	t.Parallel()
	s := redistest.StartWatchfulSentinel(t)
	allowApp(t, s.Nodes())
	e := newEarScene(t, earAlone, s.Nodes(), func(mod ...func(*rueidis.ClientOption)) rueidis.Client {
		return s.Client(t, append(mod, app)...)
	})
	e.loses(t, func(*redistest.Server) func() {
		replicated(t, e.rdb, "2")
		old := s.Master(t)
		old.Kill()
		return func() { follows(t, e.rdb, old) }
	})
}

// newEarCluster returns a scene on a cluster.
func newEarCluster(t *testing.T, mode string, replicas int) (*earFixture, *redistest.Cluster) {
	t.Helper()
	c := redistest.StartCluster(t, 3, replicas)
	o := earAlone
	o.PlainPubSub = pubSubModes[mode].PlainPubSub
	return newEarScene(t, o, c.Nodes(), func(mod ...func(*rueidis.ClientOption)) rueidis.Client {
		return c.Client(t, append(mod, quickToNotice)...)
	}), c
}

// The same for a cluster's node, with or without locks on it.
func TestClusterFailoverUnderTheEar(t *testing.T) {
	t.Parallel()
	for mode := range pubSubModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e, c := newEarCluster(t, mode, 1)
			e.loses(t, func(at *redistest.Server) func() {
				o := e.options
				o.Replicas, o.ReplicaTimeout = 1, failover
				confirmed := newClient(t, e.rdb, o)
				for _, name := range []string{"hears", "deaf", "missed", "held", "kept"} { // and everything written there before
					require.NoError(t, confirmed.Mutex("{"+name+"}later").Do(context.Background(), func(context.Context) error { return nil }))
				}
				at.Kill()
				return func() { c.AwaitOK(t) }
			})
		})
	}
}

// Fault 4, G4: the slots of the lock and of the ear (a sharded channel) move. The ear follows its slot, and the holder
// finds the waiters it has missed.
func TestSlotOfTheEarMoves(t *testing.T) {
	t.Parallel()
	for mode := range pubSubModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e, c := newEarCluster(t, mode, 0)
			for _, name := range []string{"hears", "missed"} {
				a, _ := e.askable(t, name)
				ear := c.Slot(t, "rlock_client:{"+a.ID()+"}")
				var early waiter
				missed := name == "missed" && !e.options.PlainPubSub
				if missed {
					a.lost.Store(true)
					early = startStubbornLock(e.waits.Mutex(name))
					e.awaitWaiter(t, name)
					sleep(notice / 10)
				}
				for _, slot := range []uint16{c.Slot(t, name), ear} {
					from, to := c.Owner(t, slot), c.Nodes()[0]
					if from == to {
						to = c.Nodes()[1]
					}
					a.notAsked(t)
					c.MigrateSlot(t, slot, from, to)
					if at := e.awaitEar(t, a.Client); slot == ear && !e.options.PlainPubSub {
						require.Equal(t, to.Addr(), at.Addr())
					}
				}
				a.lost.Store(false)
				if !missed {
					early = startStubbornLock(e.waits.Mutex(name))
				}
				a.isAsked(t, early)
			}
		})
	}
}

// blind is a client that knows no node, like a client that connected before the nodes joined.
type blind struct{ rueidis.Client }

func (blind) Nodes() map[string]rueidis.Client { return nil }

// Fault 3, G4: a message to the holder is lost, and its look does not find the waiter: on a cluster with plain channels
// the waiter may be at a node that the holder's client does not know. Once the holder's ear is back, it is asked all
// the same, and gives up a lock it would otherwise keep.
func TestAskedFromUnseenNodes(t *testing.T) {
	t.Parallel()
	e, _ := newEarCluster(t, "plain", 0)
	dial := e.dial
	e.dial = func(mod ...func(*rueidis.ClientOption)) rueidis.Client { return blind{dial(mod...)} }
	mutex := func(o ...rlock.Option) func(c *rlock.Client, name string) *rlock.Mutex {
		return func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name, o...) }
	}
	for name, l := range map[string]struct {
		holds, waits func(c *rlock.Client, name string) *rlock.Mutex
	}{
		"asked": {mutex(rlock.WithAsked()), mutex()},
		"a reader waits": {
			func(c *rlock.Client, name string) *rlock.Mutex { return c.RWMutex(name, rlock.WithAsked()).Write() },
			func(c *rlock.Client, name string) *rlock.Mutex { return c.RWMutex(name).Read() },
		},
		"kept": {mutex(rlock.WithLinger(time.Hour)), mutex()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, _ := e.holds(t, name, func(c *rlock.Client) *rlock.Mutex { return l.holds(c, name) })
			a.lost.Store(true)
			w := startStubbornLock(l.waits(e.waits, name))
			e.awaitWaiter(t, name)
			sleep(notice / 10) // the message is on its way
			a.notAsked(t)
			a.lost.Store(false)
			a.cutOff(true)
			a.cutOff(false)
			if name != "kept" {
				a.isAsked(t, w)
				return
			}
			e.awaitEar(t, a.Client)
			require.NoError(t, a.unlock())
			require.NoError(t, w.gets(t, earPatience, "given up").unlock())
		})
	}
}
