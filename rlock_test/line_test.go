package rlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/lua"
)

// lineup is a semaphore with processes in line, played by the test: it sees what the scripts promise a process that asks whenever it is told to,
// and no other time.
type lineup struct {
	t     *testing.T
	rdb   rueidis.Client
	name  string
	all   []*sleeper
	held  int64
	calls int64
}

// sleeper is a process that asks after a message, or at its own time.
type sleeper struct {
	*lineup

	id      string
	wants   []int64
	due     time.Time
	stopped bool
}

const lineKeep = 2 * time.Second // how long permits are reserved

func newLine(t *testing.T, permits int64) *lineup {
	t.Helper()
	l := &lineup{t: t, rdb: redistest.Start(t).Client(t), name: redistest.Name(t)}
	require.NoError(t, l.rdb.Do(t.Context(), l.rdb.B().Set().Key(l.name).Value(strconv.FormatInt(permits, 10)).Build()).Error())
	return l
}

// join adds a process that listens.
func (l *lineup) join(wants ...int64) *sleeper {
	l.t.Helper()
	p := &sleeper{lineup: l, id: fmt.Sprintf("%08x-2222-3333-4444-555555555555", len(l.all)), wants: wants}
	l.all = append(l.all, p)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	l.t.Cleanup(func() { cancel(); <-ended })
	go func() { // ended by cancel
		defer close(ended)
		_ = l.rdb.Receive(ctx, l.rdb.B().Subscribe().Channel("channel:"+p.id).Build(), func(m rueidis.PubSubMessage) {
			ms, err := strconv.Atoi(strings.TrimPrefix(m.Message, "? "))
			if err != nil {
				panic(err)
			}
			if due := time.Now().Add(time.Duration(ms) * time.Millisecond); due.Before(p.due) {
				p.due = due // nobody reads it before all has settled
			}
		})
	}()
	redistest.Settle(l.t)
	return p
}

// ask is a request of a process, and its answer.
func (p *sleeper) ask(gives int64) {
	p.t.Helper()
	p.calls++
	r, err := lua.UseSemaphore(p.t.Context(), p.rdb, lua.SemaphoreArgs{
		Semaphore: lua.Semaphore{
			Name: p.name, Requests: "requests:" + p.name, Queue: p.queue(), Publish: lua.Publish{Name: "channel"}, Client: p.id, Keep: lineKeep,
		},
		Request: p.calls, N: gives, Wants: slices.Clone(p.wants), Waits: true,
	})
	require.NoError(p.t, err)
	p.held -= gives
	for _, i := range slices.Backward(r.Granted) {
		p.held += p.wants[i]
		p.wants = slices.Delete(p.wants, i, i+1)
	}
	p.due = time.Now().Add(r.Again)
	redistest.Settle(p.t) // the others have the messages
}

func (l *lineup) queue() string { return "queue:" + l.name }

// pass lets time pass: each live process that is due asks.
func (l *lineup) pass(d time.Duration) {
	l.t.Helper()
	for end := time.Now().Add(d); ; {
		var next *sleeper
		for _, p := range l.all {
			if !p.stopped && len(p.wants) > 0 && !p.due.After(end) && (next == nil || p.due.Before(next.due)) {
				next = p
			}
		}
		if next == nil {
			sleep(time.Until(end))
			return
		}
		sleep(time.Until(next.due))
		next.ask(0)
	}
}

// places returns the processes in line, in order.
func (l *lineup) places() []string {
	l.t.Helper()
	places, err := l.rdb.Do(l.t.Context(), l.rdb.B().Zrange().Key(l.queue()).Min("0").Max("-1").Build()).AsStrSlice()
	require.NoError(l.t, err)
	return places
}

// awake requires that the first in line, if it lives, wants more than is free.
func (l *lineup) awake() {
	l.t.Helper()
	free, _, err := lua.FreePermits(l.t.Context(), l.rdb, l.name)
	require.NoError(l.t, err)
	require.EqualValues(l.t, 6, free+l.held)
	for _, first := range l.places() {
		for _, p := range l.all {
			if p.id == first && !p.stopped {
				require.Greater(l.t, p.wants[0], free, "%s wants %v, due in %v", p.id, p.wants, time.Until(p.due))
				return
			}
		}
	}
}

// No process oversleeps a release, even if some are stopped: each costs the others one reservation time.
func TestLineNobodySleeps(t *testing.T) {
	for stopped, within := range map[int]time.Duration{0: time.Millisecond, 1: lineKeep + time.Second, 4: 4*lineKeep + time.Second} {
		t.Run(fmt.Sprint(stopped), func(t *testing.T) {
			redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewPCG(seed, 0))
				l := newLine(t, 6)
				for range 6 {
					l.join()
				}
				for range 60 {
					for range 8 {
						p := l.all[random.IntN(len(l.all))]
						switch what := random.IntN(8); {
						case p.stopped:
						case what < 4 && len(p.wants) < 3:
							p.wants = append(p.wants, 1+random.Int64N(4))
							p.ask(0)
						case what < 6 && l.held > 0:
							p.ask(1 + random.Int64N(l.held))
						case what == 6 && len(p.wants) > 0:
							p.wants = p.wants[1:]
							p.ask(0)
						default:
							l.pass(time.Duration(random.IntN(1500)) * time.Millisecond)
						}
						if random.IntN(4) == 0 { // some others are stopped now
							for _, p := range l.all {
								p.stopped = false
							}
							for _, i := range random.Perm(len(l.all))[:stopped] {
								l.all[i].stopped = true
							}
						}
					}
					l.pass(within)
					l.awake()
				}
			})
		})
	}
}

// However many processes are stopped, and wherever they are in line, each costs the others one reservation time at most.
func TestLineManyStopped(t *testing.T) {
	for _, before := range []int{1, 2, 3, 5, 8, 12, 20} {
		for _, behind := range []int{0, before} {
			t.Run(fmt.Sprintf("%d, %d", before, behind), func(t *testing.T) {
				redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
					l := newLine(t, 0)
					for i := range before + 1 + behind {
						p := l.join(int64(1 + i%3))
						p.stopped = i != before
						p.ask(0)
					}
					live := l.all[before]
					live.wants[0] = min(live.wants[0], 2)
					began := time.Now()
					l.join().ask(2)
					for len(live.wants) > 0 && time.Since(began) < 5*time.Minute {
						l.pass(max(time.Until(live.due), time.Millisecond)) // nothing happens before
					}
					require.LessOrEqual(t, time.Since(began), time.Duration(before+behind)*(lineKeep+100*time.Millisecond)) // see late in line.lua
				})
			})
		}
	}
}

// A stopped process that wants more than there is blocks the others for a reservation time. While it lives, it shows that.
func TestLineStoppedBeforeOthers(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		l := newLine(t, 1)
		large, small := l.join(5), l.join(1)
		large.ask(0)
		require.Equal(t, time.Minute, time.Until(large.due), "it is in nobody's way")
		l.pass(5 * time.Second)
		small.ask(0)
		l.pass(time.Minute)
		require.Equal(t, []string{large.id, small.id}, l.places())
		require.NotEmpty(t, small.wants, "first come, first served")
		large.stopped = true
		l.pass(lineKeep + time.Millisecond) // a place lasts until its last millisecond is over
		require.Empty(t, small.wants)
		require.Empty(t, l.places())
	})
}

// Another library gives a permit back, and those in line are stopped. Each costs a process that joins behind them one reservation time.
func TestLineStoppedBeforeAJoiner(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		const before = 3
		l := newLine(t, 0)
		for range before {
			p := l.join(1)
			p.ask(0)
			p.stopped = true
		}
		l.pass(lineKeep)
		require.NoError(t, l.rdb.Do(t.Context(), l.rdb.B().Incr().Key(l.name).Build()).Error())
		live := l.join(1)
		live.ask(0)
		l.pass(before * (lineKeep + 100*time.Millisecond)) // see late in line.lua
		require.Empty(t, live.wants)
	})
}
