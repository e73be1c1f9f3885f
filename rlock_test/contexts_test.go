package rlock_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// contexts records the contexts that rueidis receives, by type and command.
type contexts struct {
	over chan struct{} // closed when the test ends

	mu    sync.Mutex // guards the following
	given map[string]int
	ended map[string]int
	wrong []string
}

func newContexts(t *testing.T) *contexts {
	c := &contexts{over: make(chan struct{}), given: make(map[string]int), ended: make(map[string]int)}
	t.Cleanup(func() { close(c.over) })
	return c
}

// note compares Err and Done of the context of commands, at once and again when it ends.
func (c *contexts) note(ctx context.Context, whose string, cmds ...rueidis.Completed) {
	at := fmt.Sprintf("%T of %s%s", ctx, whose, cmds[0].Commands()[0])
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given[at]++
	// Those of package context end with a timer, which is late on a busy machine.
	_, own := ctx.(*calls.Context)
	if deadline, ok := ctx.Deadline(); ok && own && time.Until(deadline) < -10*time.Millisecond && ctx.Err() == nil {
		c.wrong = append(c.wrong, at+": its deadline had passed when rueidis received it")
	}
	if ctx.Done() == nil {
		return
	}
	go func() {
		select {
		case <-c.over:
		case <-ctx.Done():
			err := ctx.Err()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ended[at]++
			if err == nil {
				c.wrong = append(c.wrong, at+": Done is closed, and Err is nil")
			}
		}
	}()
}

// haveEnded reports whether a context of such a name was seen to end.
func (c *contexts) haveEnded(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(slices.Collect(maps.Keys(c.ended)), func(at string) bool { return strings.Contains(at, name) })
}

// notingClient records the contexts of its commands and of those of its connections and nodes.
type notingClient struct {
	rueidis.Client
	to *contexts
}

func (n notingClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	n.to.note(ctx, "", cmd)
	return n.Client.Do(ctx, cmd)
}

func (n notingClient) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	n.to.note(ctx, "", all...)
	return n.Client.DoMulti(ctx, all...)
}

func (n notingClient) Dedicate() (rueidis.DedicatedClient, func()) {
	conn, giveBack := n.Client.Dedicate()
	return notingConn{conn, n.to}, giveBack
}

func (n notingClient) Nodes() map[string]rueidis.Client {
	nodes := n.Client.Nodes()
	for addr, node := range nodes {
		nodes[addr] = notingClient{node, n.to}
	}
	return nodes
}

type notingConn struct {
	rueidis.DedicatedClient
	to *contexts
}

func (n notingConn) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	n.to.note(ctx, "connection's ", cmd)
	return n.DedicatedClient.Do(ctx, cmd)
}

func (n notingConn) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	n.to.note(ctx, "", all...)
	return n.DedicatedClient.DoMulti(ctx, all...)
}

// No context that rueidis receives has a closed Done channel and a nil Err. rueidis would take its command for answered although it
// is still queued, and reuse its memory for the next one.
func TestContextsSayThatTheyEnded(t *testing.T) {
	for name, end := range ends {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			s := redistest.Start(t)
			contextsSayThatTheyEnded(t, s.Client(t, pipelined), func(is bool) {
				if is {
					s.Pause()
				} else {
					s.Resume()
				}
			}, end)
		})
	}
}

// The same on a cluster, which has other connections. Half of the Clients end in either way.
func TestContextsSayThatTheyEndedOnACluster(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	proxies := proxiesOf(t, cluster)
	var ended atomic.Int32
	contextsSayThatTheyEnded(t, cluster.Client(t, pipelined, redistest.Via(proxies...)), func(is bool) {
		for _, p := range proxies {
			p.BlackHole(is)
		}
	}, func(c *rlock.Client) {
		ends[[]string{"Close", "Shutdown"}[ended.Add(1)%2]](c)
	})
}

// ends are the ways in which a Client ends while calls are under way.
var ends = map[string]func(*rlock.Client){
	"Close": (*rlock.Client).Close,
	"Shutdown": func(c *rlock.Client) {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Shutdown(over)
	},
}

func contextsSayThatTheyEnded(t *testing.T, rdb rueidis.Client, silent func(bool), end func(*rlock.Client)) {
	t.Helper()
	to := newContexts(t)
	contextsOfAllCalls(t, rdb, silent, to, end)
	for _, some := range []string{"Context of EVALSHA", "timerCtx of EVALSHA", "cancelCtx of"} {
		redistest.Eventually(t, soon, func() bool { return to.haveEnded(some) }, "some "+some+" have ended")
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	t.Log(to.given, to.ended)
	require.Empty(t, to.wrong)
	require.NotZero(t, to.given["*calls.Context of connection's EVALSHA"], "with Replicas")
}

// contextsOfAllCalls lets Redis fall silent while calls of all kinds are under way, and then ends the Clients.
func contextsOfAllCalls(t *testing.T, rdb rueidis.Client, silent func(bool), to *contexts, end func(*rlock.Client)) {
	t.Helper()
	const watchdog = 9 * time.Second
	o := rlock.Options{WatchdogTimeout: watchdog}
	c, confirmed := newClient(t, notingClient{rdb, to}, o), newClient(t, notingClient{rdb, to}, rlock.Options{
		Replicas: 1, ReplicaTimeout: 2 * time.Second, // in which it gets its connection, too
	})
	connectDedicated(t, rdb)
	p := process{c, newClient(t, notingClient{rdb, to}, o), newClient(t, notingClient{rdb, to}, o)}
	loadScripts(t, c)
	leaving, leave := context.WithCancel(context.Background())
	defer leave()
	var unlocks []rlock.UnlockFunc
	for _, ctx := range []context.Context{context.Background(), leaving} {
		name := redistest.Name(t)
		lockers := p.lockers(name)
		lockers["quorum"] = rlock.Quorum(p[0].Mutex(name+":a"), p[1].Mutex(name+":b"), p[2].Mutex(name+":c")) // on one server
		for _, m := range lockers {
			section := locked(t, under{ctx, m})
			level := locked(t, under{section.ctx, m})
			lockAsync(t, m) // waits until the Clients end
			unlocks = append(unlocks, level.unlock, section.unlock)
		}
	}
	redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Waiting >= 6 }, "the calls wait")
	if _, unlock, err := confirmed.Mutex(redistest.Name(t)).Lock(context.Background()); err != nil {
		require.ErrorIs(t, err, rlock.ErrNotReplicated)
	} else { // in memory, where replicas are not missing
		require.NoError(t, unlock())
	}
	silent(true)
	defer silent(false)
	sleep(watchdog / 3) // then a renewal and a refresh are under way
	for _, unlock := range unlocks[:len(unlocks)/2] {
		go func() { _ = unlock() }() // ends at its timeout
	}
	m := c.Mutex(redistest.Name(t))
	go func() { _, _, _ = m.Lock(leaving) }()
	go func() { _, _ = m.Info(leaving) }()
	go func() { _, _, _ = confirmed.Mutex(redistest.Name(t)).Lock(leaving) }()
	sleep(500 * time.Millisecond)
	for _, unlock := range unlocks[len(unlocks)/2:] {
		go func() { _ = unlock() }()
	}
	leave()
	var all sync.WaitGroup
	for _, c := range []*rlock.Client{p[0], p[1], p[2], confirmed} {
		all.Go(func() { end(c) })
	}
	all.Wait()
}

func pipelined(o *rueidis.ClientOption) { o.AlwaysPipelining, o.PipelineMultiplex = true, -1 }

// G9: if the time of Shutdown ends while unlocks are under way, the program's own commands on the same rueidis client succeed.
func TestShutdownSparesOthersCommands(t *testing.T) {
	redistest.Parallel(t) // only a socket is full at some time
	s := redistest.Start(t)
	rdb := s.Client(t, pipelined)
	past := fixture{rdb: s.Client(t)}
	c := newClient(t, rdb)
	loadScripts(t, c)
	const holds, n = 200, 300
	var unlocks []rlock.UnlockFunc
	for _, name := range numbered("lock", holds) {
		unlocks = append(unlocks, locked(t, c.Mutex(name)).unlock)
	}
	told := locked(t, c.Mutex("told"))
	s.Pause()
	var wg sync.WaitGroup
	wg.Go(func() { // fills the socket, so that later commands stay in the queue of rueidis
		_ = rdb.Do(context.Background(), rdb.B().Set().Key("big").Value(strings.Repeat("x", 64<<20)).Build())
	})
	sleep(300 * time.Millisecond)
	failed := make(chan error, holds)
	for _, unlock := range unlocks {
		wg.Go(func() { failed <- unlock() })
	}
	sleep(200 * time.Millisecond)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	down := async(func() error { return c.Shutdown(over) })
	awaitEnd(t, told.ctx)
	wrong := make(chan string, n)
	for i := range n {
		wg.Go(func() {
			got, err := rdb.Do(context.Background(), rdb.B().Incr().Key(fmt.Sprint("counter:", i)).Build()).AsInt64()
			if err != nil || got != 1 {
				wrong <- fmt.Sprint(got, err)
			}
		})
	}
	sleep(100 * time.Millisecond)
	s.Resume()
	wg.Wait()
	require.Empty(t, wrong)
	for range holds {
		if err := <-failed; err != nil { // otherwise answered in the second that Shutdown leaves them
			require.ErrorIs(t, err, rlock.ErrPending)
		}
	}
	for i := range n {
		answer(past.do(t, "GET", fmt.Sprint("counter:", i)).AsInt64()).is(t, 1)
	}
	require.NoError(t, told.unlock())
	require.ErrorIs(t, within(t, down, testTimeout), context.Canceled)
}

// G9: on a silent Redis, Close and Shutdown return within their bounds, even if rueidis has no room to send their calls.
func TestCloseOnASilentRedis(t *testing.T) {
	for name, way := range map[string]func(*rueidis.ClientOption){
		"one at a time": func(*rueidis.ClientOption) {},
		"pipelines":     pipelined,
		"no room": func(o *rueidis.ClientOption) {
			o.RingScaleEachConn, o.AlwaysPipelining, o.PipelineMultiplex = 1, true, -1
			// Where a ring's commands don't fit in the buffer, rueidis's writer and reader can wait for each other, on a mutex: until a
			// ping times out, so for ever in the virtual world, whose clock stands still meanwhile.
			o.WriteBufferEachConn = 64 << 10
		},
		"no connection": func(o *rueidis.ClientOption) { o.DisableAutoPipelining, o.BlockingPoolSize = true, 4 },
	} {
		for _, how := range []string{"Close", "Shutdown"} {
			redistest.RunVirtual(t, name+"/"+how, func(t *testing.T) {
				s := redistest.Start(t)
				c := newClient(t, s.Client(t, way), rlock.Options{WatchdogTimeout: 6 * time.Second})
				loadScripts(t, c)
				var unlocks []rlock.UnlockFunc
				for i := range 10 {
					unlocks = append(unlocks, locked(t, c.Mutex(fmt.Sprint(i))).unlock)
				}
				s.Pause()
				defer s.Resume()
				var calls sync.WaitGroup
				for i, unlock := range unlocks {
					if i%2 == 0 {
						calls.Go(func() { _ = unlock() })
					}
					calls.Go(func() { _, _, _ = c.Mutex(fmt.Sprint("more", i)).Lock(context.Background()) })
				}
				sleep(100 * time.Millisecond)
				began, bound := time.Now(), 6*time.Second
				if how == "Close" {
					c.Close()
				} else {
					over, cancel := context.WithCancel(context.Background())
					cancel()
					require.ErrorIs(t, c.Shutdown(over), context.Canceled)
					bound += time.Second
				}
				requireTookAtMost(t, bound, began, time.Now())
				s.Resume()
				calls.Wait()
			})
		}
	}
}
