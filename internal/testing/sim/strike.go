package sim

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/testing/memnet"
)

// Faults and their effect on a world.

// fault makes one happen, and returns when it is over.
func (w *world) fault(f Fault) {
	concerned := w.all
	if f.Process >= 0 {
		concerned = w.all[f.Process : f.Process+1]
	}
	w.disturb(concerned, 1)
	w.trace.note(-1, "fault: %v", f)
	defer func() {
		w.disturb(concerned, -1)
		if f.For > 0 {
			w.trace.note(-1, "fault: %v is over", f.What)
		}
	}()
	server := w.servers[f.Server]
	var ways []*memnet.Way // concerned
	if f.Process >= 0 {
		ways = w.all[f.Process].ways
	} else {
		for _, p := range w.all {
			ways = append(ways, p.ways[f.Server])
		}
	}
	each := func(do func(*memnet.Way)) {
		for _, way := range ways {
			do(way)
		}
	}
	answer := func(text string) {
		server.answer(text)
		time.Sleep(f.For)
		server.answer("")
	}
	switch f.What { //nolint:exhaustive // the last one is none
	case Late:
		each((*memnet.Way).HoldOpen)
		time.Sleep(f.For)
		each((*memnet.Way).Free)
	case HeldBack, ServerSlow:
		each((*memnet.Way).Hold)
		time.Sleep(f.For)
		each((*memnet.Way).Free)
	case Cut:
		each(func(way *memnet.Way) { way.Cut(nil) })
	case HalfCut:
		each(func(way *memnet.Way) { way.Cut((*memnet.Link).Listens) })
	case ReplyLost:
		each(func(way *memnet.Way) { way.LoseReplies(1) })
	case Silent:
		each((*memnet.Way).Silence)
		time.Sleep(f.For)
		each((*memnet.Way).Heal)
	case Refused, ServerBack, ServerEmpty:
		each(func(way *memnet.Way) { way.Refuse(true); way.Cut(nil) })
		if f.What == ServerEmpty {
			w.forgotten(w.locks)
			server.forget()
			for _, o := range w.locks {
				server.look(o.name.Text)
			}
			w.forgotten(w.locks)
		}
		time.Sleep(f.For)
		each(func(way *memnet.Way) { way.Refuse(false) })
	case Killed, Closed, ShutDown:
		w.endProcess(w.all[f.Process], f.What)
	case Loading:
		answer("LOADING Redis is loading the dataset in memory")
	case Busy:
		answer("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.")
	case ReadOnly:
		answer("READONLY You can't write against a read only replica.")
	case OutOfMemory:
		answer("OOM command not allowed when used memory > 'maxmemory'.")
	case NoScript:
		server.redis.Forget()
	case Deleted:
		o := w.locks[f.Name]
		w.forgotten([]*oracle{o})
		server.do("del", o.name.Text)
		server.look(o.name.Text)
		w.forgotten([]*oracle{o})
	case Forced: // atomically, as any client does it
		o := w.locks[f.Name]
		w.forgotten([]*oracle{o})
		server.do("del", o.name.Text)
		server.look(o.name.Text)
		w.forgotten([]*oracle{o})
		if o.counter != nil {
			return
		}
		channel := "redisson_lock__channel:{"
		if o.name.Kind == ReadWrite {
			channel = "redisson_rwlock:{"
		}
		server.do("publish", channel+o.name.Text+"}", "1")
	}
}

// disturb notes that a fault begins or ends.
func (w *world) disturb(concerned []*process, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastFault = time.Now()
	if w.active == 0 {
		w.disturbing = w.lastFault
	}
	w.active += n
	w.outage = max(w.outage, w.lastFault.Sub(w.disturbing))
	for _, p := range concerned {
		if p.active == 0 && w.lastFault.Sub(p.faulted) > time.Second {
			p.began = w.lastFault
		}
		p.active += n
		p.faulted = w.lastFault
		p.longest = max(p.longest, p.faulted.Sub(p.began))
	}
}

// forgotten is called before and after the server forgets locks.
func (w *world) forgotten(locks []*oracle) {
	for _, o := range locks {
		o.forgotten()
	}
}

// endProcess ends one.
func (w *world) endProcess(p *process, how What) {
	w.mu.Lock()
	w.ended++
	p.over = time.Now()
	w.mu.Unlock()
	p.ended.Store(true)
	if how == Killed {
		p.dead.Store(true)
		for _, way := range p.ways {
			way.Kill()
		}
	}
	if how == ShutDown {
		for _, c := range p.locks {
			p.closed.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = c.Shutdown(ctx)
			})
		}
		return
	}
	p.stop()
	p.closed.Go(p.close)
}
