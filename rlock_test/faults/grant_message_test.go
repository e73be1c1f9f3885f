package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 1 and 2, G1, G4: a grant message is lost together with the process's subscription connection. The process
// subscribes again, asks, and finds itself the owner.
func TestGrantCutOff(t *testing.T) {
	t.Parallel()
	s := newGrantScene(t, redistest.Shared(t), 2, rlock.Options{})
	s.line[0].proxy.OnReply(once(isGrant, redistest.Cut))
	require.NoError(t, s.held.unlock())
	got := s.gets(t, s.line[0], promptly, "asks as soon as it has subscribed again")
	s.line[1].waiter.waits(t)
	got = s.passes(t, got, s.line[1], promptly)
	require.NoError(t, got.unlock())
}

// Fault 1, G1, G4: only a grant message is lost. The next process looks when the grant lease ends. The process that
// missed the message sleeps until its timer ends, a watchdog time at most.
func TestGrantMessageLost(t *testing.T) {
	t.Parallel()
	const watchdog = 3 * grantLease
	for _, others := range []int{0, 1, 3} {
		t.Run(map[int]string{0: "alone", 1: "one behind it", 3: "three behind it"}[others], func(t *testing.T) {
			t.Parallel()
			s := newGrantScene(t, redistest.Shared(t), 1+others, rlock.Options{WatchdogTimeout: watchdog})
			asked := time.Now()
			s.line[0].proxy.OnReply(once(isGrant, redistest.Drop))
			require.NoError(t, s.held.unlock())
			unlocked := time.Now()
			if others == 0 {
				got := s.gets(t, s.line[0], time.Until(asked.Add(watchdog))+promptly, "found by the timer")
				require.NoError(t, got.unlock())
				return
			}
			got := s.gets(t, s.line[1], grantLease+promptly, "looks when the grant lease ends")
			require.GreaterOrEqual(t, got.at.Sub(unlocked), grantLease-promptly/10)
			for _, c := range s.line[2:] {
				got = s.passes(t, got, c, promptly)
			}
			got = s.passes(t, got, s.line[0], time.Until(asked.Add(watchdog))+promptly)
			require.NoError(t, got.unlock())
		})
	}
}

// Fault 1, G1, G2, G4: a grant message comes late. Within the grant lease, the process asks before it enters. After it,
// the next process has the lock, and the late one is back in the queue at once.
func TestGrantMessageLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		late time.Duration
	}{{"beyond half of the grant", grantLease * 5 / 8}, {"when it is over", grantLease + grantLease/4}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newGrantScene(t, redistest.Shared(t), 2, rlock.Options{})
			first, second := s.line[0], s.line[1]
			first.proxy.OnReply(once(isGrant, redistest.Hold))
			require.NoError(t, s.held.unlock())
			sleep(c.late)
			if c.late < grantLease {
				second.waiter.waits(t)
				first.proxy.Release()
				got := s.gets(t, first, promptly, "asks, and finds itself the owner")
				got = s.passes(t, got, second, promptly)
				require.NoError(t, got.unlock())
				return
			}
			got := s.gets(t, second, promptly, "looked when the grant lease ended")
			first.proxy.Release()
			redistest.Eventually(t, promptly/2, func() bool { return len(queued(t, s.rdb, s.name)) == 1 }, "asked, and is in the queue again")
			first.waiter.waits(t)
			s.alone(t, got)
			got = s.passes(t, got, first, promptly)
			require.NoError(t, got.unlock())
		})
	}
}

// Fault 1, G1: a grant message is repeated while its process is inside, while the next one is, and while the first one
// waits again. The repeats have no effect.
func TestGrantMessageTwice(t *testing.T) {
	t.Parallel()
	s := newGrantScene(t, redistest.Shared(t), 2, rlock.Options{})
	said := make(chan []string, 10)
	s.line[0].proxy.OnReply(func(cmd []string) redistest.Action {
		if isGrant(cmd) {
			said <- cmd
		}
		return redistest.Pass
	})
	again := func(cmd []string) {
		n, err := do(t, s.rdb, "PUBLISH", cmd[1], cmd[2]).AsInt64()
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	}
	first, second := s.line[0], s.line[1]
	require.NoError(t, s.held.unlock())
	got := s.gets(t, first, promptly, "granted")
	grant := <-said
	again(grant)
	s.alone(t, got)
	got = s.passes(t, got, second, promptly)
	s.line = nil
	s.join(t, first)
	again(grant)
	// Handled after the grant message, on the same channel.
	require.NoError(t, do(t, s.rdb, "PUBLISH", grant[1], "? 1").Error())
	redistest.Eventually(t, promptly, func() bool { return len(queued(t, s.rdb, s.name)) == 1 }, "asked")
	first.waiter.waits(t)
	s.alone(t, got)
	got = s.passes(t, got, first, promptly)
	again(grant)
	s.alone(t, got)
	require.NoError(t, got.unlock())
}

// Fault 1, G4: the message with the time to look overtakes the reply to the attempt that joined the queue. The process
// looks at that time, not at the end of the lease in the reply.
func TestWatchOvertakesTheAnswer(t *testing.T) {
	t.Parallel()
	s := newGrantScene(t, redistest.Shared(t), 1, rlock.Options{})
	second := s.client(t, rlock.Options{})
	var watched = make(chan struct{}, 1)
	joins := func(cmd []string) bool {
		c, ok := parseHistScript(cmd)
		return ok && c.what == "acquire" && c.joins
	}
	strike := once(joins, redistest.Hold)
	second.proxy.OnReply(func(cmd []string) redistest.Action {
		if isWatch(cmd) {
			watched <- struct{}{}
		}
		return strike(cmd)
	})
	s.join(t, second) // without the reply so far
	s.line[0].proxy.OnReply(once(isGrant, redistest.Drop))
	require.NoError(t, s.held.unlock())
	<-watched
	sleep(promptly / 10) // for the message to get from the proxy to the process
	second.proxy.Release()
	got := s.gets(t, second, grantLease+promptly, "looks when the grant lease ends")
	s.line[0].cancel()
	require.ErrorIs(t, s.line[0].waiter.within(t, promptly).err, context.Canceled)
	require.NoError(t, got.unlock())
}

// Fault 1, G1, G4: a client that reads all messages of the server (PSUBSCRIBE) makes dead processes look alive. Each
// then costs a grant lease, like a process that is cut off.
func TestGrantWhileSomebodyReadsAllMessages(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newGrantScene(t, server.Addr(), 0, rlock.Options{})
	reader, cancel := redistest.Dial(t, server.Addr()).Dedicate()
	t.Cleanup(cancel)
	require.NoError(t, reader.Do(context.Background(), reader.B().Psubscribe().Pattern("*").Build()).Error())
	s.killed(t, 2)
	s.join(t, s.client(t, rlock.Options{}))
	require.NoError(t, s.held.unlock())
	got := s.gets(t, s.line[0], 2*grantLease+promptly, "after a grant lease for each dead process")
	require.NoError(t, got.unlock())
}
