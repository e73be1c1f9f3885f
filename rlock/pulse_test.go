package rlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pulse{born: time.Now()}
		beat := func(n int, took time.Duration, err error) {
			for range n {
				sent := time.Now()
				time.Sleep(took)
				p.beat(sent, err)
			}
		}
		steady := func(want bool) {
			t.Helper()
			require.Equal(t, want, p.isSteady(time.Now()))
		}
		steady(false)
		beat(pulseBeats-1, prompt, nil)
		steady(false)
		beat(1, time.Microsecond, nil)
		steady(true)
		time.Sleep(pulseGap - time.Millisecond)
		steady(true)
		beat(1, 0, nil)
		steady(true)
		time.Sleep(pulseGap + 2*time.Millisecond)
		steady(false)
		beat(pulseBeats-1, 0, nil)
		steady(false)
		beat(1, 0, nil)
		steady(true)
		for _, break1 := range []func(){
			func() { beat(1, prompt+1, nil) },
			func() { beat(1, 0, errors.New("connection reset")) },
		} {
			break1()
			steady(false)
			beat(pulseBeats-1, 0, nil)
			steady(false)
			beat(1, 0, nil)
			steady(true)
		}
	})
}

func TestMayAskHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steady := func() *Client {
			c := &Client{pulse: pulse{born: time.Now()}}
			for range pulseBeats {
				c.pulse.beat(time.Now(), nil)
			}
			return c
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		now := time.Now()
		never := time.Time{}
		require.True(t, steady().mayAskHere(ctx, never, now))
		require.False(t, steady().mayAskHere(ctx, never, now.Add(pulseGap+1)))

		later := now.Add(moment + 1)
		until, cancel := context.WithDeadline(ctx, later)
		defer cancel()
		require.True(t, steady().mayAskHere(until, never, now))
		require.False(t, steady().mayAskHere(until, never, now.Add(1)), "closing the connection would end it")
		require.True(t, steady().mayAskHere(ctx, later, now))
		require.False(t, steady().mayAskHere(ctx, later, now.Add(1)))
		require.True(t, steady().mayAskHere(ctx, now.Add(minAttempt), now.Add(minAttempt-moment-1)), "a short TryLock")

		c := steady()
		c.cluster = &topology{}
		require.False(t, c.mayAskHere(ctx, never, now), "the others answer for a node that does not")
		c = steady()
		c.options.Replicas = 1
		require.False(t, c.mayAskHere(ctx, never, now), "replicas take their time")
	})
}

// A brief call ends after one to two moments.
func TestBrief(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b brief
		ends := make(chan time.Duration)
		calls := 0
		for range 20 {
			now := time.Now()
			ctx := b.call(now)
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, now.Add(moment), deadline)
			require.NoError(t, ctx.Err())
			calls++
			go func() {
				<-ctx.Done()
				if ctx.Err() == nil {
					panic("no error")
				}
				ends <- time.Since(now)
			}()
			time.Sleep(moment / 6)
		}
		for range calls {
			took := <-ends
			require.GreaterOrEqual(t, took, moment)
			require.LessOrEqual(t, took, 2*moment)
		}
		b.call(time.Now())
		time.Sleep(moment + 1)
		b.call(time.Now())
		b.stop()
		time.Sleep(10 * moment)
		select {
		case <-b.window.Load().ended:
			require.Fail(t, "the timer goes on")
		case <-b.older.ended:
			require.Fail(t, "the older timer goes on")
		default:
		}
	})
}
