package faults

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// usePermits takes and gives back expiring permits, or changes others' permits or the number of permits. Only process
// p1 changes the number: each change without an answer may act at any moment, and doubles the checker's work.
func (w *familyWorker) usePermits() {
	s := w.clients[0].PermitSemaphore(w.kind)
	switch dice, first := w.rng.IntN(100), w.plan.Peer == "p1"; {
	case dice < 3 && first:
		n := 3 + w.rng.Int64N(countTotal-2)
		w.call(leasedSet, n, func() (int64, error) { return 0, s.SetPermits(w.some(20), n) })
	case dice < 6 && first:
		n := 1 - 2*w.rng.Int64N(2)
		w.giveBack(n, s.AddPermits)
		sleep(w.duration(w.plan.Step))
		w.giveBack(-n, s.AddPermits)
	case dice < 20:
		w.meddle(s)
	default:
		w.hold(1 + w.rng.IntN(2))
	}
}

// hold is a section with permits. Some have a lease, which sometimes ends before the section.
func (w *familyWorker) hold(n int) {
	var options []rlock.Option
	take := countEntry{Kind: leasedTake, N: int64(n)}
	steps := 1 + w.rng.IntN(3)
	if w.chance(40) {
		take.Lease = (w.plan.Watchdog/20 + w.duration(w.plan.Watchdog/8)).Truncate(time.Millisecond)
		options = append(options, rlock.WithLease(take.Lease))
		if w.chance(30) {
			steps += int(take.Lease / w.plan.Step)
		}
	} else if w.chance(3) { // enough for renewals
		steps += int(w.plan.Watchdog / w.plan.Step)
	}
	c := w.begins(take)
	ctx, p, err := w.takePermits(w.clients[0].PermitSemaphore(w.kind, options...), n)
	c.Entry.IDs, c.Entry.Slots = strings.Join(p.IDs(), " "), slotsText(p.Slots())
	if w.ends(c, 0, err); err != nil {
		return
	}
	deaf := w.plan.Sabotage == histDeaf && take.Lease > 0
	for i := range steps {
		if i > 3 && w.holding.Load() {
			break
		}
		now := histNow()
		if ctx.Err() != nil && !deaf {
			break
		}
		c.Entry.Last = now
		w.sayCall(*c)
		timer := time.NewTimer(w.duration(w.plan.Step))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if deaf {
				sleep(w.duration(w.plan.Step))
			}
		}
	}
	g := w.begins(countEntry{Kind: leasedGive, N: int64(n), IDs: c.Entry.IDs})
	err = p.Release()
	w.ends(g, 1, err)
	if again := p.Release(); !errors.Is(again, rlock.ErrNotHeld) {
		w.wrong("second release", again)
	}
	for _, why := range []error{context.Cause(ctx), err} {
		var loss *rlock.LostError
		if !errors.As(why, &loss) {
			continue
		}
		since := histNow() - int64(time.Since(loss.Since))
		if !deaf && isLate(since, c.Entry.Last) {
			w.wrong("ctx cancelled too late", why)
		}
		switch {
		case deaf:
		case loss.Reason == rlock.LostExpired: // a holder may be inside until its ctx is cancelled in time
			c.Entry.Last = min(since, g.Entry.Call)
		default:
			c.Entry.Last = min(c.Entry.Last, since)
		}
		w.sayCall(*c)
		return
	}
}

func (w *familyWorker) takePermits(s *rlock.PermitSemaphore, n int) (context.Context, *rlock.Permit, error) {
	switch dice := w.rng.IntN(10); {
	case dice < 2:
		return s.TryAcquireN(context.Background(), n, 0)
	case dice < 4:
		return s.TryAcquireN(context.Background(), n, w.duration(50*time.Millisecond))
	case dice < 5:
		return s.AcquireN(w.some(100), n)
	}
	return s.TryAcquireN(context.Background(), n, histLongWait)
}

func slotsText(slots []int) string {
	var texts []string
	for _, slot := range slots {
		texts = append(texts, strconv.Itoa(slot))
	}
	return strings.Join(texts, " ")
}

// meddle gives back somebody's permit, or changes its end.
func (w *familyWorker) meddle(s *rlock.PermitSemaphore) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	rdb := w.rdbs[0]
	ids, err := rdb.Do(ctx, rdb.B().Zrange().Key(leasedKey(w.kind)).Min("0").Max("-1").Build().Pin()).AsStrSlice() // pinned as in historyRun.look
	if err != nil || len(ids) == 0 {
		return
	}
	e := countEntry{Kind: leasedAway, IDs: hex.EncodeToString([]byte(ids[w.rng.IntN(len(ids))]))}
	do := func(ctx context.Context) error { return s.Release(ctx, e.IDs) }
	if w.chance(50) {
		e.Kind, e.Lease = leasedLease, time.Millisecond+w.duration(w.plan.Watchdog/4).Truncate(time.Millisecond)
		do = func(ctx context.Context) error { return s.UpdateLease(ctx, e.IDs, e.Lease) }
	}
	c := w.begins(e)
	w.ends(c, 1, do(w.some(20)))
}

// leasedKey is the key of a semaphore's held permits.
func leasedKey(name string) string { return "{" + name + "}:timeout" }

// Sabotages of expiring permits, besides those of other counters. With histDeaf, holders continue after the end of
// their lease.
const (
	leasedShort = "short"          // permits are requested with a shorter lease than is trusted
	leasedSlot  = "slot"           // permits get the number of another permit
	leasedAgain = "back from dead" // a returned permit is held again
)

// doLeased is Do for a call of expiring permits: see lua/permits.lua.
func (r countRedis) doLeased(ctx context.Context, words []string) rueidis.RedisResult {
	n, _ := strconv.Atoi(words[2])
	keys, args := words[3:3+n], words[3+n:]
	back, wants := args[5:], strings.FieldsFunc(wantsOf(args), func(c rune) bool { return c == ',' })
	for _, want := range wants {
		n, _ := strconv.Atoi(want)
		back = back[n:]
	}
	gives := len(back) > 0 && strings.Fields(args[2])[1] != "2"
	one := wantsOf(args) == "1" && !gives
	switch {
	case r.sabotage == countNever && gives && len(wants) == 0 && r.log.forges(5):
		return r.say(ctx, "0|-1|0|1|||"+strings.TrimSuffix(strings.Repeat("1,", len(back)), ","))
	case r.sabotage == leasedShort && len(wants) > 0 && r.log.forges(5):
		args[4] = "10"
	}
	result := r.Client.Do(ctx, r.B().Arbitrary(words[:3]...).Keys(keys...).Args(args...).Build())
	granted, ok := grantedOf(result)
	switch {
	case !ok:
	case r.sabotage == countTwice && gives && r.log.forges(5):
		_ = r.Client.Do(ctx, r.B().Incr().Key(keys[0]).Build()).Error()
	case r.sabotage == leasedAgain && gives && r.log.forges(5):
		_ = r.Client.Do(ctx, r.B().Arbitrary("ZADD").Keys(keys[2]).Args("922337203685477", back[0]).Build()).Error()
	case r.sabotage == countBelief && one && granted == "" && r.log.forges(5):
		return r.say(ctx, "0|-1|0|1|1|0|")
	case r.sabotage == leasedSlot && one && granted == "1" && r.log.forges(5):
		return r.say(ctx, "0|-1|0|1|1|0|")
	}
	return result
}

// grantedOf returns the wants that a script granted. It is false after an error.
func grantedOf(result rueidis.RedisResult) (which string, ok bool) {
	reply, err := result.ToString()
	fields := strings.Split(reply, "|") // see lua/permits.lua
	if _, err := result.ToInt64(); err == nil {
		return "1", true // of a call that wants, which is done
	}
	if err != nil || len(fields) != 7 {
		return "", false
	}
	return fields[4], true
}

// isLeased reports whether a command is a call of expiring permits.
func isLeased(words []string) bool {
	return len(words) > 6 && strings.HasPrefix(words[4], "rlock_sem_requests:") && slices.ContainsFunc(words[5:7], func(key string) bool {
		return strings.HasSuffix(key, ":timeout")
	})
}
