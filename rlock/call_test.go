package rlock

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// Whether connections have a lifetime is seen at rueidis's own clients, and taken for granted at others.
func TestMayExpire(t *testing.T) {
	s := redistest.Start(t)
	life := func(o *rueidis.ClientOption) { o.ConnLifetime = time.Hour }
	require.False(t, mayExpire(s.Client(t)))
	require.True(t, mayExpire(s.Client(t, life)))
	require.True(t, mayExpire(struct{ rueidis.Client }{s.Client(t)}), "it cannot be seen through a wrapper")
	cl := redistest.StartCluster(t, 3, 0)
	require.False(t, mayExpire(cl.Client(t)))
	require.True(t, mayExpire(cl.Client(t, life)))
}

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
		"sent twice, and not decided": {errRepeated, true, true},
	} {
		require.Equal(t, row.mayPass, mayPass(row.err), name)
		require.Equal(t, row.mayHave, mayHaveRun(row.err), name)
	}
	rdb := redistest.Start(t).Client(t)
	const before7 = "Error running script (call to f_dfa094601748940e7a4eb38df28cfad457f6c155): @user_script:9: @user_script: 9: "
	for said, passes := range map[string]bool{
		"READONLY You can't write":                                                   true, // a failover
		before7 + "-READONLY You can't write":                                        true,
		before7 + "Lua script attempted to access a non local key in a cluster node": true,
		before7 + "-OOM command not allowed":                                         false,
		"WRONGTYPE Operation against a key":                                          false,
	} {
		err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(said).Build()).Error()
		require.Equal(t, passes, mayPass(err), said)
	}
}

// While Redis is silent, calls start only until so many callers have left, and then as others end.
func TestLeftCallsAreBounded(t *testing.T) {
	var l leftCalls
	for range maxLeft {
		counts, wait, _ := l.admit(0, false)
		require.Nil(t, wait)
		require.False(t, counts)
		l.add(0) // its caller leaves
	}
	_, wait, _ := l.admit(1, false)
	require.Nil(t, wait, "another slot of a cluster is no matter of theirs")
	_, wait, _ = l.admit(0, false)
	require.NotNil(t, wait)
	l.ended(0, true, false)
	<-wait
	counts, wait, _ := l.admit(0, true)
	require.Nil(t, wait)
	require.True(t, counts, "it waited, and counts from its start")
	_, wait, _ = l.admit(0, true)
	require.NotNil(t, wait)
	l.ended(0, true, true)
	<-wait
	_, wait, _ = l.admit(0, false)
	require.Nil(t, wait, "Redis has answered")
}

// A command goes on when its caller has left, and so says nothing of how the caller's ctx ended; nor do contexts made of its own.
func TestCallContextHasACauseOfItsOwn(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
	cancel(errors.New("the caller's"))
	stopped := make(chan struct{})
	call := (&Client{stopped: stopped}).call(ctx, time.Now(), 0)
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

// While Redis is silent, one call more starts every half second: it may go by a connection that is well.
func TestSilenceIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l leftCalls
		for range maxLeft {
			l.add(0)
		}
		for range 3 {
			_, change, wait := l.admit(0, false)
			require.NotNil(t, change)
			require.Equal(t, probeEvery, wait)
			time.Sleep(wait)
			counts, change, _ := l.admit(0, true)
			require.Nil(t, change)
			require.True(t, counts, "the probe")
		}
		_, change, _ := l.admit(0, false)
		require.NotNil(t, change)
		l.ended(0, true, true)
		<-change
		_, change, _ = l.admit(0, false)
		require.Nil(t, change, "a probe was answered")
		for range maxLeftSomewhere {
			l.add(1)
		}
		time.Sleep(2 * probeEvery)
		_, change, _ = l.admit(0, false)
		require.NotNil(t, change, "many slots are silent: nothing is probed")
	})
}
