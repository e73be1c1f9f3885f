package pubsub

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

// connections is the lower half of a [Hub]: which channels this process listens to, and by which connection to which
// node. It knows nothing of locks and their waiters: a [listener] says what it needs, and is told.
//
// Lock order: Hub.mu, then connections.mu. So listeners are called without connections.mu. What they are told may be
// over by then: they look at the state. Whoever has seen the new state hears of it afterwards.
type connections struct {
	rdb    rueidis.Client
	grants string                       // suffix of the channels for messages to this process; "": none
	deaf   func(node string, err error) // see Hub.WarnDeaf; nil: nobody is told

	ctx    context.Context // ends with close, and with it every goroutine here
	cancel context.CancelFunc
	wg     sync.WaitGroup // links and the router; once closed is set, only these add to it

	// mu guards the fields below and everything reachable from them, except listeners. It is held for memory
	// operations only, and no other lock is taken under it.
	mu      sync.Mutex
	subs    map[Channel]*subscription
	links   map[string]*link // by node address; plain channels use plainLink
	router  router
	told    map[string]bool // by address of a link: deaf was called
	notices []func()        // for listeners, once mu is released

	draining bool // nothing lingers
	closed   bool // nothing is subscribed
}

// listener listens to a channel. Its methods are called without a lock, and must return at once.
type listener interface {
	// live says that all messages from now on arrive. Those before may have been missed.
	live()
	// lost says that messages do not arrive any more. If the subscription is needed, it is requested again.
	lost()
	// look says that there is no subscription although the server answers, or that the client does not know the
	// channel's node: it learns of it by a command.
	look()
	// refused says that the server refuses the subscription. It is needed no longer.
	refused(err error)
	// heard gets each message on the channel.
	heard(message string)
	// told gets each message to this process alone, on the channel beside it.
	told(message string)
}

func newConnections(rdb rueidis.Client, id string) *connections {
	c := &connections{
		rdb:    rdb,
		subs:   make(map[Channel]*subscription),
		links:  make(map[string]*link),
		router: router{addrs: make(map[uint16]string)},
		told:   make(map[string]bool),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if id != "" {
		c.grants = ":" + id
	}
	return c
}

// lock returns the lock that it takes, for calls of listeners and others that cause no notices.
func (c *connections) lock() *sync.Mutex {
	c.mu.Lock()
	return &c.mu
}

// unlock ends the critical section of an event, and tells the listeners.
func (c *connections) unlock() {
	notices := c.notices
	c.notices = nil
	c.mu.Unlock()
	for _, tell := range notices {
		tell()
	}
}

// drain ends all lingering, now and later.
func (c *connections) drain() {
	defer c.lock().Unlock()
	c.draining = true
	for _, s := range c.subs {
		s.endLinger()
	}
}

// stop is the part of close that does not wait.
func (c *connections) stop() {
	defer c.lock().Unlock()
	c.closed = true
	for _, s := range c.subs {
		s.stopTimer()
	}
}

// close ends all subscriptions, and returns when the goroutines have ended. Each link may leave one that waits for a
// connection from an exhausted pool, see dedicate.
func (c *connections) close() {
	c.stop()
	c.cancel()
	c.wg.Wait()
}

func (c *connections) message(ch Channel, text string) {
	c.mu.Lock()
	heard, told := c.subs[ch].listeners(), c.besideOf(ch, c.grants).listeners()
	c.mu.Unlock()
	for _, sh := range heard {
		sh.listener.heard(text)
	}
	for _, sh := range told {
		sh.listener.told(text)
	}
}

// besideOf returns the subscription beside whose channel ch is, by its suffix. A lock's own name may have that suffix:
// then ch is also that lock's unlock channel.
func (c *connections) besideOf(ch Channel, suffix string) *subscription {
	name, ok := strings.CutSuffix(ch.Name, suffix)
	if s := c.subs[Channel{name, ch.Sharded}]; ok && suffix != "" && s != nil && !s.alone {
		return s
	}
	return nil
}

// outside returns how often the server counts this process as a listener out of line on a channel: 0 or 1.
func (c *connections) outside(ch Channel) int {
	defer c.lock().Unlock()
	if s := c.subs[ch]; s != nil && s.confirmed && !slices.Contains(s.names, InLine(ch).Name) {
		return 1
	}
	return 0
}
