package main

import (
	"context"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// begin starts a wait with its own Client. The wait ends with the test at the latest.
func begin(t *testing.T, c *rlock.Client, wait func(context.Context) error) (ended <-chan error) {
	t.Helper()
	result := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { // ends with the wait, or with the test
		defer close(over)
		result <- wait(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-over
	})
	redistest.Eventually(t, patience, func() bool { return c.Stats().Waiting == 1 }, "it waits")
	return result
}

func TestLatches(t *testing.T) {
	t.Parallel()
	for deployment, deploy := range map[string]func() (addr string, c *rlock.Client, waits *rlock.Client){
		"server": func() (string, *rlock.Client, *rlock.Client) {
			s := redistest.Start(t)
			return s.Addr(), newLocks(t, s.Client(t)), newLocks(t, s.Client(t))
		},
		"cluster": func() (string, *rlock.Client, *rlock.Client) {
			s := redistest.StartCluster(t, 3, 0)
			return s.Addrs()[0], newLocks(t, s.Client(t)), newLocks(t, s.Client(t))
		},
	} {
		t.Run(deployment, func(t *testing.T) {
			addr, c, waits := deploy()
			say := func(args ...string) result { return call(t, addr, args...) }
			l := c.CountDownLatch("p[x]:parts")
			set, err := l.TrySetCount(t.Context(), 3)
			require.NoError(t, err)
			require.True(t, set)
			require.Empty(t, say("ls").out, "no waiters")
			require.Equal(t, result{0, "lock         p[x]:parts\nstate        3 left, latch\nttl          none\nprocesses    0 listening\n", ""}, say("show", "p[x]:parts"))
			opened := begin(t, waits, waits.CountDownLatch("p[x]:parts").Await)
			redistest.Eventually(t, patience, func() bool { return say("ls").out == "p[x]:parts\tlatch\t3 left\t0\tnone\n" }, "a process waits")
			require.Equal(t, "parts\tlatch\t3 left\t0\tnone\n", say("ls", "-prefix", "p[x]:", "p*").out)
			require.Empty(t, say("ls", "q*").out)
			require.Contains(t, say("top").out, "p[x]:parts\t1\tlatch\t3 left\t")
			var v view
			r := say("show", "-json", "p[x]:parts")
			require.NoError(t, json.Unmarshal([]byte(r.out), &v))
			require.Equal(t, view{state: state{Name: "p[x]:parts", Kind: "latch", Holders: []holder{}, Count: 3, TTL: -1}, Held: true, Processes: 1}, v)

			r = say("unlock", "-force", "-yes", "p[x]:parts")
			require.Equal(t, exitInternal, r.code)
			require.Contains(t, r.err, "the key does not hold a lock")

			w := start(t, nil, "watch", "-redis", addr, "-every", "50ms", "p[x]:parts")
			w.saw("latch: 3 left, ttl none")
			w.saw("waiting 1")
			require.NoError(t, l.CountDown(t.Context()))
			w.saw("counted down: 2 left")
			require.NoError(t, l.CountDown(t.Context()))
			require.NoError(t, l.CountDown(t.Context()))
			require.NoError(t, <-opened)
			w.saw("opened")
			_, err = l.TrySetCount(t.Context(), 9)
			require.NoError(t, err)
			w.saw("set: 9 left")
			w.signal(syscall.SIGINT)
			require.Zero(t, w.rest().code)
		})
	}
}

func TestSemaphores(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, waits := newLocks(t, s.Client(t)), newLocks(t, s.Client(t))
	sem := c.Semaphore("gpus")
	_, err := sem.TrySetPermits(t.Context(), 2)
	require.NoError(t, err)
	require.Empty(t, call(t, s.Addr(), "ls").out, "no waiters")
	require.Equal(t, "lock         gpus\nstate        2 left, counter\nttl          none\nprocesses    0 listening\n", call(t, s.Addr(), "show", "gpus").out)
	got := begin(t, waits, func(ctx context.Context) error { return waits.Semaphore("gpus").Acquire(ctx, 3) })
	redistest.Eventually(t, patience, func() bool { return call(t, s.Addr(), "ls").out == "gpus\tsemaphore\t2 free\t0\tnone\n" }, "a process waits")
	require.Contains(t, call(t, s.Addr(), "top").out, "gpus\t1\tsemaphore\t2 free\t")
	redistest.Eventually(t, patience, func() bool { v, _ := showJSON(t, s.Addr(), "gpus"); return len(v.Queue) == 1 }, "it has its place")
	v, _ := showJSON(t, s.Addr(), "gpus")
	require.Equal(t, view{
		state: state{Name: "gpus", Kind: "semaphore", Holders: []holder{}, Count: 2, TTL: -1}, Held: true, Processes: 1,
		Queue: []string{waits.ID()}, Wants: [][]int64{{3}},
	}, v)
	require.Contains(t, call(t, s.Addr(), "show", "gpus").out, "\nqueue        1. "+waits.ID()+": 1 waiting, for 3 permits\n")
	w := start(t, nil, "watch", "-redis", s.Addr(), "-every", "50ms", "gpus")
	w.saw("semaphore: 2 free, ttl none")
	require.NoError(t, sem.Release(t.Context(), 1))
	require.NoError(t, <-got)
	w.saw("0 free")
	redistest.Eventually(t, patience, func() bool {
		return call(t, s.Addr(), "show", "gpus").out == "lock         gpus\nstate        0 left, counter\nttl          none\nprocesses    0 listening\n"
	}, "nothing tells its kind any more")
	w.signal(syscall.SIGINT)
	require.Zero(t, w.rest().code)
}

// A number known not to be a latch is not shown as a latch; other data is refused.
func TestCountersAreNoLatches(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := s.Client(t)
		require.NoError(t, c.Do(t.Context(), c.B().Set().Key("visits").Value("17").Build()).Error())
		require.Contains(t, call(t, s.Addr(), "show", "visits").out, "17 left, counter\n")
		for name, value := range map[string]string{"text": "17x", "large": strings.Repeat("1", 1000)} {
			require.NoError(t, c.Do(t.Context(), c.B().Set().Key(name).Value(value).Build()).Error())
			r := call(t, s.Addr(), "show", name)
			require.Equal(t, exitInternal, r.code, name)
			require.Contains(t, r.err, "the key does not hold a lock")
		}
		require.Empty(t, call(t, s.Addr(), "ls").out)
	})
}
