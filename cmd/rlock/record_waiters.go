package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// seeAllWaiters finds the locks with waiters, and those waiters that stand in no line. They are written when they are seen for the second
// time: a process counts for half a second after its last waiter has gone.
func (r *recorder) seeAllWaiters(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r.spend(16 * len(nodes(r.rdb))) // four each for four patterns
	channels, _, err := r.listening(asking)
	if ctx.Err() != nil {
		return
	}
	if isForbidden(err) { // run has said so
		return
	}
	if r.blind = err != nil; r.blind {
		r.fails(ctx, err)
		return
	}
	now := time.Now()
	seen := make(map[*watched]*listeners)
	for channel, l := range channels {
		if strings.HasPrefix(channel, latchChannel) || strings.HasPrefix(channel, semaphoreChannel+":") || l.count() == 0 {
			continue
		}
		keys := keysOf(channel)
		slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(r.likely(b), r.likely(a)) })
		if len(keys) > 0 && r.concerns(keys[0]) {
			if w := r.watch(keys[0], false); w != nil {
				seen[w] = l
			}
		}
	}
	var events []event
	for _, w := range r.locks {
		l := seen[w]
		w.waitedFor = l != nil
		if w.seen == nil {
			continue
		}
		if l == nil {
			l = &listeners{}
		}
		events = append(events, r.beside(w, l, now)...)
	}
	r.write(ctx, events)
	r.recovers(ctx)
}

// likely tells which of two keys with one channel is waited for.
func (r *recorder) likely(key string) int {
	switch w := r.locks[key]; {
	case w != nil && w.seen != nil && w.seen.Held:
		return 2
	case !strings.HasPrefix(key, "{"):
		return 1
	}
	return 0
}

// beside returns what has changed of the waiters that stand in no line.
func (r *recorder) beside(w *watched, l *listeners, now time.Time) (events []event) {
	add := func(what, owner string) *event {
		e := event{Time: now, Event: what, Kind: w.seen.Kind, Owner: owner, Within: max(r.every, topInterval).Milliseconds()}
		e.of(strings.TrimPrefix(w.key, r.prefix))
		events = append(events, e)
		return &events[len(events)-1]
	}
	others := max(l.count()-int64(len(l.ours)), 0)
	if both := min(others, w.mayOthers); both != w.others {
		w.others = both
		add(eventOthers, "").Count = &both
	}
	w.mayOthers = others
	may := make(map[string]bool)
	if w.seen.Kind == "read" || w.seen.Kind == "write" {
		for id := range l.ours {
			is := func(owner string) bool { return clientID(owner) == id }
			if !slices.ContainsFunc(w.queue, is) && !slices.ContainsFunc(w.seen.Holders, func(h holder) bool { return is(h.Owner) }) {
				may[id] = true
			}
		}
	}
	readers := make(map[string]bool)
	for id := range may {
		if readers[id] = w.mayRead[id]; !readers[id] {
			delete(readers, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.readers)) {
		if !readers[id] {
			add(eventLeft, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(readers)) {
		if !w.readers[id] {
			add(eventWaits, id)
		}
	}
	w.readers, w.mayRead = readers, may
	if len(events) > 0 {
		w.changed = now
	}
	return events
}
