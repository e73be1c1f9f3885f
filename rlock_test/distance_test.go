package rlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// distance is a group of near processes with many goroutines each, and one process with a single goroutine and a slower connection.
type distance struct {
	near  []*rlock.Client
	far   *rlock.Client
	proxy []*redistest.Proxy
	name  string
}

// newDistance connects a number of near processes and a far one to a server.
func newDistance(t *testing.T, s *redistest.Server, near, far rlock.Options, processes int, mod ...func(*rueidis.ClientOption)) distance {
	t.Helper()
	p := redistest.StartProxy(t, s.Addr())
	d := distance{proxy: []*redistest.Proxy{p}, name: redistest.Name(t)}
	d.far = newClient(t, redistest.Dial(t, p.Addr(), mod...), far)
	for range processes {
		d.near = append(d.near, newClient(t, redistest.Dial(t, s.Addr(), mod...), near))
	}
	return d
}

// compete lets all goroutines lock for a while. It returns how many sections each side had, and the longest wait of the far one.
func (d distance) compete(t *testing.T, during time.Duration) (near, far int64, longest time.Duration) {
	t.Helper()
	const goroutines, section = 6, 3 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), during)
	defer cancel()
	var wg sync.WaitGroup
	work := func(c *rlock.Client, sections *int64, longest *time.Duration) {
		for ctx.Err() == nil {
			began := time.Now()
			_, unlock, err := c.Mutex(d.name).Lock(ctx)
			*longest = max(*longest, time.Since(began))
			if err != nil {
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				return
			}
			atomic.AddInt64(sections, 1)
			sleep(section)
			assert.NoError(t, unlock())
		}
	}
	for _, c := range d.near {
		for range goroutines {
			wg.Go(func() { work(c, &near, new(time.Duration)) })
		}
	}
	wg.Go(func() { work(d.far, &far, &longest) })
	wg.Wait()
	return near, far, longest
}

// Where an unlock wakes all waiters, a process further away still gets at least a tenth of an equal share, even if a nearer one
// always wants the lock.
func TestFurtherAwayGetsItsTurns(t *testing.T) {
	off := rlock.Options{HandOff: rlock.HandOff{Most: -1}}
	for name, row := range map[string]struct {
		near      rlock.Options
		processes int
	}{
		"hand-offs off": {off, 1}, "beside a queue": {rlock.Options{}, 1}, "beside a queue of two": {rlock.Options{}, 2},
	} {
		for _, further := range distances {
			redistest.RunVirtual(t, fmt.Sprint(name, ", ", further), func(t *testing.T) {
				newDistance(t, redistest.Start(t), row.near, off, row.processes).requireTurns(t, further)
			})
		}
	}
}

// The same where only real servers have an unlock wake all waiters.
func TestFurtherAwayGetsItsTurnsWithoutAQueue(t *testing.T) {
	c := redistest.SharedCluster(t)
	redistest.Parallel(t)
	confirmed := rlock.Options{Replicas: 1, ReplicaTimeout: testTimeout}
	limited := func(o *rueidis.ClientOption) { o.Username, o.Password = "limited", "secret" }
	for name, start := range map[string]func(t *testing.T) distance{
		"replicas": func(t *testing.T) distance {
			master, _ := redistest.StartPair(t)
			return newDistance(t, master, confirmed, confirmed, 1)
		},
		"without the right": func(t *testing.T) distance {
			s := redistest.Start(t)
			rules := strings.Fields("ACL SETUSER limited on >secret ~* &* +@all -zadd -zrange")
			require.NoError(t, fixture{rdb: s.Client(t)}.do(t, rules...).Error())
			return newDistance(t, s, rlock.Options{}, rlock.Options{}, 1, limited)
		},
		"plain channels on a cluster": func(t *testing.T) distance {
			plain := rlock.Options{PlainPubSub: true}
			d := distance{name: redistest.Name(t), proxy: proxiesOf(t, c)}
			d.near, d.far = []*rlock.Client{newClient(t, c.Client(t), plain)}, newClient(t, c.Client(t, redistest.Via(d.proxy...)), plain)
			return d
		},
	} {
		for _, further := range distances {
			t.Run(fmt.Sprint(name, ", ", further), func(t *testing.T) {
				redistest.Parallel(t)
				start(t).requireTurns(t, further)
			})
		}
	}
}

var distances = []time.Duration{500 * time.Microsecond, 2 * time.Millisecond}

// requireTurns requires that the process that is so much further away gets its turns. A machine that stands still for some milliseconds costs
// it some, so it has several tries.
func (d distance) requireTurns(t *testing.T, further time.Duration) {
	t.Helper()
	loadScripts(t, d.far)
	for _, p := range d.proxy {
		p.Delay(further)
	}
	for tries := 1; ; tries++ {
		near, far, longest := d.compete(t, time.Second)
		t.Logf("near %d sections, far %d, longest wait %v", near, far, longest)
		share := far * int64(len(d.near)+1) * 10 // equals near+far for a tenth of an equal share
		if share >= near+far && longest < time.Second {
			return
		}
		require.Less(t, tries, 10)
	}
}
