//go:build interop

package rlock_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

type rwWorld struct{ *world }

// rwSide locks one side of a read/write lock: as a goroutine, or as a thread of Java.
type rwSide interface {
	start(t testing.TB, side, name string, lease time.Duration) <-chan event
	unlock(t testing.TB, side, name string) event
	tryInVain(t testing.TB, side, name string)
}

type rwThread struct{ *javaThread }

func rwWord(side, name string) string { return side + "/" + url.QueryEscape(name) }

func (j rwThread) start(t testing.TB, side, name string, lease time.Duration) <-chan event {
	t.Helper()
	args := []string{rwWord(side, name)}
	if lease > 0 {
		args = append(args, ms(lease))
	}
	replies := j.of.send(t, j.name, "lock", args...)
	events := make(chan event, 1)
	go func() { // ends with the process at the latest
		select {
		case r := <-replies:
			events <- r.event
		case <-j.of.gone:
		}
	}()
	return events
}

func (j rwThread) unlock(t testing.TB, side, name string) event {
	t.Helper()
	return j.do(t, "unlock", rwWord(side, name)).event
}

func (j rwThread) tryInVain(t testing.TB, side, name string) {
	t.Helper()
	require.Equal(t, "false", j.ask(t, "trylock", rwWord(side, name), "0"))
}

type rwGo struct{ *goActor }

func rwOf(c *rlock.Client, side, name string, o ...rlock.Option) *rlock.Mutex {
	if rw := c.RWMutex(name, o...); side == "read" {
		return rw.Read()
	}
	return c.RWMutex(name, o...).Write()
}

func (g rwGo) start(t testing.TB, side, name string, lease time.Duration) <-chan event {
	var options []rlock.Option
	if lease > 0 {
		options = append(options, rlock.WithLease(lease))
	}
	return g.startOn(t, rwOf(g.client, side, name, options...))
}

func (g rwGo) unlock(t testing.TB, _, name string) event { return g.goActor.unlock(t, name) }

func (g rwGo) tryInVain(t testing.TB, side, name string) {
	t.Helper()
	_, _, err := rwOf(g.client, side, name).TryLock(g.ctx(), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
}

func (w rwWorld) ways() map[string][2]func() rwSide {
	g := func() rwSide { return rwGo{newGoActor(w.watch.Client)} }
	j := func() rwSide { return rwThread{w.java.thread()} }
	return map[string][2]func() rwSide{"Go holds": {g, j}, "Java holds": {j, g}}
}

func rwLock(t testing.TB, a rwSide, side, name string, lease time.Duration) {
	t.Helper()
	await(t, a.start(t, side, name, lease), 10*time.Second)
}

func rwUnlock(t testing.TB, a rwSide, side, name string) event {
	t.Helper()
	e := a.unlock(t, side, name)
	require.NoError(t, e.err)
	return e
}

// rwWaits begins to lock, and returns when that waits: it is subscribed, and time was left for the attempt after that.
func (w rwWorld) rwWaits(t testing.TB, a rwSide, side, name string) <-chan event {
	t.Helper()
	channel := "redisson_rwlock:{" + name + "}"
	if strings.Contains(name, "{") {
		channel = "redisson_rwlock:" + name
	}
	cmd := "NUMSUB"
	if w.cluster && !w.plain {
		cmd = "SHARDNUMSUB"
	}
	in := a.start(t, side, name, testTimeout)
	redistest.Eventually(t, 10*time.Second, func() bool {
		for _, node := range w.watch.rdb.Nodes() {
			got, err := node.Do(t.Context(), node.B().Arbitrary("PUBSUB", cmd, channel).Build()).ToArray()
			if err != nil {
				return false
			}
			if n, err := got[1].AsInt64(); err == nil && n > 0 {
				return true
			}
		}
		return false
	}, "it is subscribed")
	sleep(30 * time.Millisecond)
	requireWaiting(t, in)
	return in
}
