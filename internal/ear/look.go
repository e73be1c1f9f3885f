package ear

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/pubsub"
)

// A look asks Redis for waiters: the length of the queue, and the number of subscribers to unlocks that are not in line. A subscriber may
// be about to leave, so it counts only if a second look still finds it.
//
// On a cluster with plain channels, a waiter may leave nothing in Redis, and be subscribed at a node that this process does not know:
// CLUSTER SLOTS leaves out replicas that are not in sync yet, and the client asks for it only after errors. A message reaches every node.
// So where earlier waiters may not know whom to ask, a look also wakes them, and they ask.

const (
	// lingering is how long a process that no longer waits may stay subscribed, with a margin.
	lingering = time.Second
	// looksTogether is how many locks are looked at together.
	looksTogether = 100
)

// watchAskables looks until Close.
func (e *Ear) watchAskables() {
	s := &e.askables
	third := e.Options.WatchdogTimeout / 3
	every := time.NewTicker(third)
	defer every.Stop()
	var again, retry <-chan time.Time
	pause := lingering // before a retry
	for {
		select {
		case <-s.due:
		case <-again:
			again = nil
			s.lookAt(func(a *askable) bool { return !a.outside.IsZero() })
		case <-retry:
			retry = nil
			s.lookAt(func(a *askable) bool { return a.unsure })
		case <-every.C:
			s.lookAt(func(*askable) bool { return true })
		case <-e.Calls.Done():
			return
		}
		var seen, unsure bool
		for some := s.next(); len(some) > 0; some = s.next() {
			here, failed := e.look(some)
			seen, unsure = seen || here, unsure || failed
		}
		if seen && again == nil {
			again = time.After(lingering)
		}
		switch {
		case !unsure:
			pause = lingering
		case retry == nil: // a server may be gone for good
			retry, pause = time.After(pause), min(2*pause, third)
		}
	}
}

// lookSoon wakes watchAskables.
func (s *askables) lookSoon() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// mayHaveMissed schedules a look at every tenure that was not asked for yet: messages were missed.
func (s *askables) mayHaveMissed() {
	s.lookAt(func(a *askable) bool { a.wakes = true; return true })
	s.lookSoon()
}

// lookAt schedules a look at those of the tenures that were not asked for yet.
func (s *askables) lookAt(which func(*askable) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.of {
		switch {
		case a.asked:
			delete(s.toLook, a)
		case which(a):
			s.toLook[a] = struct{}{}
		}
	}
}

// next returns the next tenures to look at, and unmarks them.
func (s *askables) next() (some []*askable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.toLook {
		if len(some) == looksTogether {
			break
		}
		delete(s.toLook, a)
		some = append(some, a)
	}
	return some
}

// look looks at some tenures and reports whether a retry is due: seen if there are outside subscribers, unsure if Redis did not answer in
// full.
func (e *Ear) look(some []*askable) (seen, unsure bool) {
	for _, a := range some {
		unsure = !e.woken(a) || unsure
	}
	found, err := e.sight(some)
	unsure = unsure || err != nil && !calls.IsRefusal(err)
	s := &e.askables
	for i, a := range some {
		s.mu.Lock()
		a.unsure = unsure && !found[i].queued
		asked := a.asked
		switch {
		case found[i].queued:
			asked = true
		case !found[i].outside && unsure:
		case !found[i].outside:
			a.outside = time.Time{}
		case !a.outside.IsZero() && time.Since(a.outside) >= lingering/2:
			asked = true
		default:
			if a.outside.IsZero() {
				a.outside = time.Now()
			}
			seen = true
		}
		s.mu.Unlock()
		if asked {
			e.isAsked(a.tag)
		}
	}
	return seen, unsure
}

// sighting is what Redis shows of a lock's waiters in other processes.
type sighting struct {
	queued  bool // waiters, or writers' marks, in the queue
	outside bool // subscribers to unlocks that are not in line: they may be waiters
}

// sight asks Redis for the waiters of some tenures. err means that there may be more; it is a refusal only if nothing worse happened.
func (e *Ear) sight(some []*askable) ([]sighting, error) {
	queues, failed := e.queued(some)
	listen, err := e.listening(some)
	if err == nil || failed != nil && calls.IsRefusal(err) {
		err = failed
	}
	found := make([]sighting, len(some))
	for i, a := range some {
		ch := e.KnownChannel(a.lock)
		found[i].queued = queues[i]
		found[i].outside = a.lock.Kind.Queueing != kinds.PerWaiter && // Redisson's are in the queue, too
			listen[ch.Name]-listen[pubsub.InLine(ch).Name] > int64(e.Hub.Outside(ch))
	}
	return found, err
}

// woken wakes waiters for a that may not know whom to ask, if that is due. It reports false if Redis did not answer: then it remains due.
func (e *Ear) woken(a *askable) bool {
	s := &e.askables
	s.mu.Lock()
	due := a.wakes
	a.wakes = false
	s.mu.Unlock()
	if !due || e.wakeUnseen(a.lock) {
		return true
	}
	s.mu.Lock()
	a.wakes = true
	s.mu.Unlock()
	return false
}

// wakeUnseen wakes waiters that a look may not see: they try, are refused, and ask the owner. It reports false if Redis did not answer.
func (e *Ear) wakeUnseen(m *tenure.Lock) bool {
	ch := e.KnownChannel(m)
	if !e.Cluster.IsOne() || ch.Sharded || m.Kind.Queueing == kinds.PerWaiter {
		return true
	}
	_, err := e.publish(ch, pubsub.Unlocked)
	return err == nil || calls.IsRefusal(err)
}

// queued reports for each of them whether it has waiters, or writers' marks, in the queue in Redis. err means that it may not know of all.
func (e *Ear) queued(some []*askable) (queued []bool, err error) {
	var cmds []rueidis.Completed
	var of []int
	for i, a := range some {
		m := a.lock
		switch key := m.QueueKey(); {
		case m.Kind.Queueing == kinds.PerWaiter:
			cmds = append(cmds, e.RDB.B().Llen().Key(m.Queue).Build())
		case key == "":
			continue
		case m.Kind.Queueing == kinds.PerProcess:
			cmds = append(cmds, e.RDB.B().Zcard().Key(key).Build())
		default:
			cmds = append(cmds, e.RDB.B().Zrange().Key(key).Min("0").Max("-1").Build())
		}
		of = append(of, i)
	}
	queued = make([]bool, len(some))
	if len(cmds) == 0 {
		return queued, nil
	}
	for i, reply := range e.RDB.DoMulti(e.Calls.Context(context.Background()), cmds...) {
		failed := reply.Error()
		e.Calls.Answered(some[of[i]].lock.Slot(), failed)
		if failed != nil {
			err = failed
		} else if marks, notMarks := reply.AsStrSlice(); notMarks == nil {
			queued[of[i]] = slices.ContainsFunc(marks, some[of[i]].isOther)
		} else if n, notNumber := reply.AsInt64(); notNumber == nil {
			queued[of[i]] = n > 0
		}
	}
	return queued, err
}

// isOther reports whether a writer's mark is not that of a reader of this tenure that is upgrading.
func (a *askable) isOther(mark string) bool {
	_, reader, _ := strings.Cut(mark, " ")
	reader, _ = strings.CutSuffix(reader, " -")
	return reader != a.lock.Owner(a.tag)
}

// listening counts the subscribers to the unlocks of those locks, and to the channels of those in line. err means that there may be more.
func (e *Ear) listening(some []*askable) (all map[string]int64, err error) {
	var plain []string
	var sharded []rueidis.Completed
	for _, a := range some {
		ch := e.KnownChannel(a.lock)
		names := []string{ch.Name, pubsub.InLine(ch).Name}
		if ch.Sharded {
			sharded = append(sharded, e.RDB.B().PubsubShardnumsub().Channel(names...).Build().SetSlot(a.lock.Key))
		} else {
			plain = append(plain, names...)
		}
	}
	ctx := e.Calls.Context(context.Background())
	var replies []rueidis.RedisResult
	if len(sharded) > 0 {
		replies = e.RDB.DoMulti(ctx, sharded...)
	}
	if len(plain) > 0 {
		slices.Sort(plain)
		plain = slices.Compact(plain) // locks may have one channel
		nodes := e.nodes()
		at := make([]rueidis.RedisResult, len(nodes))
		var asked sync.WaitGroup
		for i, node := range nodes { // side by side: one that is gone takes all the time there is
			asked.Go(func() { at[i] = node.Do(ctx, node.B().PubsubNumsub().Channel(plain...).Build()) })
		}
		asked.Wait()
		replies = append(replies, at...)
	}
	all = make(map[string]int64)
	for _, reply := range replies {
		listen, failed := reply.AsIntMap()
		if failed != nil {
			err = failed
		}
		for name, n := range listen {
			all[name] += n
		}
	}
	return all, err
}

// nodes returns the nodes that may have subscribers to a plain channel.
func (e *Ear) nodes() []rueidis.Client {
	if !e.Cluster.IsOne() {
		return []rueidis.Client{e.RDB}
	}
	var all []rueidis.Client
	for _, node := range e.RDB.Nodes() {
		all = append(all, node)
	}
	return all
}
