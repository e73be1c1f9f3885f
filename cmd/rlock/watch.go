package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/pubsub"
)

const usageWatch = `usage: rlock watch [flags] NAME

Prints a line for each change of the lock NAME: acquired, re-entered, released,
lost, forced open, and the number of waiting processes. Latches: set, counted
down, opened. Semaphores: the free permits and, if they expire, each permit
acquired, released or lost. Ends with Ctrl-C.

It looks after an unlock message and every -every, because hand-overs and
expiries publish none, but at most 20 times a second: shorter holds may be
missed. It does not count as a waiter, and does not affect others. It cannot
listen on the sharded channels of a cluster, and only polls there.

  -every D     time between looks without a message (default 500ms, at least
               50ms)
  -json        print one line of JSON per change
` + usageTarget + `
exit code  0   2 usage   125 Redis failed
`

// change is one line of output.
type change struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"` // held, free, acquired, reentered, released, expired, gone, forced, waiting, error; count, set, counted, opened, permits
	Owner   string    `json:"owner,omitempty"`
	Label   string    `json:"label,omitempty"` // of that owner
	Depth   int       `json:"depth,omitempty"`
	Token   int64     `json:"token,omitempty"`
	Count   int64     `json:"count,omitempty"` // of a latch, or free permits
	Permit  string    `json:"permit,omitempty"`
	Slot    *int64    `json:"slot,omitempty"` // of that permit
	Waiting *int      `json:"waiting_processes,omitempty"`
	Text    string    `json:"text"`

	who string // that owner, described; only if its hold has ended
}

func (p *program) watch(args []string) int {
	var t target
	flags := p.flags("watch", &t)
	every := flags.Duration("every", 500*time.Millisecond, "")
	asJSON := flags.Bool("json", false, "")
	name, code, ok := p.parseName(flags, args)
	switch {
	case !ok:
		return code
	case *every < watchInterval:
		return p.misuse(fmt.Errorf("-every must be at least %s", watchInterval), "watch")
	}
	return p.interruptibly(func(ctx context.Context, begun func()) int {
		lookedAt := time.Now() // when the last look began that was answered
		asked := lookedAt      // when the last look began
		v, now, code, ok := p.see(ctx, t, name)
		if !ok {
			return code
		}
		defer v.close()
		begun()
		told := make(chan struct{}, 1)
		var forced forcedOwners
		listens := v.listen(ctx, now.key, told, &forced)
		listened := false // when Redis was last looked at
		write := func(changes []change) {
			for _, c := range changes {
				c.Time = time.Now()
				if *asJSON {
					p.json(c)
				} else {
					fmt.Fprintf(p.out, "%s  %s\n", c.Time.Format("15:04:05.000"), clean(c.Text))
				}
			}
		}
		write(beginning(now))
		ticker := time.NewTicker(*every)
		defer ticker.Stop()
		down := false
		for {
			unlocked := false
			select {
			case <-ticker.C:
			case <-told:
				unlocked = true
			case <-ctx.Done():
				return 0
			}
			if early := watchInterval - time.Since(asked); early > 0 { // messages of a hot lock share a look
				select {
				case <-time.After(early):
				case <-ctx.Done():
					return 0
				}
			}
			select { // a message that arrived meanwhile, or with the tick
			case <-told:
				unlocked = true
			default:
			}
			listensNow := listens()
			asked = time.Now()
			next, err := v.inspect(ctx, name)
			between := time.Since(lookedAt)
			if err == nil && !unlocked && listened && listens() && now.Held && !next.Held {
				select { // the message may come a little later than the state, on a connection of its own
				case <-told:
					unlocked = true
				case <-time.After(lateMessage):
				case <-ctx.Done():
				}
			}
			switch {
			case ctx.Err() != nil:
				return 0
			case err != nil && !down:
				write([]change{{Event: "error", Text: trimPrefix(v.at(err))}})
				down = true
			case err == nil:
				found := changes(now, next, between, unlocked, listened && listens())
				forced.mark(found, next, lookedAt.Add(-forcedTime))
				write(found)
				now, lookedAt, listened, down = next, asked, listensNow, false
			}
		}
	})
}

// watchInterval is the least time from one look to the next: each costs the server some commands and a script.
const watchInterval = 50 * time.Millisecond

// lateMessage is how much later than the end of a hold its message may be read.
const lateMessage = time.Second / 2

// listen reports each unlock on told, and notes forced ones. It returns a function that reports whether Redis has confirmed that it hears
// unlocks. Pattern subscribers do not count as waiters, so unlocks ignore us. The sharded channels of a cluster have no patterns.
func (v *viewer) listen(ctx context.Context, key string, told chan<- struct{}, forced *forcedOwners) (listens func() bool) {
	patterns := []string{escapeGlob(prefixed(lockChannel, key)), escapeGlob(prefixed(rwChannel, key)), escapeGlob(latchChannelOf(key)), escapeGlob(prefixed(semaphoreChannel, key))}
	if v.rdb.Mode() == rueidis.ClientModeCluster && version(ctx, v.rdb) >= 7 {
		patterns = nil
	}
	ears := pubsub.EarChannel("*")
	var confirmed atomic.Int32 // of the patterns
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "psubscribe" && s.Channel != ears {
			confirmed.Add(1)
		}
	})
	go func() { // ends with ctx
		all := append([]string{ears}, patterns...) // on one connection, which keeps the order: a forced unlock is announced before its message
		for ctx.Err() == nil && len(all) > 0 {
			err := receive(hooked, v.rdb, v.rdb.B().Psubscribe().Pattern(all...).Build(), func(m rueidis.PubSubMessage) {
				if strings.HasPrefix(m.Channel, earPrefix) {
					forced.hear(m.Message, time.Now())
					return
				}
				select {
				case told <- struct{}{}:
				default:
				}
			})
			confirmed.Store(0)
			if isForbidden(err) && len(all) > len(patterns) { // ears may need a right of their own
				all = patterns
				continue
			}
			select { // the next look reports what is wrong
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	return func() bool { return len(patterns) > 0 && int(confirmed.Load()) == len(patterns) }
}

// forcedOwners are those under whom rlock unlock -force was about to free a lock.
type forcedOwners struct {
	mu sync.Mutex // guards the following
	at map[string]time.Time
}

// hear notes what was said to an ear.
func (f *forcedOwners) hear(message string, now time.Time) {
	said, ok := pubsub.ReadSpoken(message)
	if !ok || said.Kind != forcedKind {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at == nil {
		f.at = make(map[string]time.Time)
	}
	f.at[said.Payload] = now
}

// mark says of the holds that ended under an announced forced unlock, and no longer exist, that they were forced. It forgets what was said
// before since.
func (f *forcedOwners) mark(found []change, now *view, since time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.at, func(_ string, at time.Time) bool { return at.Before(since) })
	for i := range found {
		c := &found[i]
		if _, ok := f.at[c.Owner]; !ok || holds(now, c.Owner) || c.Event == "acquired" {
			continue
		}
		c.Event, c.Text = eventForced, "forced open: no longer held by "+c.who
	}
}

// holds reports whether an owner holds the lock.
func holds(v *view, owner string) bool {
	return slices.ContainsFunc(v.Holders, func(h holder) bool { return h.Owner == owner })
}

// beginning returns the lines for the first look.
func beginning(v *view) []change {
	var all []change
	for _, h := range v.Holders {
		all = append(all, change{Event: "held", Owner: h.Owner, Label: h.Label, Depth: h.Depth, Token: v.tokenOf(h), Text: fmt.Sprintf("held by %s, ttl %s", h.text(), v.ttl())})
	}
	switch {
	case !v.Held:
		all = append(all, change{Event: "free", Text: "free"})
	case v.isCounter():
		all = append(all, change{Event: "count", Count: v.Count, Text: fmt.Sprintf("%s: %s, ttl %s", v.Kind, v.left(), v.ttl())})
	}
	for i := range v.Permits[:min(len(v.Permits), mostLines)] {
		p := &v.Permits[i]
		all = append(all, change{Event: "held", Permit: p.ID, Slot: p.Slot, Text: "held: permit " + p.text()})
	}
	return append(all, waitingNow(v)...)
}

func waitingNow(v *view) []change {
	if v.Processes < 0 {
		return nil
	}
	return []change{{Event: "waiting", Waiting: &v.Processes, Text: fmt.Sprintf("waiting %d", v.Processes)}}
}

// changes returns the changes between two looks. between: from the beginning of the first to the end of the second. unlocked: an unlock
// message arrived in between. listens: it would have arrived, for Redis had confirmed the subscription before the first.
func changes(before, now *view, between time.Duration, unlocked, listens bool) (all []change) {
	find := func(v *view, owner string) *holder {
		i := slices.IndexFunc(v.Holders, func(h holder) bool { return h.Owner == owner })
		if i < 0 {
			return nil
		}
		return &v.Holders[i]
	}
	for _, h := range before.Holders {
		if find(now, h.Owner) == nil {
			all = append(all, ended(before, now, h, between, unlocked, listens))
		}
	}
	for _, h := range now.Holders {
		c := change{Owner: h.Owner, Label: h.Label, Depth: h.Depth, Token: now.tokenOf(h)}
		switch was := find(before, h.Owner); {
		case was == nil:
			c.Event, c.Text = "acquired", "acquired by "+h.text()
			if h.Depth > 1 {
				c.Text += fmt.Sprintf(", depth %d", h.Depth)
			}
			if c.Token != 0 {
				c.Text += fmt.Sprintf(", token %d", c.Token)
			}
			all = append(all, c)
		case was.Depth != h.Depth:
			c.Event, c.Text = "reentered", fmt.Sprintf("re-entered by %s, depth %d", h.text(), h.Depth)
			if h.Depth < was.Depth {
				c.Event, c.Text = "released", fmt.Sprintf("a level released by %s, depth %d", h.text(), h.Depth)
			}
			all = append(all, c)
		}
	}
	all = append(all, taken(before, now, between)...)
	all = append(all, counted(before, now)...)
	if len(all) == 0 && unlocked && !now.Held && !before.isCounter() {
		all = append(all, change{Event: "released", Text: "acquired and released between two looks"})
	}
	if now.Processes != before.Processes {
		all = append(all, waitingNow(now)...)
	}
	return all
}

// runsOut reports whether a hold with this TTL, in ms, can have expired between two looks. A renewed hold has much more left. The server
// counts whole milliseconds, of which there may be one more than have passed.
func runsOut(ttl int64, between time.Duration) bool {
	return ttl >= 0 && millis(ttl-1) <= between
}

// ended says why a holder is gone.
func ended(before, now *view, h holder, between time.Duration, unlocked, listens bool) change {
	c := change{Owner: h.Owner, Label: h.Label, who: h.text(), Event: "released", Text: "released by " + h.text()}
	ranOut := runsOut(before.TTL, between)
	switch {
	case unlocked:
	case now.Held && !ranOut:
		c.Text += ", handed on"
	case ranOut:
		c.Event, c.Text = "expired", fmt.Sprintf("lost by %s: its lease expired, without an unlock message", h.text())
	case !listens, before.Kind == "fair": // only its next waiter gets a message
	default:
		c.Event, c.Text = "gone", fmt.Sprintf("no longer held by %s: deleted, or a fair or spin lock of Redisson's, which publish no unlock", h.text())
	}
	if strings.HasPrefix(before.Kind, "read") && now.Held && !unlocked && !ranOut {
		c.Text = "released by " + h.text() // readers leave without a message
	}
	return c
}
