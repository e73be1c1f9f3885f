package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// countTotal is a semaphore's number of permits.
const countTotal = 5

// countCall is a call, reported by a worker at its begin and at its end. A killed process leaves calls without an end.
type countCall struct {
	ID    int64 // in its process
	Entry countEntry
}

var countIDs atomic.Int64

// call calls a counter, and reports begin and outcome. It returns the result, and whether the call succeeded.
func (w *familyWorker) call(kind countKind, n int64, do func() (got int64, err error)) (int64, bool) {
	c := w.begins(countEntry{Kind: kind, N: n})
	got, err := do()
	w.ends(c, got, err)
	return got, err == nil
}

// begins reports the begin of a call.
func (w *familyWorker) begins(e countEntry) *countCall {
	e.Name, e.Outcome, e.Call, e.Worker = w.kind, countFailed, histNow(), fmt.Sprintf("%s.%d", w.plan.Peer, w.number)
	c := &countCall{ID: countIDs.Add(1), Entry: e}
	w.sayCall(*c)
	return c
}

// ends reports the outcome of a call. An expiring permit may be lost: then there is none to give back.
func (w *familyWorker) ends(c *countCall, got int64, err error) {
	e := &c.Entry
	e.Return = histNow()
	lost := errors.Is(err, rlock.ErrNotHeld)
	switch {
	case err == nil:
		e.Outcome, e.Got = countDone, got
	case lost && (e.Kind == leasedAway || e.Kind == leasedLease), lost && e.Kind == leasedGive && errors.Is(err, rlock.ErrLost):
		e.Outcome, e.Got = countDone, 0
	case e.Kind == leasedTake && errors.Is(err, rlock.ErrLost):
	case !errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable) && !errors.Is(err, context.Canceled):
		w.wrong(string(e.Kind), err)
	}
	w.sayCall(*c)
}

func (w *familyWorker) sayCall(c countCall) {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	w.say("call", string(text))
}

// countCtx is a ctx that ends some time after a call first checks it, so that even on a slow machine the call has begun.
type countCtx struct {
	context.Context

	begin func()
}

func (c countCtx) Err() error {
	err := c.Context.Err()
	c.begin()
	return err
}

// some returns a ctx that never ends, or ends soon.
func (w *familyWorker) some(percent int) context.Context {
	if !w.chance(percent) {
		return context.Background()
	}
	ctx, cancel := context.WithCancel(context.Background())
	after := w.duration(2 * time.Millisecond) // about the duration of a call
	return countCtx{ctx, sync.OnceFunc(func() { time.AfterFunc(after, cancel) })}
}

func count1(yes bool, err error) (int64, error) {
	if yes {
		return 1, err
	}
	return 0, err
}

// useSemaphore takes and gives back permits of a semaphore in a random way. Only process p1 drains it, and p1 is never
// killed: nobody would know how many permits it had drained.
func (w *familyWorker) useSemaphore() {
	s := w.clients[0].Semaphore(w.kind)
	for !w.set {
		_, w.set = w.call(permSet, countTotal, func() (int64, error) { return count1(s.TrySetPermits(context.Background(), countTotal)) })
	}
	switch dice := w.rng.IntN(100); {
	case dice < 15:
		w.call(permLook, 0, func() (int64, error) { return s.Available(context.Background()) })
	case dice < 20:
		w.call(permSet, countTotal, func() (int64, error) { return count1(s.TrySetPermits(w.some(20), countTotal)) })
	case dice < 25:
		n := 1 - 2*w.rng.Int64N(2)
		w.giveBack(n, s.AddPermits)
		sleep(w.duration(w.plan.Step))
		w.giveBack(-n, s.AddPermits)
	case dice < 30 && w.plan.Peer == "p1":
		n, _ := w.call(permDrain, 0, func() (int64, error) { return s.Drain(w.some(20)) })
		sleep(w.duration(w.plan.Step))
		for ; n > 0; n -= countMost {
			w.giveBack(min(n, countMost), s.Release)
		}
	default:
		n := 1 + w.rng.Int64N(countMost)
		if _, ok := w.call(permAcquire, n, func() (int64, error) { return 0, w.acquire(s, n) }); ok {
			sleep(w.duration(w.plan.Step))
			if n > 1 && w.chance(30) {
				w.giveBack(1, s.Release)
				n--
			}
			w.giveBack(n, s.Release)
		}
	}
}

func (w *familyWorker) acquire(s *rlock.Semaphore, n int64) error {
	switch dice := w.rng.IntN(10); {
	case dice < 2:
		return s.TryAcquire(context.Background(), n, 0)
	case dice < 4:
		return s.TryAcquire(context.Background(), n, w.duration(50*time.Millisecond))
	case dice < 5:
		return s.Acquire(w.some(100), n)
	}
	return s.TryAcquire(context.Background(), n, histLongWait)
}

func (w *familyWorker) giveBack(n int64, release func(context.Context, int64) error) {
	w.call(permAdd, n, func() (int64, error) { return 0, release(w.some(20), n) })
}

// useLatch sets a latch, counts it down, or waits for it.
func (w *familyWorker) useLatch() {
	l := w.clients[0].CountDownLatch(w.kind)
	switch dice := w.rng.IntN(100); {
	case dice < 20:
		n := w.rng.Int64N(countMost + 1)
		w.call(latchSet, n, func() (int64, error) { return count1(l.TrySetCount(w.some(20), n)) })
	case dice < 50:
		w.call(latchDown, 0, func() (int64, error) { return 0, l.CountDown(w.some(20)) })
	case dice < 55:
		w.call(latchDelete, 0, func() (int64, error) { return count1(l.Delete(w.some(20))) })
	case dice < 70:
		w.call(latchLook, 0, func() (int64, error) { return l.Count(context.Background()) })
	default:
		wait := histLongWait
		if w.chance(50) {
			wait = w.duration(50 * time.Millisecond)
		}
		w.call(latchAwait, 0, func() (int64, error) { return 0, l.TryAwait(context.Background(), wait) })
	}
}

// useHighLatch counts down a latch that stays closed, or checks that it is closed.
func (w *familyWorker) useHighLatch() {
	l := w.clients[0].CountDownLatch(w.kind)
	switch dice := w.rng.IntN(100); {
	case dice < 60:
		w.call(latchDown, 0, func() (int64, error) { return 0, l.CountDown(w.some(20)) })
	case dice < 90:
		w.call(latchLook, 0, func() (int64, error) { return l.Count(context.Background()) })
	default:
		w.call(latchAwait, 0, func() (int64, error) { return 0, l.TryAwait(context.Background(), w.duration(50*time.Millisecond)) })
	}
}

// Sabotages by the Clients of a run.
const (
	countTwice  = "twice"  // a give-back or count-down runs twice
	countNever  = "never"  // a give-back or count-down succeeds without being sent
	countBelief = "belief" // refused permits count as granted, and a closed latch as open
)

// countRedis is a rueidis.Client that carries out such a sabotage.
type countRedis struct {
	rueidis.Client

	log      *histLog // counts the sabotages
	sabotage string
}

func (r countRedis) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := slices.Clone(cmd.Commands()) // Do recycles the command
	if isLeased(words) {
		return r.doLeased(ctx, words)
	}
	latch := len(words) > 4 && strings.HasPrefix(words[4], "rlock_latch:")
	if !latch && (len(words) < 5 || !strings.HasPrefix(words[4], "rlock_sem_requests:")) {
		return r.Client.Do(ctx, cmd)
	}
	n, _ := strconv.Atoi(words[2])
	keys, args := words[3:3+n], words[3+n:]
	// A latch's arguments are client, number, ms, count, and how and where to publish; a look has none. Those of a semaphore are in
	// lua/semaphore.lua.
	changes := latch && len(args) == 6 || !latch && args[1] != "add 0" && wantsOf(args) == ""
	switch {
	case r.sabotage == countNever && changes && r.log.forges(5):
		if latch {
			return r.say(ctx, "1")
		}
		return r.say(ctx, "0|-1|0|1|||")
	case r.sabotage == countTwice && changes && r.log.forges(5):
		if latch {
			args[0] += ":again" // like the call of another Client
		} else {
			keys[1] += ":again"
			how := strings.Fields(args[2])
			how[1] = "0" // mode: without a wait
			args[2] = strings.Join(how, " ") + " "
		}
		again := r.B().Arbitrary(words[:3]...).Keys(keys...).Args(args...).Build()
		if err := r.Client.Do(ctx, again).Error(); err != nil {
			return r.Client.Do(ctx, cmd)
		}
	}
	result := r.Client.Do(ctx, cmd)
	switch {
	case r.sabotage != countBelief || result.Error() != nil:
	case latch && len(args) == 0 && r.log.forges(5):
		return r.say(ctx, "0")
	case !latch && wantsOf(args) != "":
		if granted, ok := grantedOf(result); ok && granted == "" && r.log.forges(5) {
			return r.say(ctx, "0|-1|0|1|1||")
		}
	}
	return result
}

// wantsOf returns the wants in a call of a semaphore.
func wantsOf(args []string) string { return args[2][strings.LastIndexByte(args[2], ' ')+1:] }

// say has Redis reply with a text.
func (r countRedis) say(ctx context.Context, reply string) rueidis.RedisResult {
	return r.Client.Do(ctx, r.B().Echo().Message(reply).Build())
}
