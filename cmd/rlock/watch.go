package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

const usageWatch = `usage: rlock watch [flags] NAME

Prints a line for each change of the lock NAME: acquired, re-entered, released,
lost, and the number of waiting processes. Latches: set, counted down, opened.
Semaphores: the free permits and, if they expire, each permit acquired, released
or lost. Ends with Ctrl-C.

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
	Event   string    `json:"event"` // held, free, acquired, reentered, released, expired, gone, waiting, error; count, set, counted, opened, permits
	Owner   string    `json:"owner,omitempty"`
	Label   string    `json:"label,omitempty"` // of that owner
	Depth   int       `json:"depth,omitempty"`
	Token   int64     `json:"token,omitempty"`
	Count   int64     `json:"count,omitempty"` // of a latch, or free permits
	Permit  string    `json:"permit,omitempty"`
	Slot    *int64    `json:"slot,omitempty"` // of that permit
	Waiting *int      `json:"waiting_processes,omitempty"`
	Text    string    `json:"text"`
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
		listens := v.listen(ctx, now.key, told)
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
				write(changes(now, next, between, unlocked, listened && listens()))
				now, lookedAt, listened, down = next, asked, listensNow, false
			}
		}
	})
}

// watchInterval is the least time from one look to the next: each costs the server some commands and a script.
const watchInterval = 50 * time.Millisecond

// lateMessage is how much later than the end of a hold its message may be read.
const lateMessage = time.Second / 2

// listen reports each unlock on told, and returns a function that reports whether Redis has confirmed that it does. Pattern subscribers do
// not count as waiters, so unlocks ignore us. The sharded channels of a cluster have no patterns.
func (v *viewer) listen(ctx context.Context, key string, told chan<- struct{}) (listens func() bool) {
	if v.rdb.Mode() == rueidis.ClientModeCluster && version(ctx, v.rdb) >= 7 {
		return func() bool { return false }
	}
	patterns := []string{escapeGlob(prefixed(lockChannel, key)), escapeGlob(prefixed(rwChannel, key)), escapeGlob(latchChannelOf(key)), escapeGlob(prefixed(semaphoreChannel, key))}
	var confirmed atomic.Int32 // of the patterns
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "psubscribe" {
			confirmed.Add(1)
		}
	})
	go func() { // ends with ctx
		for ctx.Err() == nil {
			_ = receive(hooked, v.rdb, v.rdb.B().Psubscribe().Pattern(patterns...).Build(), func(rueidis.PubSubMessage) {
				select {
				case told <- struct{}{}:
				default:
				}
			})
			confirmed.Store(0)
			select { // the next look reports what is wrong
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	return func() bool { return int(confirmed.Load()) == len(patterns) }
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

// runsOut reports whether a hold with this TTL, in ms, can have expired between two looks. A renewed hold has much more left.
func runsOut(ttl int64, between time.Duration) bool {
	return ttl >= 0 && time.Duration(ttl)*time.Millisecond <= between
}

// ended says why a holder is gone.
func ended(before, now *view, h holder, between time.Duration, unlocked, listens bool) change {
	c := change{Owner: h.Owner, Label: h.Label, Event: "released", Text: "released by " + h.text()}
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
