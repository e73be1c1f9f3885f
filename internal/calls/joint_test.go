package calls

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// counting is a client that records the sizes of its calls, and answers them after a while.
type counting struct {
	rueidis.Client

	mode  rueidis.ClientMode
	takes time.Duration

	mu    sync.Mutex
	calls []int
	left  []time.Duration // until the deadline of each call
}

func (c *counting) Mode() rueidis.ClientMode { return c.mode }

func (c *counting) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return c.DoMulti(ctx, cmd)[0]
}

func (c *counting) DoMulti(ctx context.Context, cmds ...rueidis.Completed) (all []rueidis.RedisResult) {
	c.mu.Lock()
	end, _ := ctx.Deadline()
	c.calls, c.left = append(c.calls, len(cmds)), append(c.left, time.Until(end))
	n := len(c.calls)
	c.mu.Unlock()
	time.Sleep(c.takes + time.Duration(n)) // one after the other
	for _, cmd := range cmds {
		all = append(all, rueidis.NewErrorResult(errors.New(cmd.Commands()[1])))
	}
	return all
}

func (c *counting) sizes() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// alone are the sizes of n calls of one command.
func alone(n int) []int { return slices.Repeat([]int{1}, n) }

// crowd sends n commands at once, each with its own text, which is the answer that it must get.
func crowd(t *testing.T, c *Calls, rdb rueidis.Client, build rueidis.Builder, n int) {
	t.Helper()
	texts := make(chan [2]string, n)
	for i := range n {
		go func() {
			text := time.Duration(i).String()
			cmd := build.Echo().Message(text).Build()
			err := rdb.Do(new(Context).begin(t.Context(), c, time.Now().Add(Timeout+time.Duration(i))), cmd).Error()
			texts <- [2]string{text, err.Error()}
		}()
	}
	for range n {
		x := <-texts
		require.Equal(t, x[0], x[1])
	}
}

// A few commands are sent at once. The rest of a crowd goes with the next ones, under the latest of their deadlines.
func TestCrowdIsSentTogether(t *testing.T) {
	build := redistest.Start(t).Client(t).B()
	bubble.Test(t, func(t *testing.T) {
		rdb := &counting{takes: patience / 2}
		j := &joint{Client: rdb}
		c := New(nil, errors.New("closed"))
		crowd(t, c, j, build, maxSends)
		require.Equal(t, alone(maxSends), rdb.sizes())
		rdb.calls = nil
		crowd(t, c, j, build, maxSends+maxJoint+10)
		require.Equal(t, append(alone(maxSends), maxJoint, 10), rdb.sizes())
		require.Greater(t, rdb.left[len(rdb.left)-2], Timeout-patience)
		require.Zero(t, j.sends)
		require.Zero(t, len(j.waiting))
		time.Sleep(2 * patience)
		require.False(t, j.watching, "the timer has ended")
	})
}

// A few commands wait for no longer than a moment for the answers to others, which may be lost. Of a crowd a batch goes in each moment.
func TestNoCommandWaitsForSilence(t *testing.T) {
	build := redistest.Start(t).Client(t).B()
	bubble.Test(t, func(t *testing.T) {
		rdb := &counting{takes: time.Minute}
		j := &joint{Client: rdb}
		c := New(nil, errors.New("closed"))
		go crowd(t, c, j, build, maxSends)
		synctest.Wait()
		for range 3 {
			began := time.Now()
			go crowd(t, c, j, build, 2)
			synctest.Wait()
			before := len(rdb.sizes())
			time.Sleep(patience)
			synctest.Wait()
			require.Equal(t, []int{2}, rdb.sizes()[before:])
			require.Equal(t, patience, time.Since(began))
		}
		go crowd(t, c, j, build, 2*maxJoint+1)
		for _, size := range []int{maxJoint, maxJoint, 1} {
			synctest.Wait()
			before := len(rdb.sizes())
			time.Sleep(patience)
			synctest.Wait()
			require.Equal(t, []int{size}, rdb.sizes()[before:])
		}
		time.Sleep(2 * time.Minute)
	})
}

// On a cluster, and under another ctx than this package's, each command goes by itself.
func TestCommandsThatGoAlone(t *testing.T) {
	build := redistest.Start(t).Client(t).B()
	bubble.Test(t, func(t *testing.T) {
		c := New(nil, errors.New("closed"))
		rdb := &counting{takes: time.Millisecond, mode: rueidis.ClientModeCluster}
		crowd(t, c, &joint{Client: rdb}, build, 2*maxSends)
		require.Equal(t, alone(2*maxSends), rdb.sizes())
		rdb = &counting{takes: time.Millisecond}
		j := &joint{Client: rdb}
		var all sync.WaitGroup
		for range 2 * maxSends {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_ = j.Do(ctx, build.Echo().Message("x").Build())
			})
		}
		all.Wait()
		require.Equal(t, alone(2*maxSends), rdb.sizes())
	})
}

// A wrapper around a client sees each command.
func TestWrappedClientIsNotJoint(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	_, ok := Joint(rdb).(*joint)
	require.True(t, ok)
	_, ok = Joint(struct{ rueidis.Client }{rdb}).(*joint)
	require.False(t, ok)
}
