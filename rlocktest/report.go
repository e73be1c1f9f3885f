package rlocktest

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// settle bounds the calls in progress at the end of a test: a subscription lingers for half a second, and an unanswered release is sent
// again within two seconds.
const settle = 3 * time.Second

// patience bounds a call's wait. Timers and renewals keep a bubble going for ever, so a test that waits in vain would not end.
const patience = 12 * time.Hour

// report polls Redis until nothing is left. It is too quick for leases to expire, so a key that goes away was unlocked.
func (c *Client) report() {
	c.server.Freeze()
	c.giveUpKept()
	left := func() []string { return append(c.holds(), c.waits()...) }
	all := left()
	for began := time.Now(); len(all) > 0 && time.Since(began) < settle; all = left() {
		<-time.After(10 * time.Millisecond)
	}
	for _, text := range all {
		c.t.Errorf("rlocktest: at the end of the test %s", text)
	}
	for _, text := range c.order.circles() {
		c.t.Errorf("rlocktest: %s", text)
	}
}

// giveUpKept asks for all locks that may be kept with nobody inside ([rlock.WithLinger]). Those in use stay.
func (c *Client) giveUpKept() {
	var kept []string
	for _, key := range c.server.Now().Keys() {
		if slices.ContainsFunc(c.owners(key), lingers.MatchString) {
			kept = append(kept, key)
		}
	}
	if len(kept) == 0 {
		return
	}
	p, err := c.newProcess(rlock.Options{}) // without a prefix
	if err != nil {
		c.t.Errorf("rlocktest: %v", err)
		return
	}
	defer p.close()
	defer p.locks.Close()
	for _, name := range kept {
		if _, err := p.locks.Ask(context.Background(), name); err != nil {
			c.t.Errorf("rlocktest: %v", err)
		}
	}
}

// endless checks for waiters periodically, and closes all Clients if one has waited since the last check.
func (c *Client) endless() {
	waits := c.waits()
	c.mu.Lock()
	stuck := slices.DeleteFunc(slices.Clone(waits), func(text string) bool { return !slices.Contains(c.waiting, text) })
	c.waiting = waits
	every := c.patience
	c.clock.Reset(every)
	c.mu.Unlock()
	if len(stuck) == 0 {
		return
	}
	for _, text := range append(stuck, c.holds()...) {
		c.t.Errorf("rlocktest: after more than %v %s", every, text)
	}
	c.closeLocks()
}

// Forms of owners and keys in Redis, see docs/internals/protocol.md.
var (
	owner   = regexp.MustCompile(`^[\da-f-]{36}:-?\d+(:write)?$`)
	nobody  = regexp.MustCompile(`^[\da-f-]{36}:00$`)            // the placeholder of WithMinHold
	lingers = regexp.MustCompile(`^[\da-f-]{36}:1[2367]\d{18}$`) // may have nobody inside, and says so
	places  = regexp.MustCompile(`^(?:rlock_queue::?|rlock_writers::?|redisson_lock_timeout:)(.*)$`)
	gate    = regexp.MustCompile(`^rlock_upgrade::?`) // a lock beside a read/write lock
	slots   = regexp.MustCompile(`^rlock_sem_slots::?(.*)$`)
	// Each waiting process has its own channel beside the lock's.
	channel = regexp.MustCompile(`^(?:redisson_lock__channel:|redisson_rwlock:|redisson_sc:|redisson_countdownlatch__channel__)(.*):([\da-f-]{36})$`)
)

// holds describes the held locks.
func (c *Client) holds() (all []string) {
	for _, key := range c.server.Now().Keys() {
		if gate.MatchString(key) { // a write holder reads, too
			continue
		}
		if at := slots.FindStringSubmatch(key); at != nil {
			name := c.name(at[1])
			for _, p := range c.permits(c.options.Prefix + name) {
				if !c.isElsewhere(p.id) && !c.isDead(p.client) {
					all = append(all, fmt.Sprintf("%q is still held by permit %s, with slot %d%s", name, p.id, p.slot, c.places.of(name, "")))
				}
			}
		}
		for _, who := range c.owners(key) {
			if !c.isElsewhere(who) {
				name := strings.TrimPrefix(key, c.options.Prefix)
				all = append(all, fmt.Sprintf("%q is still held by %s%s", name, who, c.places.of(name, who)))
			}
		}
	}
	return all
}

// waits describes the locks waited for.
func (c *Client) waits() (all []string) {
	placed := make(map[string][]string) // waiters with a queue place, by lock
	for _, key := range c.server.Now().Keys() {
		if at := places.FindStringSubmatch(key); at != nil {
			name := c.name(at[1])
			placed[name] = append(placed[name], c.entries(key)...)
		}
	}
	for _, heard := range c.server.Now().PubSubChannels("") {
		if at := channel.FindStringSubmatch(heard); at != nil {
			name, process := c.name(at[1]), at[2]
			who := "a goroutine of " + process // waiters without a place, such as readers
			for _, entry := range placed[name] {
				if strings.HasPrefix(entry, process) {
					who = entry
				}
			}
			all = append(all, fmt.Sprintf("%q is still waited for by %s", name, who))
		}
	}
	return all
}

// name extracts a lock's name from a key or a channel: it stands in braces unless it has its own.
func (c *Client) name(text string) string {
	text = gate.ReplaceAllString(text, "")
	inner, braces := strings.CutSuffix(text, "}")
	if braces && strings.LastIndexByte(inner, '{') == 0 && !c.server.Now().Exists(text) {
		text = inner[1:]
	}
	return strings.TrimPrefix(text, c.options.Prefix)
}

// owners returns the owners of a lock by its key.
func (c *Client) owners(key string) (all []string) {
	fields, _ := c.server.Now().HKeys(key) // not a hash: no owners
	for _, field := range fields {
		if owner.MatchString(field) && !nobody.MatchString(field) {
			all = append(all, field)
		}
	}
	return all
}

// permit is a held permit of this library.
type permit struct {
	id     string
	client string // the first half of its Client's id
	slot   int
}

// permitsOf returns the key of a semaphore's permits.
func permitsOf(key string) string { return braced(key) + ":timeout" }

// braced returns a name in braces, as in the keys beside it.
func braced(key string) string {
	if strings.Contains(key, "{") {
		return key
	}
	return "{" + key + "}"
}

// permits returns a semaphore's held permits, ordered by slot.
func (c *Client) permits(key string) (all []permit) {
	ends, _ := c.server.Now().SortedSet(permitsOf(key)) // none held
	separator := ":"
	if strings.Contains(key, "{") {
		separator = "::"
	}
	slots, _ := c.server.Now().SortedSet("rlock_sem_slots" + separator + braced(key))
	for member, end := range ends {
		slot, ours := slots[member]
		if id := hex.EncodeToString([]byte(member)); ours && len(id) == 32 && int64(end) > time.Now().UnixMilli() {
			all = append(all, permit{id, id[:8] + "-" + id[8:12] + "-" + id[12:16], int(slot)})
		}
	}
	slices.SortFunc(all, func(a, b permit) int { return cmp.Compare(a.slot, b.slot) })
	return all
}

// entries returns the members of the sorted set with that key.
func (c *Client) entries(key string) (all []string) {
	members, _ := c.server.Now().ZMembers(key) // gone meanwhile
	for _, member := range members {
		who, _, _ := strings.Cut(member, " ")
		all = append(all, who)
	}
	return all
}

// isElsewhere reports whether a hold belongs to HoldElsewhere or a crashed process.
func (c *Client) isElsewhere(owner string) bool {
	id, _, _ := strings.Cut(owner, ":")
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[owner] || c.dead[id]
}

// isDead reports whether a crashed Client's id has this prefix.
func (c *Client) isDead(client string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.dead {
		if strings.HasPrefix(id, client) {
			return true
		}
	}
	return false
}
