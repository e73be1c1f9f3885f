package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
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
func (c *Engine) watchAskables() {
	s := &c.askables
	third := c.Options.WatchdogTimeout / 3
	every := time.NewTicker(third)
	defer every.Stop()
	var again, retry <-chan time.Time
	pause := lingering // before a retry
	for {
		select {
		case <-s.due:
		case <-again:
			again = nil
			s.lookAt(func(e *askable) bool { return !e.outside.IsZero() })
		case <-retry:
			retry = nil
			s.lookAt(func(e *askable) bool { return e.unsure })
		case <-every.C:
			s.lookAtAll()
		case <-c.Calls.Done():
			return
		}
		var seen, unsure bool
		for some := s.next(); len(some) > 0; some = s.next() {
			here, failed := c.look(some)
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

// lookAtAll schedules a look at every tenure that was not asked for yet.
func (s *askables) lookAtAll() {
	s.lookAt(func(*askable) bool { return true })
	s.lookSoon()
}

// mayHaveMissed schedules a look at every tenure that was not asked for yet: messages were missed.
func (s *askables) mayHaveMissed() {
	s.lookAt(func(e *askable) bool { e.wakes = true; return true })
	s.lookSoon()
}

func (s *askables) lookAt(which func(*askable) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.of {
		switch {
		case e.asked:
			delete(s.toLook, e)
		case which(e):
			s.toLook[e] = struct{}{}
		}
	}
}

// next returns the next tenures to look at, and unmarks them.
func (s *askables) next() (some []*askable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.toLook {
		if len(some) == looksTogether {
			break
		}
		delete(s.toLook, e)
		some = append(some, e)
	}
	return some
}

// look looks at some tenures and reports whether a retry is due: seen if there are outside subscribers, unsure if Redis did not answer in
// full.
func (c *Engine) look(some []*askable) (seen, unsure bool) {
	for _, e := range some {
		unsure = !c.woken(e) || unsure
	}
	found, err := c.sight(some)
	unsure = unsure || err != nil && !isRefusal(err)
	s := &c.askables
	for i, e := range some {
		s.mu.Lock()
		e.unsure = unsure && !found[i].queued
		asked := e.asked
		switch {
		case found[i].queued:
			asked = true
		case !found[i].outside && unsure:
		case !found[i].outside:
			e.outside = time.Time{}
		case !e.outside.IsZero() && time.Since(e.outside) >= lingering/2:
			asked = true
		default:
			if e.outside.IsZero() {
				e.outside = time.Now()
			}
			seen = true
		}
		s.mu.Unlock()
		if asked {
			c.askedFor(e.tag)
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
func (c *Engine) sight(some []*askable) ([]sighting, error) {
	queues, failed := c.queued(some)
	listen, err := c.listening(some)
	if err == nil || failed != nil && isRefusal(err) {
		err = failed
	}
	found := make([]sighting, len(some))
	for i, e := range some {
		ch := c.KnownChannel(e.spec)
		found[i].queued = queues[i]
		found[i].outside = e.spec.Kind.Queueing != kinds.PerWaiter && // Redisson's are in the queue, too
			listen[ch.Name]-listen[pubsub.InLine(ch).Name] > int64(c.Hub.Outside(ch))
	}
	return found, err
}

// woken wakes waiters for e that may not know whom to ask, if that is due. It reports false if Redis did not answer: then it remains due.
func (c *Engine) woken(e *askable) bool {
	s := &c.askables
	s.mu.Lock()
	due := e.wakes
	e.wakes = false
	s.mu.Unlock()
	if !due || c.wakeUnseen(e.spec) {
		return true
	}
	s.mu.Lock()
	e.wakes = true
	s.mu.Unlock()
	return false
}

// wakeUnseen wakes waiters that a look may not see: they try, are refused, and ask the owner. It reports false if Redis did not answer.
func (c *Engine) wakeUnseen(m *Spec) bool {
	ch := c.KnownChannel(m)
	if c.Cluster == nil || ch.Sharded || m.Kind.Queueing == kinds.PerWaiter {
		return true
	}
	_, err := c.publish(ch, pubsub.Unlocked)
	return err == nil || isRefusal(err)
}

// queued reports for each of them whether it has waiters, or writers' marks, in the queue in Redis. err means that it may not know of all.
func (c *Engine) queued(some []*askable) (queued []bool, err error) {
	var cmds []rueidis.Completed
	var of []int
	for i, e := range some {
		m := e.spec
		switch key := m.QueueKey(); {
		case m.Kind.Queueing == kinds.PerWaiter:
			cmds = append(cmds, c.RDB.B().Llen().Key(m.Queue).Build())
		case key == "":
			continue
		case m.Kind.Queueing == kinds.PerProcess:
			cmds = append(cmds, c.RDB.B().Zcard().Key(key).Build())
		default:
			cmds = append(cmds, c.RDB.B().Zrange().Key(key).Min("0").Max("-1").Build())
		}
		of = append(of, i)
	}
	queued = make([]bool, len(some))
	if len(cmds) == 0 {
		return queued, nil
	}
	for i, reply := range c.RDB.DoMulti(c.Calls.Context(context.Background(), time.Now(), 0), cmds...) {
		failed := reply.Error()
		c.Calls.Answered(some[of[i]].spec.Slot, failed)
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
func (e *askable) isOther(mark string) bool {
	_, reader, _ := strings.Cut(mark, " ")
	reader, _ = strings.CutSuffix(reader, " -")
	return reader != e.spec.Kind.Owner(e.spec.Engine.ID, e.tag, e.spec.isShort())
}

// listening counts the subscribers to the unlocks of those locks, and to the channels of those in line. err means that there may be more.
func (c *Engine) listening(some []*askable) (all map[string]int64, err error) {
	var plain []string
	var sharded []rueidis.Completed
	for _, e := range some {
		ch := c.KnownChannel(e.spec)
		names := []string{ch.Name, pubsub.InLine(ch).Name}
		if ch.Sharded {
			sharded = append(sharded, c.RDB.B().PubsubShardnumsub().Channel(names...).Build().SetSlot(e.spec.Key))
		} else {
			plain = append(plain, names...)
		}
	}
	ctx := c.Calls.Context(context.Background(), time.Now(), 0)
	var replies []rueidis.RedisResult
	if len(sharded) > 0 {
		replies = c.RDB.DoMulti(ctx, sharded...)
	}
	if len(plain) > 0 {
		slices.Sort(plain)
		plain = slices.Compact(plain) // locks may have one channel
		nodes := c.nodes()
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
func (c *Engine) nodes() []rueidis.Client {
	if c.Cluster == nil {
		return []rueidis.Client{c.RDB}
	}
	var all []rueidis.Client
	for _, node := range c.RDB.Nodes() {
		all = append(all, node)
	}
	return all
}
