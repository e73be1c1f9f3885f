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

// permitKind is a semaphore with expiring permits. It is known by the held ones: without any it looks like a semaphore.
const permitKind = "permits"

// isSemaphore reports whether it has permits, expiring or not.
func (s *state) isSemaphore() bool { return s.Kind == semaphoreKind || s.Kind == permitKind }

// permitsEnd is the suffix of the key with a semaphore's permits, see permitsOf.
const permitsEnd = ":timeout"

// permitsOf returns the key of a semaphore's permits.
func permitsOf(key string) string { return hashTag(key) + permitsEnd }

// slotsOf returns the key with the slots of this library's permits.
func slotsOf(key string) string { return own("rlock_sem_slots", key) }

// permitKeys returns a search for the permits of semaphores that match a pattern.
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

// permit is a held permit.
type permit struct {
	ID     string `json:"id"`
	Slot   *int64 `json:"slot,omitempty"`   // nil: Redisson's, or just released
	Client string `json:"client,omitempty"` // the Client that holds it: its id, or the first half
	Host   string `json:"host,omitempty"`
	Label  string `json:"label,omitempty"` // that Client's label
	TTL    int64  `json:"ttl_ms"`          // -1: it does not expire
}

// mostPermits bounds the permits read per semaphore.
const mostPermits = 1000

// permitsScript returns the number of held and of expired permits, then for the first held ones the id, the time left in ms or -1, and the
// slot or -1. It runs on the server because expiry depends on the server's clock.
//
// KEYS: the permits and the slots, which may be missing. ARGV[1]: the number of permits to read.
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

// permitReads returns the read of a semaphore's permits.
func (v *viewer) permitReads(key string) rueidis.Completed {
	keys := []string{permitsOf(key), slotsOf(key)}
	if !v.together(keys[0], keys[1]) { // one of Redisson's semaphores, with a name that this library cannot use
		keys = keys[:1]
	}
	return v.rdb.B().Eval().Script(permitsScript).Numkeys(int64(len(keys))).Key(keys...).Arg(strconv.Itoa(mostPermits)).Build()
}

// addPermits adds the reply of permitReads. Users without the right to read permits see none.
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
	s.Count += expired // the next call removes these
	for _, part := range parts[2:] {
		if p, err := readPermit(part); err == nil {
			s.Permits = append(s.Permits, p)
		}
	}
	slices.SortStableFunc(s.Permits, func(a, b permit) int { return cmp.Compare(a.order(), b.order()) })
}

// order sorts permits by slot; permits without a slot follow, those that expire first in front.
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
		if len(id) == 16 { // the first half of an id is the first half of its Client's UUID
			p.Client = p.ID[:8] + "-" + p.ID[8:12] + "-" + p.ID[12:16]
		}
	}
	return p, errors.Join(err1, err2, err3)
}

// addHost adds the host of a permit's Client, if known.
func (p *permit) addHost(known map[string]string) {
	for id, host := range known {
		if p.Client != "" && strings.HasPrefix(id, p.Client) {
			p.Client, p.Host = id, host
		}
	}
}

// text describes a permit in a line.
func (p *permit) text() string {
	text := p.ID
	if p.Slot != nil {
		text += fmt.Sprintf(", slot %d", *p.Slot)
	}
	switch {
	case p.TTL < 0:
		text += ", does not expire"
	default:
		text += ", " + short(millis(p.TTL)) + " left"
	}
	switch {
	case p.Host != "":
		text += fmt.Sprintf(", client %s (%s)", labelled(p.Label, p.Client), p.Host)
	case p.Client != "":
		text += ", client " + labelled(p.Label, p.Client+"…")
	}
	return text
}

// seeLine reads a semaphore's queue: one place per process of this library, with the permits its waiters want.
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
		client, _, _ = strings.Cut(client, ":") // whether its permits expire
		seen.Queue, seen.Wants = append(seen.Queue, client), append(seen.Wants, wantsOf(place))
	}
	return nil
}

// wantsOf parses a place in the queue, see docs/internals/protocol.md.
func wantsOf(place string) []int64 {
	wants := []int64{}
	list, _, _ := strings.Cut(strings.TrimPrefix(place, "want "), " ") // a permit's id may follow
	for text := range strings.SplitSeq(list, ",") {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			wants = append(wants, n)
		}
	}
	return wants
}

// places describes the places in the queue.
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

// taken returns the changes of permits between two looks. Beyond mostPermits they cannot be compared.
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
