package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
)

const (
	leastRate  = 100              // commands a second
	aliveEvery = 10 * time.Second // see eventAlive
	scanShare  = 0.1              // of the rate, for one scan of all keys after the other
	idleTime   = time.Minute      // after which a free lock may give its place to another
	mostQueued = 100              // owners in line that are read per lock
	mostLooks  = 200              // locks per look
	hotLooks   = 5                // looks at most, because of messages, in the time between two without
	mostLabels = 10_000           // labels that are remembered

	// The commands that looks need, roughly.
	costOfGlance = 2 // and of a look at what has not changed
	costOfLook   = 8 // of a lock that was told of
)

// recorder looks at all locks, one batch after the other, and writes what has changed. One goroutine has it.
type recorder struct {
	*hearing
	every time.Duration
	rate  int
	out   *recordWriter

	locks      map[string]*watched // by key
	candidates []*watched          // found by SCAN, and may be anything
	beyond     map[string]bool     // further locks, for which there was no place
	tidied     time.Time           // when idle locks were removed

	balance  float64   // commands that may be sent now
	counted  time.Time // when that was computed
	commands int64     // since the last eventAlive
	alive    time.Time
	waiters  time.Time // when to look for waiters
	scan     scanning

	down   bool                 // Redis, or a part of it, fails
	blind  bool                 // the last look for waiters failed
	cut    bool                 // it may have been started again
	back   time.Time            // when it last answered again
	server string               // what names this run of it
	bare   map[string]time.Time // ids of Clients whose label was not found
}

// scanning is how far SCAN is.
type scanning struct {
	began   time.Time
	cost    int    // commands, with the looks at what it found
	servers []node // that are left; the first one is at cursor
	cursor  uint64
	ended   bool // the last candidates are being looked at
}

// watched is a lock, as it was at the last look.
type watched struct {
	key       string
	seen      *view     // nil: no look yet
	began     time.Time // of the last look that was answered
	asked     time.Time // when the last look began
	changed   time.Time
	told      int       // messages since the last look
	hurried   time.Time // when a message last led to a look
	heardOf   bool      // a message led to it: its first holder is new
	candidate bool      // it may be no lock
	listened  bool      // each message was heard, at the last look
	broken    bool      // Redis did not answer since the last look
	doubt     time.Time // when a hold was gone without a message, which may be late

	waitedFor bool
	queue     []string        // owners in line
	readers   map[string]bool // ids of Clients that wait for the read side
	mayRead   map[string]bool // that may, seen once
	others    int64           // further waiting processes
	mayOthers int64           // seen at the last look for waiters
}

func newRecorder(v *viewer, pattern string, every time.Duration, rate, limit int, out io.Writer) *recorder {
	return &recorder{
		hearing: &hearing{viewer: v, pattern: escapeGlob(v.prefix) + pattern, most: limit},
		every:   every, rate: rate, out: newRecordWriter(out),
		locks: make(map[string]*watched), beyond: make(map[string]bool), bare: make(map[string]time.Time),
	}
}

// run records until ctx ends. It fails if the recording cannot be written.
func (r *recorder) run(ctx context.Context) error {
	now := time.Now()
	r.out.line(heading{recordingVersion, now.UTC().Truncate(time.Millisecond), r.where, r.prefix, strings.TrimPrefix(r.pattern, escapeGlob(r.prefix)), r.every.Milliseconds(), r.rate})
	r.counted, r.alive, r.balance = now, now, float64(r.rate)
	r.server, _ = r.runID(ctx)
	r.listen(ctx)
	ticker := time.NewTicker(watchInterval) // so no lock is looked at more often
	defer ticker.Stop()
	for {
		r.tick(ctx)
		if ctx.Err() != nil {
			r.out.event(event{Time: time.Now(), Event: eventEnd, Names: len(r.locks), Commands: r.commands})
			return r.out.flush()
		}
		if err := r.out.flush(); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// spend counts commands that are sent.
func (r *recorder) spend(commands int) {
	r.balance -= float64(commands)
	r.commands += int64(commands)
}

// tick looks at what is due, as far as the rate allows.
func (r *recorder) tick(ctx context.Context) {
	now := time.Now()
	r.balance = min(float64(r.rate), r.balance+now.Sub(r.counted).Seconds()*float64(r.rate))
	r.counted = now
	told, deaf := r.heard()
	for key, many := range told {
		second := strings.HasPrefix(key, "{") && told[twin(key)] > 0 // of two names with one channel
		if w := r.watch(key, second); w != nil {
			w.told += many
			w.heardOf = w.heardOf || w.seen == nil
		}
	}
	if deaf {
		r.out.event(event{Time: now, Event: eventDeaf})
	}
	if now.Sub(r.alive) >= aliveEvery {
		r.out.event(event{Time: now, Event: eventAlive, Names: len(r.locks), Commands: r.commands})
		r.alive, r.commands = now, 0
	}
	if r.balance <= 0 {
		return
	}
	if r.cut = r.wasCut() || r.cut; r.cut { // look at nothing before that is clear
		if err := r.noticeRestart(ctx); err != nil {
			r.fails(ctx, err)
			return
		}
		r.cut = false
	}
	if !now.Before(r.waiters) {
		r.waiters = now.Add(max(r.every, topInterval))
		r.seeAllWaiters(ctx)
	}
	if len(r.candidates) == 0 {
		r.scanOn(ctx, now)
	}
	for chunk := range slices.Chunk(r.due(now), mostLooks) {
		r.look(ctx, chunk)
	}
}

// watch returns the lock with that key, and makes it if there is a place for it; otherwise nil. known: only if it is there.
func (r *recorder) watch(key string, known bool) *watched {
	w := r.locks[key]
	if w != nil || known {
		return w
	}
	now := time.Now()
	if len(r.locks) >= r.most && now.Sub(r.tidied) > time.Second {
		r.tidied = now
		maps.DeleteFunc(r.locks, func(_ string, w *watched) bool {
			return w.seen != nil && !w.seen.Held && !w.waitedFor && len(w.queue) == 0 && now.Sub(w.changed) > idleTime
		})
	}
	if len(r.locks) >= r.most {
		if len(r.beyond) < r.most {
			r.beyond[key] = true
		}
		return nil
	}
	w = &watched{key: key, began: now, changed: now}
	r.locks[key] = w
	return w
}

// due returns the locks to look at now. Those that were told of come first, but leave a third of the commands to the others, and these half
// of theirs to what SCAN found. Whoever was looked at longest ago comes first.
func (r *recorder) due(now time.Time) (batch []*watched) {
	var told, others []*watched
	for _, w := range r.locks {
		since := now.Sub(w.asked)
		switch {
		case !w.doubt.IsZero() && w.told == 0 && now.Sub(w.doubt) < lateMessage:
		case w.told > 0 && now.Sub(w.hurried) >= r.every/hotLooks:
			told = append(told, w)
		case since >= r.every:
			others = append(others, w)
		}
	}
	left := r.balance
	take := func(from []*watched, cost int, share float64) {
		many := min(len(from), int(left*share)/cost+1)
		if many < len(from) {
			slices.SortFunc(from, func(a, b *watched) int { return a.asked.Compare(b.asked) })
		}
		batch = append(batch, from[:many]...)
		left = max(0, left-float64(many*cost))
	}
	rest := 1.0
	if len(r.candidates) > 0 {
		rest = 0.5
	}
	if len(told) > 0 {
		share := 1.0
		if len(others)+len(r.candidates) > 0 {
			share = 0.67
		}
		take(told, costOfLook, share)
		for _, w := range batch {
			w.hurried = now
		}
	}
	if len(others) > 0 && left > 0 {
		take(others, costOfGlance, rest)
	}
	if many := min(len(r.candidates), int(left)/costOfGlance); many > 0 {
		batch, r.candidates = append(batch, r.candidates[:many]...), r.candidates[many:]
	}
	return batch
}

// look reads locks, and writes what has changed.
func (r *recorder) look(ctx context.Context, batch []*watched) {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	began, listens := time.Now(), r.listens()
	keys := make([]string, len(batch))
	for i, w := range batch {
		w.asked, keys[i] = began, w.key
	}
	seen := r.glances(asking, keys)
	r.spend(costOfGlance * len(keys))
	now := make(map[string]*view, len(batch))
	failed := make(map[string]error)
	var changed []string
	var glances []glance
	for i, w := range batch {
		if w.candidate {
			r.scan.cost += costOfGlance + 3*min(len(seen[i].fields), 1)
		}
		same := w.unchanged(seen[i])
		switch {
		case same != nil:
			now[w.key] = same
		case isWrongType(seen[i].err): // the others need five commands each, and are not recorded
			failed[w.key] = errNoLock
		default:
			changed, glances = append(changed, w.key), append(glances, seen[i])
			r.spend(3 * min(len(seen[i].fields), 1))
		}
	}
	if len(changed) > 0 {
		held, others := r.readAfter(asking, changed, glances)
		maps.Copy(failed, others)
		for i := range held {
			now[held[i].key] = &view{state: held[i], Held: true, Processes: -1}
		}
	}
	queues := r.queues(asking, batch, now)
	if ctx.Err() != nil {
		return
	}
	var events []event
	answered := time.Now()
	for _, w := range batch {
		err := failed[w.key]
		switch {
		case err == nil:
		case errors.Is(err, errNoLock), isForbidden(err):
			delete(r.locks, w.key)
			continue
		case w.candidate: // the next scan finds it again
			continue
		default:
			r.fails(ctx, err)
			w.broken = true
			continue
		}
		next := now[w.key]
		if next == nil {
			next = &view{state: r.named(w.key), Processes: -1}
			if w.seen != nil {
				next.Kind = w.seen.Kind
			}
		}
		if w.candidate {
			w.candidate = false
			if !next.Held || r.locks[w.key] != nil {
				continue
			}
			place := r.watch(w.key, false)
			if place == nil {
				continue
			}
			place.asked = began
			w = place
		}
		events = append(events, r.compare(w, next, queues[w.key], began, answered, listens)...)
	}
	r.recovers(ctx)
	r.write(ctx, events)
}

// unchanged returns the state of a lock that has the holders it had, or nil. Levels are not recorded, so one owner is enough to see that.
func (w *watched) unchanged(g glance) *view {
	if w.seen == nil || g.err != nil {
		return nil
	}
	var owner string
	for _, f := range g.fields {
		if f == "mode" {
			continue
		}
		if owner != "" {
			return nil
		}
		owner = f
	}
	if w.seen.Held != (owner != "") || w.seen.Held && (len(w.seen.Holders) != 1 || w.seen.Holders[0].Owner != owner) {
		return nil
	}
	same := *w.seen
	same.TTL = g.ttl
	return &same
}

// queues reads the owners in line for the locks with waiters. A user without that right sees none.
func (r *recorder) queues(ctx context.Context, batch []*watched, now map[string]*view) map[string][]string {
	found := make(map[string][]string)
	var reads rueidis.Commands
	var of []string
	for _, w := range batch {
		if !w.waitedFor && len(w.queue) == 0 && w.told == 0 {
			continue
		}
		kind := ""
		if v := now[w.key]; v != nil {
			kind = v.Kind
		} else if w.seen != nil {
			kind = w.seen.Kind
		}
		b := r.rdb.B()
		last := int64(mostQueued - 1)
		if kind == "" || kind == "mutex" || kind == "fenced" {
			reads, of = append(reads, b.Zrange().Key(own("rlock_queue", w.key)).Min("0").Max("99").Build()), append(of, w.key)
		}
		if kind == "" || kind == "mutex" || kind == "fair" { // a fair lock held by Redisson looks like a mutex
			reads, of = append(reads, b.Lrange().Key(prefixed("redisson_lock_queue", w.key)).Start(0).Stop(last).Build()), append(of, w.key)
		}
		if kind == "" || kind == "read" || kind == "write" {
			reads, of = append(reads, b.Zrange().Key(own("rlock_writers", w.key)).Min("0").Max("99").Build()), append(of, w.key)
		}
		found[w.key] = []string{}
	}
	if len(reads) == 0 {
		return found
	}
	r.spend(len(reads))
	for i, reply := range r.rdb.DoMulti(ctx, reads...) {
		entries, err := reply.AsStrSlice()
		if err != nil && !rueidis.IsRedisNil(err) && !isWrongType(err) && !isForbidden(err) {
			delete(found, of[i]) // it stays as it was
			continue
		}
		if _, ok := found[of[i]]; !ok {
			continue
		}
		for _, entry := range entries {
			owner, _, _ := strings.Cut(entry, " ") // and what it wants
			found[of[i]] = append(found[of[i]], owner)
		}
	}
	return found
}

// compare returns what has changed since the last look at a lock, and remembers this one. queue is nil if it was not read.
func (r *recorder) compare(w *watched, now *view, queue []string, began, answered time.Time, listens bool) (events []event) {
	within := answered.Sub(w.began)
	add := func(what, owner string) *event {
		e := event{Time: answered, Event: what, Kind: now.Kind, Owner: owner, Within: max(within.Milliseconds(), 1)}
		e.of(strings.TrimPrefix(w.key, r.prefix))
		events = append(events, e)
		return &events[len(events)-1]
	}
	if w.seen == nil {
		what := eventHeld
		if w.heardOf {
			what = eventAcquired
		}
		for _, h := range now.Holders {
			add(what, h.Owner).Token = now.tokenOf(h)
		}
		if w.heardOf && !now.Held {
			add(eventPassed, "").Unlocks = w.told
		}
	} else {
		found := changes(w.seen, now, within, w.told > 0, w.listened && listens)
		broken := w.broken || w.began.Before(r.back)
		cut := w.listened && !listens && w.told == 0 // perhaps by a restart
		if !broken && slices.ContainsFunc(found, func(c change) bool {
			return c.Event == eventGone && !r.wasForced(c.Owner) || c.Event == eventReleased && cut
		}) {
			if w.doubt.IsZero() {
				w.doubt = answered
			}
			if answered.Sub(w.doubt) < lateMessage {
				return nil
			}
		}
		for _, c := range found {
			what := c.Event
			switch {
			case what == eventAcquired:
			case c.Owner == "":
				what = eventPassed
			case holds(now, c.Owner): // a level
				continue
			case r.wasForced(c.Owner):
				what = eventForced
			case kinds.IsPlaceholder(c.Owner): // of WithMinHold, which ends it by its lease
				what = eventReleased
			case broken:
				what = eventVanished
			}
			e := add(what, c.Owner)
			e.Token = c.Token
			if len(events) == 1 {
				e.Unlocks = w.told
			}
			if c.Event != eventAcquired {
				e.Kind = cmp.Or(w.seen.Kind, now.Kind)
				if what == eventGone && !w.doubt.IsZero() {
					e.Time = w.doubt
				}
			}
		}
	}
	if queue != nil {
		for _, owner := range w.queue {
			if !slices.Contains(queue, owner) {
				add(eventLeft, owner).Unlocks = w.told
			}
		}
		for _, owner := range queue {
			if !slices.Contains(w.queue, owner) && !holds(now, owner) {
				add(eventWaits, owner)
			}
		}
		w.queue = slices.DeleteFunc(queue, func(owner string) bool { return holds(now, owner) })
	}
	if len(events) > 0 {
		w.changed = answered
	}
	w.seen, w.began, w.listened, w.told, w.heardOf, w.broken, w.doubt = now, began, listens, 0, false, false, time.Time{}
	return events
}

// write writes events with the labels of their owners.
func (r *recorder) write(ctx context.Context, events []event) {
	ids, now := make(map[string]bool), time.Now()
	for i := range events {
		owner := events[i].Owner
		if id := clientID(owner); owner != "" && (mayHaveLabel(owner) || id == owner) && now.Sub(r.bare[id]) > idleTime {
			ids[id] = true
		}
	}
	if len(r.known) > mostLabels {
		clear(r.known)
	}
	if len(r.bare) > mostLabels {
		clear(r.bare)
	}
	for id := range ids {
		if _, ok := r.known[id]; !ok {
			r.spend(1)
		}
	}
	labels := r.labels(ctx, ids)
	for id := range ids {
		if _, ok := labels[id]; !ok {
			r.bare[id] = now
		}
	}
	for i := range events {
		events[i].Label = r.known[clientID(events[i].Owner)]
		r.out.event(events[i])
	}
}
