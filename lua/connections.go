package lua

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// maxAsking bounds the goroutines that a Connections leaves behind, and so the connections dialled at once.
const maxAsking = 32

// ErrNoConnection means that an acquire with replicas got no connection of its own in time. Nothing was sent.
var ErrNoConnection = errors.New("no connection of the client's blocking pool")

// Connections lends dedicated connections to acquires with replicas. The zero value is ready to use. A lock client
// has one Connections, for its only rueidis client. It is safe for concurrent use.
//
// rueidis takes such a connection without a ctx, except for a slot of a cluster: with an exhausted pool that call may
// never return. So goroutines make it, and an attempt that gives up leaves its goroutine behind. Attempts share the
// goroutines: a late connection goes to the oldest waiting attempt, or back to rueidis.
type Connections struct {
	mu     sync.Mutex // guards the fields below
	wants  []*want    // oldest first
	asking int        // goroutines, at most maxAsking
}

// want is an attempt waiting for a connection.
type want struct {
	node  node
	asked bool             // a goroutine asks, or has asked, on its behalf
	got   chan *connection // has room for one
}

// node identifies the client from which to take a connection.
type node struct {
	rueidis.Client
	addr string // "" for the lock's own client, which finds the node itself
	ask  bool   // the node has the slot only for commands behind ASKING
}

// connection is lent to one attempt.
type connection struct {
	rueidis.DedicatedClient
	giveBack func()

	ctx    context.Context // of the attempt; its end closes the connection
	stop   func() bool     // cancels that closing
	closed chan struct{}   // closed once the connection is
}

// take returns a connection for commands on the key name. It waits at most wait, and no longer than ctx.
func (c *Connections) take(ctx context.Context, n node, name string, wait time.Duration) (*connection, error) {
	if n.Mode() == rueidis.ClientModeCluster {
		return takeOfCluster(ctx, n, name, wait)
	}
	w := &want{node: n, got: make(chan *connection, 1)}
	c.mu.Lock()
	c.wants = append(c.wants, w)
	if c.asking < maxAsking {
		c.asking++
		go c.ask() // ended by rueidis, when it has a connection or is closed
	}
	c.mu.Unlock()

	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case conn := <-w.got:
		return conn.closeAtEndOf(ctx), nil
	case <-timer.C:
	case <-ctx.Done():
	}
	if c.withdraw(w) {
		return nil, noConnection(ctx, wait)
	}
	return (<-w.got).closeAtEndOf(ctx), nil // it has just arrived
}

// ask takes connections from rueidis while there are wants that nobody has asked for yet.
func (c *Connections) ask() {
	for {
		n, ok := c.next()
		if !ok {
			return
		}
		conn, giveBack := n.Dedicate()
		c.deliver(n.addr, &connection{DedicatedClient: conn, giveBack: giveBack})
	}
}

// next returns a node from which a connection is wanted. If there is none, the asking goroutine ends.
func (c *Connections) next() (node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.wants, func(w *want) bool { return !w.asked })
	if i < 0 {
		c.asking--
		return node{}, false
	}
	c.wants[i].asked = true
	return c.wants[i].node, true
}

// deliver hands a connection to the oldest attempt that wants one to the node at addr.
func (c *Connections) deliver(addr string, conn *connection) {
	c.mu.Lock()
	i := slices.IndexFunc(c.wants, func(w *want) bool { return w.node.addr == addr })
	if i < 0 {
		c.mu.Unlock()
		conn.giveBack()
		return
	}
	c.wants[i].got <- conn
	c.wants = slices.Delete(c.wants, i, i+1)
	c.mu.Unlock()
}

// withdraw ends a want. It returns false if the connection was delivered already.
func (c *Connections) withdraw(w *want) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.wants, w)
	if i >= 0 {
		c.wants = slices.Delete(c.wants, i, i+1)
	}
	return i >= 0
}

// takeOfCluster takes a connection to rueidis's node for the slot of name. rueidis chooses the node by the first
// command that names the slot, under its ctx. That command is a PING: if the script were the first, nobody could tell
// whether it was sent. (When ctx ends the wait for an exhausted pool, rueidis v1.0.79 lets that pool grow by one
// beyond its size.)
func takeOfCluster(ctx context.Context, n node, name string, wait time.Duration) (*connection, error) {
	taking, cancel := context.WithCancel(ctx)
	dedicated, giveBack := n.Dedicate()
	conn := (&connection{DedicatedClient: dedicated, giveBack: func() { cancel(); giveBack() }}).closeAtEndOf(taking)
	timer := time.AfterFunc(wait, cancel)
	err := conn.Do(taking, conn.B().Ping().Build().SetSlot(name)).NonRedisError()
	switch late := !timer.Stop(); {
	case late || err != nil && ctx.Err() != nil:
		conn.end()
		return nil, noConnection(ctx, wait)
	case err != nil:
		conn.end()
		return nil, err
	}
	return conn, nil
}

func noConnection(ctx context.Context, wait time.Duration) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoConnection, err)
	}
	return fmt.Errorf("%w was free within %v: raise BlockingPoolSize of rueidis, unless Redis cannot be reached",
		ErrNoConnection, wait)
}

// closeAtEndOf closes the connection when ctx ends, which ends a running command, even a WAIT, within a second.
// rueidis itself looks only at the deadline of a ctx that has one.
func (c *connection) closeAtEndOf(ctx context.Context) *connection {
	c.ctx, c.closed = ctx, make(chan struct{})
	c.stop = context.AfterFunc(ctx, func() {
		defer close(c.closed)
		c.Close()
	})
	return c
}

// end gives the connection back, or waits until it is closed if its ctx has ended: rueidis would wait for a silent
// one. Nothing closes it later, when another attempt may have it.
func (c *connection) end() {
	switch {
	case !c.stop():
		<-c.closed
	case c.ctx.Err() != nil:
		c.Close()
	default:
		c.giveBack()
	}
}
