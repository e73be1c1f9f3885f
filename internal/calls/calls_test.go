package calls

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

func TestWhatErrorsMean(t *testing.T) {
	for name, row := range map[string]struct {
		err              error
		mayPass, mayHave bool
	}{
		"connection refused":          {&net.OpError{Op: "dial", Err: errors.New("refused")}, true, false},
		"reset":                       {&net.OpError{Op: "read", Err: errors.New("reset")}, true, true},
		"rueidis is switching":        {rueidis.ErrClosing, true, true},
		"time-out":                    {context.DeadlineExceeded, true, true},
		"no connection":               {lua.ErrNoConnection, false, false},
		"somebody else's key":         {lua.ErrForeign, false, false},
		"sent twice, and not decided": {ErrRepeated, true, true},
	} {
		require.Equal(t, row.mayPass, IsTransient(row.err), name)
		require.Equal(t, row.mayHave, MayHaveRun(row.err), name)
	}
	rdb := redistest.Start(t).Client(t)
	const (
		before7  = "Error running script (call to f_dfa094601748940e7a4eb38df28cfad457f6c155): @user_script:9: @user_script: 9: "
		nonLocal = "Lua script attempted to access a non local key in a cluster node"
	)
	for said, passes := range map[string]bool{
		"READONLY You can't write":            true, // a failover
		before7 + "-READONLY You can't write": true,
		before7 + nonLocal:                    true,
		before7 + "-OOM command not allowed":  false,
		"WRONGTYPE Operation against a key":   false,
	} {
		err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(said).Build()).Error()
		require.Equal(t, passes, IsTransient(err), said)
	}
}

// While Redis is silent, new calls start until maxLeft callers have left. After that, a call waits until another ends.
func TestLeftCallsAreBounded(t *testing.T) {
	var l left
	for range maxLeft {
		require.Equal(t, admission{}, l.admit(0, false))
		l.add(0, time.Now()) // its caller leaves
	}
	require.Equal(t, admission{}, l.admit(1, false), "another slot of a cluster is no matter of theirs")
	waits := l.admit(0, false)
	require.NotNil(t, waits.change)
	l.ended(0, true, false)
	<-waits.change
	require.Equal(t, admission{counted: true}, l.admit(0, true), "it waited, and counts from its start")
	waits = l.admit(0, true)
	require.NotNil(t, waits.change)
	l.ended(0, true, true)
	<-waits.change
	require.Equal(t, admission{}, l.admit(0, false), "Redis has answered")
}

// A command outlives its caller, so its ctx and contexts derived from it hide the end of the caller's ctx.
func TestCallContextHasACauseOfItsOwn(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
	cancel(errors.New("the caller's"))
	stopped := make(chan struct{})
	call := (&Calls{stopped: stopped}).Context(ctx)
	child, end := context.WithCancel(call)
	defer end()
	require.Equal(t, "value", child.Value(key{}))
	require.NoError(t, context.Cause(call))
	require.NoError(t, child.Err())
	close(stopped)
	<-child.Done()
	require.Equal(t, context.Canceled, context.Cause(child))
	require.Equal(t, context.Canceled, context.Cause(call))
}

// While Redis is silent, one extra call starts every 500 ms, in case it gets a healthy connection.
func TestSilenceIsProbed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var l left
		for range maxLeft {
			l.add(0, time.Now())
		}
		for range 3 {
			waits := l.admit(0, false)
			require.NotNil(t, waits.change)
			require.Equal(t, probeEvery, waits.atMost)
			time.Sleep(waits.atMost)
			require.Equal(t, admission{counted: true}, l.admit(0, true), "the probe")
		}
		waits := l.admit(0, false)
		require.NotNil(t, waits.change)
		l.ended(0, true, true)
		<-waits.change
		require.Nil(t, l.admit(0, false).change, "a probe was answered")
		for range maxLeftSomewhere {
			l.add(1, time.Now())
		}
		time.Sleep(2 * probeEvery)
		require.NotNil(t, l.admit(0, false).change, "many slots are silent: nothing is probed")
	})
}

// A caller can leave at any time, even while it waits for other calls to end. The effect of its call is rolled back.
func TestLeavable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		errClosed := errors.New("closed")
		c := New(nil, errClosed)
		require.True(t, c.Start())
		answer, rolledBack := make(chan error), make(chan error, 2)
		ask := func(ctx context.Context, limit time.Time) (bool, error) {
			_, left, err := Leavable(ctx, c, 0, limit, func(<-chan struct{}) (int, error) { return 1, <-answer },
				func(_ int, err error) { rolledBack <- err })
			return left, err
		}
		left, err := ask(t.Context(), time.Now().Add(time.Second))
		require.True(t, left)
		require.Equal(t, ErrNoAnswer, err)
		require.True(t, c.AnyLeft())
		answer <- nil
		require.NoError(t, <-rolledBack)
		synctest.Wait()
		require.False(t, c.AnyLeft())

		for range maxLeft {
			c.Leave(0)
		}
		require.False(t, c.IsSilent(0), "not for long enough")
		time.Sleep(2 * UnresponsiveAfter)
		require.True(t, c.IsSilent(0))
		left, err = ask(t.Context(), time.Now().Add(probeEvery/2))
		require.True(t, left)
		require.Equal(t, ErrSilent, err)
		require.Equal(t, ErrSilent, <-rolledBack, "it was not started")
		c.Answered(0, nil)
		go func() { answer <- ErrRepeated }()
		left, err = ask(t.Context(), time.Time{})
		require.False(t, left)
		require.Equal(t, ErrRepeated, err)

		time.AfterFunc(time.Second, c.Close)
		left, err = ask(t.Context(), time.Time{})
		require.True(t, left)
		require.Equal(t, errClosed, err)
		require.False(t, c.Start())
		answer <- nil
		c.Ended()
		c.Wait()
		require.NoError(t, <-rolledBack)
	})
}

// late is a ctx that ends late, as one does when the machine stands still.
type late struct {
	context.Context

	deadline time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

// A caller that had no time for an answer does not say that Redis was silent, though it leaves late.
func TestLeavingLateIsNoSilence(t *testing.T) {
	for name, row := range map[string]struct {
		deadline, limit, ends time.Duration
		err                   error
	}{
		"in time":       {deadline: UnresponsiveAfter / 2, ends: UnresponsiveAfter / 2, err: ErrNoAnswer},
		"no time":       {deadline: UnresponsiveAfter/2 - 1, ends: UnresponsiveAfter/2 - 1},
		"no time, late": {deadline: UnresponsiveAfter/2 - 1, ends: time.Second},
		"limit, late":   {deadline: time.Hour, limit: UnresponsiveAfter/2 - 1, ends: time.Second},
		"limit":         {deadline: time.Hour, limit: UnresponsiveAfter / 2, ends: time.Hour, err: ErrNoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := New(nil, errors.New("closed"))
				require.True(t, c.Start())
				ctx, cancel := context.WithTimeout(t.Context(), row.ends)
				defer cancel()
				began, limit := time.Now(), time.Time{}
				if row.limit > 0 {
					limit = began.Add(row.limit)
				}
				if row.ends < time.Hour && row.limit > 0 { // the timer of the limit is late, too
					time.Sleep(row.ends)
					require.Equal(t, row.err, Silence(ctx, began, limit))
				} else {
					_, left, err := Leavable(late{ctx, began.Add(row.deadline)}, c, 0, limit, func(<-chan struct{}) (int, error) {
						time.Sleep(2 * time.Second)
						return 1, nil
					}, nil)
					require.True(t, left)
					require.Equal(t, row.err, err)
				}
				c.Ended()
				c.Close()
				c.Wait()
			})
		})
	}
}
