package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// latchChannel begins the name of the channel on which it is told that a latch has opened. Braces follow, also around a name that has some.
const latchChannel = "redisson_countdownlatch__channel__"

func latchChannelOf(key string) string { return latchChannel + "{" + key + "}" }

// latchRecordOf is the key of what this library notes beside a latch, for some minutes.
func latchRecordOf(key string) string { return "rlock_latch:{" + key + "}" }

// semaphoreChannel begins the name of the channel on which it is told that permits are free.
const semaphoreChannel = "redisson_sc"

// semaphoreWantsOf is the key of what the processes want that wait for a semaphore. It is there for a minute after.
func semaphoreWantsOf(key string) string { return own("rlock_sem_requests", key) }

// own makes names as the library does for keys that Redisson does not know.
func own(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + "::" + key
	}
	return prefix + ":{" + key + "}"
}

// The kinds of a key that holds a number. Redisson's latches and semaphores look alike, and like any other counter: a latch is known by those
// who wait for it, or by the record of this library; a semaphore by those who wait for it, or did so in the last minute.
const (
	latchKind     = "latch"
	semaphoreKind = "semaphore"
	counterKind   = "counter"
)

// isCounter reports whether it is a number, and no lock.
func (s *state) isCounter() bool {
	return s.Kind == latchKind || s.isSemaphore() || s.Kind == counterKind
}

// waitedAs says what it is if somebody waits for it as for a latch or a semaphore.
func (s *state) waitedAs(kind string) {
	if s.isCounter() && s.Kind != permitKind && kind != "" {
		s.Kind = kind
	}
}

// longestNumber is how many characters a number has at most, with its sign.
const longestNumber = 20

// counterReads is how many commands readCounters has for a key.
const counterReads = 5

// readCounters are the commands for keys that may be counters.
func (v *viewer) readCounters(keys []string) (reads rueidis.Commands) {
	for _, key := range keys {
		reads = append(reads, v.rdb.B().Getrange().Key(key).Start(0).End(longestNumber).Build(), v.rdb.B().Pttl().Key(key).Build(),
			v.rdb.B().Exists().Key(latchRecordOf(key)).Build(), v.rdb.B().Exists().Key(semaphoreWantsOf(key)).Build(), v.permitReads(key))
	}
	return reads
}

// counter is what the replies to these say of a key.
func (v *viewer) counter(key string, replies []rueidis.RedisResult) (s state, err error) {
	s = v.named(key)
	text, err := replies[0].ToString()
	if err != nil {
		return s, err
	}
	if s.TTL, err = replies[1].AsInt64(); err != nil {
		return s, err
	}
	if s.TTL == -2 { // it has gone meanwhile
		return s, nil
	}
	if s.Count, err = strconv.ParseInt(text, 10, 64); err != nil {
		return s, errNoLock
	}
	s.Kind, s.Holders = counterKind, []holder{}
	if noted, _ := replies[2].AsBool(); noted { // whoever may not see that does without
		s.Kind = latchKind
	} else {
		if noted, _ := replies[3].AsBool(); noted {
			s.Kind = semaphoreKind
		}
		s.addPermits(replies[4])
	}
	return s, nil
}

// seeWaiters counts who waits for a latch or a semaphore. Whoever waits for it tells that a number is one.
func (v *viewer) seeWaiters(ctx context.Context, seen *view) error {
	if seen.Held && !seen.isCounter() {
		return nil
	}
	channels := make(map[string]*listeners)
	kinds := map[string]string{latchChannelOf(seen.key): latchKind, prefixed(semaphoreChannel, seen.key): semaphoreKind}
	for _, n := range nodes(v.rdb) {
		var err error
		for channel := range kinds {
			if err == nil {
				err = n.count(ctx, channels, []string{channel}, "NUMSUB")
			}
			if err == nil && v.rdb.Mode() == rueidis.ClientModeCluster {
				_ = n.count(ctx, channels, []string{channel}, "SHARDNUMSUB") // before Redis 7 there are none
			}
		}
		switch {
		case isForbidden(err):
			seen.Processes = -1
			return nil
		case err != nil:
			return fmt.Errorf("%s: PUBSUB: %w", n.addr, err)
		}
	}
	for channel, kind := range kinds {
		if l := channels[channel]; l != nil && l.processes > 0 {
			seen.Processes += int(l.processes)
			seen.waitedAs(kind)
		}
	}
	return nil
}

// left is what a latch still waits for, or how many permits a semaphore has.
func (s *state) left() string {
	switch s.Kind {
	case semaphoreKind:
		return fmt.Sprintf("%d free", s.Count)
	case permitKind:
		return fmt.Sprintf("%d held, %d free", s.Acquired, s.Count)
	}
	return fmt.Sprintf("%d left", s.Count)
}

// counted are the changes of a latch, or of how many permits a semaphore has, from one look to the next.
func counted(before, now *view) (all []change) {
	switch {
	case before.Count == now.Count && before.Acquired == now.Acquired:
	case now.isSemaphore() || before.isSemaphore():
		all = append(all, change{Event: "permits", Count: now.Count, Text: now.left()})
	case now.Count == 0:
		all = append(all, change{Event: "opened", Text: "opened"})
	case before.Count == 0 || now.Count > before.Count:
		all = append(all, change{Event: "set", Count: now.Count, Text: "set: " + now.left()})
	default:
		all = append(all, change{Event: "counted", Count: now.Count, Text: "counted down: " + now.left()})
	}
	return all
}

// waitedFor are the latches and semaphores whose names match a pattern, and for which somebody waits at one of the servers: of those that nobody
// waits for one cannot tell what they are.
func (v *viewer) waitedFor(ctx context.Context, servers []node, pattern string) ([]state, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var keys []string
	of := make(map[string]string) // their kinds
	for _, n := range servers {
		b := n.B()
		for channels, kind := range map[string]string{
			latchChannelOf(pattern): latchKind, semaphoreChannel + ":{" + pattern + "}": semaphoreKind, semaphoreChannel + ":" + pattern: semaphoreKind,
		} {
			names, err := n.Do(ctx, b.PubsubChannels().Pattern(channels).Build()).AsStrSlice()
			if err != nil && !isForbidden(err) {
				return nil, fmt.Errorf("%s: PUBSUB: %w", n.addr, err)
			}
			sharded, _ := n.Do(ctx, b.PubsubShardchannels().Pattern(channels).Build()).AsStrSlice() // before Redis 7 there are none
			for _, channel := range append(names, sharded...) {
				if strings.HasSuffix(channel, inLine) || personal.MatchString(channel) {
					continue
				}
				for _, key := range keysOf(channel) {
					keys, of[key] = append(keys, key), kind
				}
			}
		}
	}
	found, err := v.readPage(ctx, slices.Compact(slices.Sorted(slices.Values(keys))))
	var latches []state
	for _, s := range found {
		if s.isCounter() {
			s.waitedAs(of[s.key])
			latches = append(latches, s)
		}
	}
	return latches, err
}
