package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// latchChannel is the prefix of the channel on which a latch publishes its opening. The name follows in braces, even if it has its own.
const latchChannel = "redisson_countdownlatch__channel__"

func latchChannelOf(key string) string { return latchChannel + "{" + key + "}" }

// latchRecordOf returns the key of this library's record beside a latch, which lives for some minutes.
func latchRecordOf(key string) string { return "rlock_latch:{" + key + "}" }

// semaphoreChannel is the prefix of the channel on which freed permits are published.
const semaphoreChannel = "redisson_sc"

// semaphoreWantsOf returns the key with the permits wanted by waiting processes. It is gone when nobody waits.
func semaphoreWantsOf(key string) string { return own("rlock_sem_requests", key) }

// own returns a key that Redisson does not know, named as the library names it.
func own(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + "::" + key
	}
	return prefix + ":{" + key + "}"
}

// The kinds of a key that holds a number. Redisson's latches and semaphores look like any other counter. A latch is known by its waiters or
// this library's record, a semaphore by its waiters.
const (
	latchKind     = "latch"
	semaphoreKind = "semaphore"
	counterKind   = "counter"
)

// isCounter reports whether the key is a number, and not a lock.
func (s *state) isCounter() bool {
	return s.Kind == latchKind || s.isSemaphore() || s.Kind == counterKind
}

// waitedAs sets the kind by the waiters of a latch or a semaphore.
func (s *state) waitedAs(kind string) {
	if s.isCounter() && s.Kind != permitKind && kind != "" {
		s.Kind = kind
	}
}

// longestNumber is the length of the longest number, with its sign.
const longestNumber = 20

// counterReads is the number of commands of readCounters per key.
const counterReads = 5

// readCounters returns the reads for keys that may be counters.
func (v *viewer) readCounters(keys []string) (reads rueidis.Commands) {
	for _, key := range keys {
		reads = append(reads, v.rdb.B().Getrange().Key(key).Start(0).End(longestNumber).Build(), v.rdb.B().Pttl().Key(key).Build(),
			v.rdb.B().Exists().Key(latchRecordOf(key)).Build(), v.rdb.B().Exists().Key(semaphoreWantsOf(key)).Build(), v.permitReads(key))
	}
	return reads
}

// counter interprets the replies of readCounters for a key.
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
	if noted, _ := replies[2].AsBool(); noted { // users without that right see a plain counter
		s.Kind = latchKind
	} else {
		if noted, _ := replies[3].AsBool(); noted {
			s.Kind = semaphoreKind
		}
		s.addPermits(replies[4])
	}
	return s, nil
}

// seeWaiters counts the waiters of a latch or a semaphore. They also tell what kind the number is.
func (v *viewer) seeWaiters(ctx context.Context, seen *view) error {
	if seen.Held && !seen.isCounter() {
		return nil
	}
	all := nodes(v.rdb)
	kinds := map[string]string{latchChannelOf(seen.key): latchKind, prefixed(semaphoreChannel, seen.key): semaphoreKind}
	found := make([]map[string]*listeners, len(all))
	down := each(ctx, all, func(ctx context.Context, i int) error {
		found[i] = make(map[string]*listeners)
		for channel := range kinds {
			if err := all[i].count(ctx, found[i], []string{channel}, "NUMSUB"); err != nil {
				return fmt.Errorf("PUBSUB: %w", err)
			}
			if v.rdb.Mode() == rueidis.ClientModeCluster {
				_ = all[i].count(ctx, found[i], []string{channel}, "SHARDNUMSUB") // Redis before 7 has no sharded channels
			}
		}
		return nil
	})
	if len(down) == len(all) && !isForbidden(down[0]) {
		return down[0]
	}
	channels := joined(found)
	for channel, kind := range kinds {
		if l := channels[channel]; l != nil && l.processes > 0 {
			seen.Processes += int(l.processes)
			seen.waitedAs(kind)
		}
	}
	if len(down) > 0 {
		seen.Processes = -1
	}
	return nil
}

// left describes a latch's remaining count, or a semaphore's permits.
func (s *state) left() string {
	switch s.Kind {
	case semaphoreKind:
		return fmt.Sprintf("%d free", s.Count)
	case permitKind:
		return fmt.Sprintf("%d held, %d free", s.Acquired, s.Count)
	}
	return fmt.Sprintf("%d left", s.Count)
}

// counted returns the changes of a latch or a semaphore's free permits between two looks.
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

// waitedFor returns the latches and semaphores with a matching name and waiters at one of the servers. Without waiters their kind is
// unknown.
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
				return nil, nodeError{n.addr, fmt.Errorf("PUBSUB: %w", err)}
			}
			sharded, _ := n.Do(ctx, b.PubsubShardchannels().Pattern(channels).Build()).AsStrSlice() // Redis before 7 has no sharded channels
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
