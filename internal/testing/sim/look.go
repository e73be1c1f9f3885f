package sim

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing/synctest"
	"time"
)

// Oracles look while a world runs, and for leftovers at its end.

// look makes all oracles look.
func (w *world) look() {
	w.mu.Lock()
	waiting, used := slices.Collect(maps.Keys(w.waiting)), w.used
	w.used = make(map[*oracle]struct{}, len(used))
	for _, v := range waiting {
		for _, o := range v.locks {
			w.used[o] = struct{}{}
		}
	}
	w.mu.Unlock()
	for o := range used {
		if o.look() {
			w.uses(o)
		}
	}
	for _, v := range waiting {
		v.look()
		v.lookAtAsked()
	}
	for _, o := range w.locks {
		if o.counter != nil {
			o.counter.look()
		}
	}
	if w.circles != nil {
		w.circles.look()
	}
	if w.ticks++; w.ticks%20 == 0 {
		w.lookForGhosts()
	}
}

// lookForGhosts reports holds of processes that are not using the lock any more: the library must find and release
// the leftovers of unanswered calls (G5).
func (w *world) lookForGhosts() {
	seen := make(map[string]time.Time)
	for i, server := range w.servers {
		of := make(map[string]*process)
		for _, p := range w.all {
			of[p.locks[i].ID()] = p
		}
		for _, key := range server.keys() {
			o := w.of[key]
			if o == nil || o.counter != nil {
				continue
			}
			for _, field := range server.fields(key) {
				p := of[field[:min(36, len(field))]]
				if p == nil || p.ended.Load() {
					continue
				}
				if d := w.haunts(p, o, fmt.Sprint(i, key, field), seen); d > 0 {
					w.violation(o.name.Text, "server %d has %s for %v, and p%d is not using %s any more (G5)",
						i, short(field), d, p.number, key)
				}
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ghosts = seen
}

// disturbed returns how many processes were disturbed at some time since then.
func (w *world) disturbed(since time.Duration) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.all {
		if p.active > 0 || time.Since(p.faulted) < since || p.ended.Load() {
			n++
		}
	}
	return n
}

// uses marks a lock to be looked at.
func (w *world) uses(o *oracle) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used[o] = struct{}{}
}

// haunts notes a field of a process that is not using the lock, and returns its age if that is too high.
func (w *world) haunts(p *process, o *oracle, name string, seen map[string]time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.busy[o] > 0 || time.Now().Before(p.keeps[o].Add(w.reach())) {
		return 0
	}
	at, known := w.ghosts[name]
	if !known {
		at = time.Now()
	}
	seen[name] = at
	// A field that came late by some time is found within that time and the time of a try. The search lasts as long
	// as its lease, a minute at most; a later field ends with its lease.
	d, late := time.Since(at), p.longest+6*time.Second
	if p.longest > min(w.plan.Watchdog, time.Minute) {
		late += w.plan.Watchdog
	}
	if d < late || p.active > 0 || time.Since(p.faulted) < late {
		return 0
	}
	seen[name] = time.Now().Add(time.Hour) // reported
	return d
}

// released notes that the unlock of an owner has returned. A later section may have the same owner, and may have
// begun before that; a Lock of several may have it while it waits for another one.
func (w *world) released(p *process, o *oracle, owner string) {
	if owner == "" || len(w.all) > 100 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holding[owner] == 0 && p.many[o] == 0 {
		w.unlocked[owner] = time.Now()
	}
}

// lingers notes that a process may have a lock for d after the coming unlock of owner.
func (w *world) lingers(p *process, o *oracle, owner string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if owner != "" {
		w.kept[owner] = struct{}{}
	}
	if until := time.Now().Add(d); until.After(p.keeps[o]) {
		p.keeps[o] = until
	}
}

// stuck returns a lock that somebody waits for.
func (w *world) stuck() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.waiting {
		return v.locks[0].name.Text
	}
	return ""
}

// checkRest looks for leftovers after all calls have ended.
func (w *world) checkRest() {
	wait := 4 * time.Second // lingering subscriptions, and sweeping
	if !w.plan.isCalm() {
		wait = w.settle() + 3*w.plan.Watchdog + 65*time.Second // failed releases are repeated for a minute
	}
	if w.plan.Linger > 0 {
		wait += longestLinger
	}
	counts := slices.ContainsFunc(w.locks, func(o *oracle) bool { return o.counter != nil })
	if counts {
		wait = max(wait, recordKept)
	}
	time.Sleep(wait)
	for _, s := range w.servers {
		for _, channel := range s.channels() {
			if isEar(channel) {
				continue // an ear stays until Close
			}
			w.violation(w.nameIn(channel), "channel %s of server %d has a subscriber %v after the end (G5)", channel, s.number, wait)
		}
		for _, key := range s.keys() {
			if o := w.of[key]; o != nil && o.counter != nil || isLabel(key) {
				continue // it stays, a label until Close
			}
			if !strings.HasPrefix(key, "redisson_lock_token") && !w.isOfTheDead(s, key) {
				w.violation(w.nameIn(key), "key %s of server %d still exists %v after the end (G5)", key, s.number, wait)
			}
		}
	}
	for _, o := range w.locks {
		if o.counter != nil {
			o.counter.rest()
		}
	}
	if w.circles != nil {
		w.circles.rest()
	}
	for _, p := range w.all {
		p.close()
	}
	w.checkLabels()
}

// checkLabels looks for labels left after all Clients are closed. Those of dead processes, and those that could not
// be deleted, expire.
func (w *world) checkLabels() {
	if !w.plan.isCalm() {
		time.Sleep(max(2*w.plan.Watchdog, 3*time.Second))
	}
	for _, s := range w.servers {
		for _, key := range s.keys() {
			if isLabel(key) {
				w.violation("", "label %s of server %d still exists after Close (G9)", key, s.number)
			}
		}
	}
}

func isLabel(key string) bool { return strings.HasPrefix(key, "rlock_client:") }

// isOfTheDead reports whether a key is the queue of a fair lock whose members have all ended, or could not leave it
// for a minute: they stay there until somebody wants the lock.
func (w *world) isOfTheDead(s *server, key string) bool {
	w.mu.Lock()
	outage := w.outage
	w.mu.Unlock()
	if outage > 50*time.Second && (strings.HasPrefix(key, "redisson_lock_queue") || strings.HasPrefix(key, "redisson_lock_timeout")) {
		return true
	}
	var entries []string
	switch {
	case strings.HasPrefix(key, "redisson_lock_queue"):
		entries = s.texts("lrange", key, "0", "-1")
	case strings.HasPrefix(key, "redisson_lock_timeout"):
		entries = s.texts("zrange", key, "0", "-1")
	}
	for _, entry := range entries {
		if !slices.ContainsFunc(w.all, func(p *process) bool { return p.ended.Load() && strings.HasPrefix(entry, p.locks[s.number].ID()) }) {
			return false
		}
	}
	return len(entries) > 0
}

// close closes the Clients of a process, one after the other, and checks for what each leaves behind (G9).
func (p *process) close() {
	w := p.world
	for i, c := range p.locks {
		began := time.Now()
		c.Close()
		took := time.Since(began)
		p.closed.Go(func() { // ends by itself
			time.Sleep(w.reach())
			if p.isDead() || p.quiet() < time.Minute {
				return
			}
			if took > time.Second {
				w.violation("", "Close of p%d took %v (G9)", p.number, took)
			}
			for _, channel := range w.servers[i].channels() {
				if strings.Contains(channel, c.ID()) {
					w.violation(w.nameIn(channel), "p%d is closed, and subscribed to %s (G9)", p.number, channel)
				}
			}
		})
	}
}

func (w *world) ran() int {
	n := 0
	for _, s := range w.servers {
		n += s.ran()
	}
	return n
}

func (w *world) nameIn(text string) string {
	for _, n := range w.plan.Names {
		if strings.Contains(text, n.Text) {
			return n.Text
		}
	}
	return ""
}

// end ends all goroutines.
func (w *world) end() {
	w.finish()
	w.faults.Wait()
	for _, p := range w.all {
		p.stop()
		for _, c := range p.locks {
			p.closed.Go(c.Close)
		}
	}
	w.work.Wait()
	w.lookForGoroutines()
	for _, p := range w.all {
		p.closed.Wait()
		for _, c := range p.redis {
			c.Close()
		}
		for _, way := range p.ways {
			way.Kill()
		}
	}
	synctest.Wait()
	for _, s := range w.servers {
		s.redis.Close()
	}
}

// lookForGoroutines looks for goroutines of the library after all of its Clients are closed, while the rest still
// lives (G9).
func (w *world) lookForGoroutines() {
	for _, p := range w.all {
		p.closed.Wait()
	}
	if !w.plan.isCalm() || len(w.all) > 100 {
		return // one may be waiting for a connection of rueidis
	}
	synctest.Wait()
	own := make([]byte, 200)
	own = own[:runtime.Stack(own, false)]
	from := bytes.Index(own, []byte("synctest bubble "))
	bubble := own[from : from+bytes.IndexByte(own[from:], ']')+1]
	all := make([]byte, 1<<22)
	all = all[:runtime.Stack(all, true)]
	for stack := range bytes.SplitSeq(all, []byte("\n\n")) {
		if head, _, _ := bytes.Cut(stack, []byte{'\n'}); bytes.HasSuffix(bytes.TrimSuffix(head, []byte{':'}), bubble) &&
			bytes.Contains(stack, []byte("created by github.com/go-rlock/rlock/")) && !bytes.Contains(stack, []byte("/internal/testing/sim.")) {
			w.violation("", "a goroutine is left after Close (G9): %s", stack)
		}
	}
}
