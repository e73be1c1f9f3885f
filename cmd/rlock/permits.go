package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// permitKind is a semaphore whose permits expire. It is known by those that are held: without any it looks like a semaphore.
const permitKind = "permits"

// isSemaphore reports whether it has permits, those that expire included.
func (s *state) isSemaphore() bool { return s.Kind == semaphoreKind || s.Kind == permitKind }

// permitsEnd is how the key ends that has the permits of a semaphore, see permitsOf.
const permitsEnd = ":timeout"

// permitsOf is the key of the permits of a semaphore.
func permitsOf(key string) string { return hashTag(key) + permitsEnd }

// slotsOf is the key of the slots that permits of this library have.
func slotsOf(key string) string { return own("rlock_sem_slots", key) }

// permitKeys are how the keys of permits are found whose semaphores match a pattern, and how the key of the semaphore follows from that.
func permitKeys(pattern string) []search {
	return []search{
		{"{" + pattern + "}" + permitsEnd, "zset", func(key string) (string, bool) {
			inner := strings.TrimSuffix(strings.TrimPrefix(key, "{"), "}"+permitsEnd)
			return inner, !strings.Contains(inner, "{")
		}},
		{pattern + permitsEnd, "zset", func(key string) (string, bool) {
			name := strings.TrimSuffix(key, permitsEnd)
			return name, strings.Contains(name, "{")
		}},
	}
}

// permit is one that is held.
type permit struct {
	ID     string `json:"id"`
	Slot   *int64 `json:"slot,omitempty"`   // nil: Redisson's, or one that was given back meanwhile
	Client string `json:"client,omitempty"` // that holds it: its id, or the beginning of that
	Host   string `json:"host,omitempty"`
	Label  string `json:"label,omitempty"` // of that Client, if its host is known
	TTL    int64  `json:"ttl_ms"`          // -1: it does not expire
}

// mostPermits is how many permits are read of one semaphore.
const mostPermits = 1000

// permitsScript returns how many permits are held, and how many have expired; of the first of those that are held also id, time left in ms, or -1, and
// slot, or -1. Only the server knows its clock, which says if a permit has expired.
//
// KEYS[1] are the permits, KEYS[2] the slots, which may be missing. ARGV[1] is how many are read.
const permitsScript = `
local time = redis.call('time')
local now = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))
local held = redis.call('zcount', KEYS[1], '(' .. now, '+inf')
local reply = {held, redis.call('zcard', KEYS[1]) - held}
local first = redis.call('zrangebyscore', KEYS[1], '(' .. now, '+inf', 'withscores', 'limit', 0, ARGV[1])
for i = 1, #first, 2 do
  local left = tonumber(first[i + 1])
  left = left >= 922337203685477 and -1 or left - now
  local slot = KEYS[2] and redis.call('zscore', KEYS[2], first[i])
  reply[#reply + 1] = {first[i], left, tonumber(slot or -1)}
end
return reply`

// permitReads is the command for the permits of a semaphore.
func (v *viewer) permitReads(key string) rueidis.Completed {
	keys := []string{permitsOf(key), slotsOf(key)}
	if !v.together(keys[0], keys[1]) { // a semaphore of Redisson's, which this library cannot have
		keys = keys[:1]
	}
	return v.rdb.B().Eval().Script(permitsScript).Numkeys(int64(len(keys))).Key(keys...).Arg(strconv.Itoa(mostPermits)).Build()
}

// addPermits adds what the reply to that says. Whoever may not see the permits does without.
func (s *state) addPermits(reply rueidis.RedisResult) {
	parts, err := reply.ToArray()
	if err != nil || len(parts) < 2 {
		return
	}
	held, err1 := parts[0].AsInt64()
	expired, err2 := parts[1].AsInt64()
	if err1 != nil || err2 != nil || held+expired == 0 {
		return
	}
	s.Kind, s.Acquired = permitKind, held
	s.Count += expired // the next call gives these back
	for _, part := range parts[2:] {
		if p, err := readPermit(part); err == nil {
			s.Permits = append(s.Permits, p)
		}
	}
	slices.SortStableFunc(s.Permits, func(a, b permit) int { return cmp.Compare(a.order(), b.order()) })
}

// order is that of the slots. Permits without one follow, those first that end first.
func (p *permit) order() int64 {
	if p.Slot == nil {
		return math.MaxInt64
	}
	return *p.Slot
}

func readPermit(part rueidis.RedisMessage) (p permit, err error) {
	cells, err := part.ToArray()
	if err != nil || len(cells) != 3 {
		return p, cmp.Or(err, errNoLock)
	}
	id, err1 := cells[0].ToString()
	var err2, err3 error
	p.TTL, err2 = cells[1].AsInt64()
	slot, err3 := cells[2].AsInt64()
	p.ID = hex.EncodeToString([]byte(id))
	if slot >= 0 {
		p.Slot = &slot
		if len(id) == 16 { // the first half of an id is that of its Client's, which is a UUID
			p.Client = p.ID[:8] + "-" + p.ID[8:12] + "-" + p.ID[12:16]
		}
	}
	return p, errors.Join(err1, err2, err3)
}

// addHost says who holds a permit, if one of the known Clients does.
func (p *permit) addHost(known map[string]string) {
	for id, host := range known {
		if p.Client != "" && strings.HasPrefix(id, p.Client) {
			p.Client, p.Host = id, host
		}
	}
}

// text is what a line says of a permit.
func (p *permit) text() string {
	text := p.ID
	if p.Slot != nil {
		text += fmt.Sprintf(", slot %d", *p.Slot)
	}
	switch {
	case p.TTL < 0:
		text += ", does not expire"
	default:
		text += ", " + short(time.Duration(p.TTL)*time.Millisecond) + " left"
	}
	switch {
	case p.Host != "":
		text += fmt.Sprintf(", client %s (%s)", labelled(p.Label, p.Client), p.Host)
	case p.Client != "":
		text += ", client " + p.Client + "…"
	}
	return text
}

// seeLine looks at those who wait for a semaphore: each process of this library has a place in line, which says how many permits its waiters want.
func (v *viewer) seeLine(ctx context.Context, seen *view) error {
	clients, err := v.rdb.Do(ctx, v.rdb.B().Zrange().Key(own("rlock_sem_queue", seen.key)).Min("0").Max("-1").Build()).AsStrSlice()
	if err != nil && !isForbidden(err) {
		return fmt.Errorf("%q: %w", seen.Name, err)
	}
	if len(clients) == 0 {
		return nil
	}
	places, err := v.rdb.Do(ctx, v.rdb.B().Hmget().Key(semaphoreWantsOf(seen.key)).Field(clients...).Build()).ToArray()
	if err != nil && !isForbidden(err) {
		return fmt.Errorf("%q: %w", seen.Name, err)
	}
	for i, client := range clients {
		place := ""
		if i < len(places) {
			place, _ = places[i].ToString() // it may have gone meanwhile
		}
		seen.Queue, seen.Wants = append(seen.Queue, client), append(seen.Wants, wantsOf(place))
	}
	return nil
}

// wantsOf reads a place in line, see docs/protocol.md.
func wantsOf(place string) []int64 {
	wants := []int64{}
	cells := strings.Fields(place)
	if len(cells) != 4 {
		return wants
	}
	for text := range strings.SplitSeq(cells[3], ",") {
		n, _ := strconv.ParseInt(text, 10, 64)
		wants = append(wants, n)
	}
	return wants
}

// places are the lines about those who wait.
func (v *view) places() []string {
	if v.Wants == nil {
		return labelledAll(v.Queue, v.Labels)
	}
	texts := make([]string, len(v.Queue))
	for i, client := range v.Queue {
		permits := int64(0)
		for _, n := range v.Wants[i] {
			permits += n
		}
		texts[i] = fmt.Sprintf("%s: %d waiting, for %d permits", labelled(v.Labels[client], client), len(v.Wants[i]), permits)
	}
	return texts
}

// taken are the changes of permits from one look to the next. Of more permits than are read nobody can tell which have changed.
func taken(before, now *view, between time.Duration) (all []change) {
	if before.Acquired > int64(len(before.Permits)) || now.Acquired > int64(len(now.Permits)) {
		return nil
	}
	in := func(v *view, id string) bool {
		return slices.ContainsFunc(v.Permits, func(p permit) bool { return p.ID == id })
	}
	add := func(event string, p permit, text string) {
		all = append(all, change{Event: event, Permit: p.ID, Slot: p.Slot, Text: text})
	}
	for _, p := range before.Permits {
		switch {
		case in(now, p.ID):
		case runsOut(p.TTL, between):
			add("expired", p, "lost: permit "+p.ID+": its lease ended")
		default:
			add("released", p, "released: permit "+p.ID)
		}
	}
	for _, p := range now.Permits {
		if !in(before, p.ID) {
			add("acquired", p, "acquired: permit "+p.text())
		}
	}
	return all
}
