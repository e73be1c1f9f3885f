package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// view is everything known about one lock.
type view struct {
	state
	Held bool `json:"held"`
	// Processes is the number of listeners to the unlock, Redisson's included; -1 if unknown.
	Processes int       `json:"waiting_processes"`
	Queue     []string  `json:"queue,omitempty"`      // per waiting process, the owner it is to become (plain or fenced lock) or its Client (semaphore)
	Wants     [][]int64 `json:"wants,omitempty"`      // semaphore: the permits wanted by each waiter of each process in Queue
	FairQueue []string  `json:"fair_queue,omitempty"` // waiters for a fair lock
	Writers   []string  `json:"writers,omitempty"`    // waiters for a read/write lock
	// Labels of waiting Clients and of permits' Clients, by id.
	Labels map[string]string `json:"labels,omitempty"`
}

// viewer is the state shared by commands that look at locks.
type viewer struct {
	target
	rdb   rueidis.Client
	locks *rlock.Client
	known map[string]string // labels by Client id
}

// open connects a viewer. It reports false, with the exit code, if it cannot connect.
func (p *program) open(ctx context.Context, t target) (v *viewer, code int, ok bool) {
	rdb, code, ok := p.connect(ctx, &t)
	if !ok {
		return nil, code, false
	}
	locks, err := rlock.New(rdb, rlock.Options{UnlockTimeout: unlockTime, Prefix: t.prefix})
	if err != nil {
		rdb.Close()
		return nil, p.fail(exitInternal, err), false
	}
	return &viewer{t, rdb, locks, make(map[string]string)}, 0, true
}

func (v *viewer) close() { closeSoon(closeTime, v.locks.Close, v.rdb.Close) }

// closeSoon runs the closers, and abandons them after some time.
func closeSoon(most time.Duration, closers ...func()) {
	closed := make(chan struct{})
	go func() { // ends when all is closed, or with the process
		defer close(closed)
		for _, c := range closers {
			c()
		}
	}()
	select {
	case <-closed:
	case <-time.After(most):
	}
}

// see connects a viewer and reads one lock. It reports false, with the exit code, if either failed.
func (p *program) see(ctx context.Context, t target, name string) (v *viewer, seen *view, code int, ok bool) {
	if v, code, ok = p.open(ctx, t); !ok {
		return nil, nil, code, false
	}
	seen, err := v.inspect(ctx, name)
	if err != nil {
		v.close()
		return nil, nil, p.failed(ctx, v.at(err)), false
	}
	return v, seen, 0, true
}

// inspect reads one lock of any kind.
func (v *viewer) inspect(ctx context.Context, name string) (*view, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	key := v.prefix + name
	held, failed := v.read(ctx, []string{key})
	if err := failed[key]; err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	seen := &view{state: v.named(key), Held: len(held) > 0}
	seen.Holders = []holder{}
	if seen.Held {
		seen.state = held[0]
	}
	if err := v.seeWaiters(ctx, seen); err != nil {
		return nil, err
	}
	if seen.isSemaphore() {
		if err := v.seeLine(ctx, seen); err != nil {
			return nil, err
		}
	}
	// The queues of all kinds: a free lock does not show its kind.
	for _, kind := range []struct {
		lock   *rlock.Mutex
		beside string // another key of such a lock
		queue  *[]string
	}{
		{v.locks.Mutex(name), key, &seen.Queue},
		{v.locks.FairMutex(name), prefixed("redisson_lock_timeout", key), &seen.FairQueue},
		{v.locks.RWMutex(name).Write(), hashTag(key) + ":", &seen.Writers},
	} {
		if seen.isCounter() { // counters have no such queues
			break
		}
		if !v.together(key, kind.beside) { // this cluster cannot have a lock of that kind and name
			continue
		}
		info, err := kind.lock.Info(ctx)
		switch {
		case isForbidden(err): // the holder is visible without the right to see queues
			info.Listening = -1
		case err != nil:
			return nil, err
		}
		*kind.queue = info.Queue
		switch {
		case info.Listening < 0 || seen.Processes < 0:
			seen.Processes = -1
		case kind.queue != &seen.FairQueue: // fair locks share the plain lock's channel
			seen.Processes += info.Listening
		}
	}
	// Redisson's fair waiters listen only on their own channels. In that queue our tags begin with 0.
	java := make(map[string]bool)
	for _, owner := range seen.FairQueue {
		if id, tag, _ := strings.Cut(owner, ":"); seen.Processes >= 0 && !strings.HasPrefix(tag, "0") && !java[id] {
			java[id] = true
			seen.Processes++
		}
	}
	if !seen.isCounter() && !v.together(key, prefixed(lockChannel, key)) { // the listeners are unknown, too
		seen.Processes = -1
	}
	if seen.Kind == "mutex" && len(seen.FairQueue) > 0 {
		seen.Kind = "fair"
	}
	if !seen.Held && !seen.isCounter() {
		seen.Token, _ = v.token(ctx, key) // missing, or not a number
	}
	v.addLabels(ctx, &seen.state)
	return seen, nil
}

// addHosts adds the known hosts of the holders.
func (v *viewer) addHosts(ctx context.Context, s *state) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	known := hosts(ctx, v.rdb)
	for i := range s.Holders {
		s.Holders[i].Host = known[clientID(s.Holders[i].Owner)]
	}
	for i := range s.Permits {
		s.Permits[i].addHost(known)
	}
}
