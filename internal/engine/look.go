package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/pubsub"
)

// A look asks Redis who waits for a lock: how many are in the queue there, and who listens to its unlocks without being in line. Who listens may
// be about to leave: so he counts when he is still there at a second look.

const (
	// lingering is for how long a process that does not wait may still listen to unlocks, and more.
	lingering = time.Second
	// looksTogether is how many locks are looked at together.
	looksTogether = 100
)

// watchAskables looks until Close.
func (c *Engine) watchAskables() {
	s := &c.askables
	every := time.NewTicker(c.Options.WatchdogTimeout / 3)
	defer every.Stop()
	var again <-chan time.Time
	for {
		select {
		case <-s.due:
		case <-again:
			again = nil
			s.lookAt(func(e *askable) bool { return !e.outside.IsZero() })
		case <-every.C:
			s.lookAtAll()
		case <-c.Calls.Done():
			return
		}
		for some := s.next(); len(some) > 0; some = s.next() {
			if c.look(some) && again == nil {
				again = time.After(lingering)
			}
		}
	}
}

// lookSoon wakes whoever looks.
func (s *askables) lookSoon() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// lookAtAll has all be looked at that nobody has asked.
func (s *askables) lookAtAll() {
	s.lookAt(func(*askable) bool { return true })
	s.lookSoon()
}

func (s *askables) lookAt(which func(*askable) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.of {
		e.look = !e.asked && (e.look || which(e))
	}
}

// next is whom to look at now.
func (s *askables) next() (some []*askable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.of {
		if e.look && len(some) < looksTogether {
			e.look = false
			some = append(some, e)
		}
	}
	return some
}

// look looks at some, and reports whether some of them are to be looked at again soon. What Redis does not tell now is looked for the next time.
func (c *Engine) look(some []*askable) (again bool) {
	queues, listen := c.queued(some), c.listening(some)
	s := &c.askables
	for i, e := range some {
		ch := c.KnownChannel(e.spec)
		outside := e.spec.Kind.Queueing != kinds.PerWaiter && // Redisson's are in the queue, too
			listen[ch.Name]-listen[pubsub.InLine(ch).Name] > int64(c.Hub.Outside(ch))
		s.mu.Lock()
		switch {
		case queues[i]:
			e.ask()
		case !outside:
			e.outside = time.Time{}
		case !e.outside.IsZero() && time.Since(e.outside) >= lingering/2:
			e.ask()
		default:
			if e.outside.IsZero() {
				e.outside = time.Now()
			}
			again = true
		}
		asked := e.asked
		s.mu.Unlock()
		if asked {
			c.askedIdleOf(e.tag)
		}
	}
	return again
}

// queued says for which of them anybody is in the queue in Redis, or has a mark there.
func (c *Engine) queued(some []*askable) []bool {
	var cmds []rueidis.Completed
	var of []int
	for i, e := range some {
		m := e.spec
		switch key := m.queueKey(); {
		case m.Kind.Queueing == kinds.PerWaiter:
			cmds = append(cmds, c.rdb.B().Llen().Key(m.queue).Build())
		case key == "":
			continue
		case m.Kind.Queueing == kinds.PerProcess:
			cmds = append(cmds, c.rdb.B().Zcard().Key(key).Build())
		default:
			cmds = append(cmds, c.rdb.B().Zrange().Key(key).Min("0").Max("-1").Build())
		}
		of = append(of, i)
	}
	queued := make([]bool, len(some))
	if len(cmds) == 0 {
		return queued
	}
	for i, reply := range c.rdb.DoMulti(c.Calls.Context(context.Background(), time.Now(), 0), cmds...) {
		if marks, err := reply.AsStrSlice(); err == nil {
			queued[of[i]] = slices.ContainsFunc(marks, some[of[i]].isOther)
		} else if n, err := reply.AsInt64(); err == nil {
			queued[of[i]] = n > 0
		}
	}
	return queued
}

// isOther reports whether the mark of a writer is not that of the reader itself, which is to become the writer.
func (e *askable) isOther(mark string) bool {
	_, reader, _ := strings.Cut(mark, " ")
	reader, _ = strings.CutSuffix(reader, " -")
	return reader != e.spec.Kind.Owner(e.spec.Engine.ID, e.tag, e.spec.isShort())
}

// listening is how many listen to the unlocks of those locks, and to the channels of those who are in line. A channel of which that is not known is
// not among them.
func (c *Engine) listening(some []*askable) map[string]int64 {
	var plain []string
	var sharded []rueidis.Completed
	for _, e := range some {
		ch := c.KnownChannel(e.spec)
		names := []string{ch.Name, pubsub.InLine(ch).Name}
		if ch.Sharded {
			sharded = append(sharded, c.rdb.B().PubsubShardnumsub().Channel(names...).Build().SetSlot(e.spec.Key))
		} else {
			plain = append(plain, names...)
		}
	}
	all := make(map[string]int64)
	count := func(reply rueidis.RedisResult) (known bool) {
		some, err := reply.AsIntMap()
		for name, n := range some {
			all[name] += n
		}
		return err == nil
	}
	ctx := c.Calls.Context(context.Background(), time.Now(), 0)
	if len(sharded) > 0 {
		for _, reply := range c.rdb.DoMulti(ctx, sharded...) {
			count(reply)
		}
	}
	if len(plain) > 0 {
		slices.Sort(plain)
		plain = slices.Compact(plain) // locks may have one channel
		for _, node := range c.nodes() {
			if !count(node.Do(ctx, node.B().PubsubNumsub().Channel(plain...).Build())) { // those at the others are not all
				clear(all)
				break
			}
		}
	}
	return all
}

// nodes are those at which somebody may listen to a plain channel.
func (c *Engine) nodes() []rueidis.Client {
	if c.Cluster == nil {
		return []rueidis.Client{c.rdb}
	}
	var all []rueidis.Client
	for _, node := range c.rdb.Nodes() {
		all = append(all, node)
	}
	return all
}
