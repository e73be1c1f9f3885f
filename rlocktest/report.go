package rlocktest

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// settle is for how long calls under way at the end of a test may take: a subscription lingers for half a second, and a release that
// Redis did not answer is sent again within two.
const settle = 3 * time.Second

// patience is for how long a call may wait. In a bubble, where timers and renewals go on for ever, a test that waits for what
// does not come would not end.
const patience = 12 * time.Hour

// report looks at Redis until nothing is left there. While it looks, no lease ends: what goes away was unlocked.
func (c *Client) report() {
	c.server.SetTime(time.Now())
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

// endless looks after waiters from time to time, and ends the calls of all if one was there the last time.
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
		c.t.Errorf("rlocktest: after %v and more %s", every, text)
	}
	c.closeLocks()
}

// The owners and keys that Redis has of locks, see docs/protocol.md.
var (
	owner  = regexp.MustCompile(`^[\da-f-]{36}:-?\d+(:write)?$`)
	nobody = regexp.MustCompile(`^[\da-f-]{36}:00$`) // for whom WithMinHold keeps a lock
	places = regexp.MustCompile(`^(?:rlock_queue::?|rlock_writers::?|redisson_lock_timeout:)(.*)$`)
	gate   = regexp.MustCompile(`^rlock_upgrade::?`) // a lock beside a read/write lock
	slots  = regexp.MustCompile(`^rlock_sem_slots::?(.*)$`)
	// Each process that waits listens to a channel of its own beside that of the lock.
	channel = regexp.MustCompile(`^(?:redisson_lock__channel:|redisson_rwlock:|redisson_sc:|redisson_countdownlatch__channel__)(.*):([\da-f-]{36})$`)
)

// holds says which locks are held.
func (c *Client) holds() (all []string) {
	for _, key := range c.server.Keys() {
		if gate.MatchString(key) { // whoever has the first reads, too
			continue
		}
		if at := slots.FindStringSubmatch(key); at != nil {
			name := c.name(at[1])
			for _, p := range c.permits(c.options.Prefix + name) {
				if !c.isElsewhere(p.id) && !c.isDead(p.client) {
					all = append(all, fmt.Sprintf("%q is still held by permit %s, with slot %d", name, p.id, p.slot))
				}
			}
		}
		for _, who := range c.owners(key) {
			if !c.isElsewhere(who) {
				all = append(all, fmt.Sprintf("%q is still held by %s", strings.TrimPrefix(key, c.options.Prefix), who))
			}
		}
	}
	return all
}

// waits says which locks are waited for.
func (c *Client) waits() (all []string) {
	placed := make(map[string][]string) // those that have a place, by the name of the lock
	for _, key := range c.server.Keys() {
		if at := places.FindStringSubmatch(key); at != nil {
			name := c.name(at[1])
			placed[name] = append(placed[name], c.entries(key)...)
		}
	}
	for _, heard := range c.server.PubSubChannels("") {
		if at := channel.FindStringSubmatch(heard); at != nil {
			name, process := c.name(at[1]), at[2]
			who := "a goroutine of " + process // without a place: a reader, say
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

// name is that of the lock whose name stands in a key or a channel: in braces, unless it has some itself.
func (c *Client) name(text string) string {
	text = gate.ReplaceAllString(text, "")
	inner, braces := strings.CutSuffix(text, "}")
	if braces && strings.LastIndexByte(inner, '{') == 0 && !c.server.Exists(text) {
		text = inner[1:]
	}
	return strings.TrimPrefix(text, c.options.Prefix)
}

// owners returns whoever holds the lock with that key.
func (c *Client) owners(key string) (all []string) {
	fields, _ := c.server.HKeys(key) // no hash, no owners
	for _, field := range fields {
		if owner.MatchString(field) && !nobody.MatchString(field) {
			all = append(all, field)
		}
	}
	return all
}

// permit is one of this library that is held.
type permit struct {
	id     string
	client string // how the id of the Client begins that holds it
	slot   int
}

// permitsOf is the key of the permits of the semaphore with that key.
func permitsOf(key string) string { return braced(key) + ":timeout" }

// braced is a name as it stands in those of the keys beside it.
func braced(key string) string {
	if strings.Contains(key, "{") {
		return key
	}
	return "{" + key + "}"
}

// permits returns those that are held of the semaphore with that key, in the order of their slots.
func (c *Client) permits(key string) (all []permit) {
	ends, _ := c.server.SortedSet(permitsOf(key)) // nobody holds one
	separator := ":"
	if strings.Contains(key, "{") {
		separator = "::"
	}
	slots, _ := c.server.SortedSet("rlock_sem_slots" + separator + braced(key))
	for member, end := range ends {
		slot, ours := slots[member]
		if id := hex.EncodeToString([]byte(member)); ours && len(id) == 32 && int64(end) > time.Now().UnixMilli() {
			all = append(all, permit{id, id[:8] + "-" + id[8:12] + "-" + id[12:16], int(slot)})
		}
	}
	slices.SortFunc(all, func(a, b permit) int { return cmp.Compare(a.slot, b.slot) })
	return all
}

// entries returns whoever has a place in the sorted set with that key.
func (c *Client) entries(key string) (all []string) {
	members, _ := c.server.ZMembers(key) // gone meanwhile: nobody
	for _, member := range members {
		who, _, _ := strings.Cut(member, " ")
		all = append(all, who)
	}
	return all
}

// isElsewhere reports whether HoldElsewhere has that hold, or a process that is dead.
func (c *Client) isElsewhere(owner string) bool {
	id, _, _ := strings.Cut(owner, ":")
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[owner] || c.dead[id]
}

// isDead reports whether a process is dead whose Client's id begins so.
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
