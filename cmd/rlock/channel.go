package main

import (
	"context"
	"maps"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// Prefixes of the channels on which unlocks are published; the key follows. See also latchChannel and semaphoreChannel.
const (
	lockChannel = "redisson_lock__channel"
	rwChannel   = "redisson_rwlock"
)

// inLine is the suffix of the channel that queued processes subscribe to beside the unlock channel.
const inLine = ":rlock_queue"

// personal is the suffix of a channel that wakes one process, or one of Redisson's waiters.
var personal = regexp.MustCompile(`:([0-9a-fA-F-]{36})(:-?[0-9]+)?$`)

// keysOf returns the keys whose unlocks a channel carries: one, or two, because x and {x} share a channel.
func keysOf(channel string) []string {
	if name, ok := strings.CutPrefix(channel, latchChannel+"{"); ok && strings.HasSuffix(name, "}") {
		return []string{strings.TrimSuffix(name, "}")}
	}
	name, ok := strings.CutPrefix(channel, lockChannel+":")
	if !ok {
		if name, ok = strings.CutPrefix(channel, rwChannel+":"); !ok {
			if name, ok = strings.CutPrefix(channel, semaphoreChannel+":"); !ok {
				return nil
			}
		}
	}
	if strings.HasPrefix(name, "{") && strings.HasSuffix(name, "}") {
		if inner := name[1 : len(name)-1]; !strings.Contains(inner, "{") {
			return []string{inner, name}
		}
	}
	return []string{name}
}

// listeners counts the subscribers to the unlocks of a lock.
type listeners struct {
	processes int64           // subscribed to the unlock channel
	ours      map[string]bool // client ids of this library, each with its own channel
	fair      map[string]bool // client ids in personal channels with a thread: Redisson's waiters for a fair lock listen only there
}

// count returns the number of listening processes.
func (l *listeners) count() int64 {
	n := l.processes
	for id := range l.fair {
		if !l.ours[id] {
			n++
		}
	}
	return n
}

// joined joins the listeners at several servers.
func joined(found []map[string]*listeners) map[string]*listeners {
	channels := make(map[string]*listeners)
	for _, mine := range found {
		for channel, l := range mine {
			if channels[channel] == nil {
				channels[channel] = l
				continue
			}
			channels[channel].processes += l.processes
			maps.Copy(channels[channel].ours, l.ours)
			maps.Copy(channels[channel].fair, l.fair)
		}
	}
	return channels
}

// listening adds a server's subscribers, on plain and sharded channels, by unlock channel.
func (n node) listening(ctx context.Context, all map[string]*listeners) error {
	for _, pattern := range []string{lockChannel + ":*", rwChannel + ":*", latchChannel + "{*", semaphoreChannel + ":*"} {
		b := n.B()
		names, err := n.Do(ctx, b.PubsubChannels().Pattern(pattern).Build()).AsStrSlice()
		if err == nil {
			err = n.count(ctx, all, names, "NUMSUB")
		}
		if err != nil {
			return err
		}
		// Redis before 7 has no sharded channels.
		names, _ = n.Do(ctx, b.PubsubShardchannels().Pattern(pattern).Build()).AsStrSlice()
		if err := n.count(ctx, all, names, "SHARDNUMSUB"); err != nil {
			return err
		}
	}
	return nil
}

func (n node) count(ctx context.Context, all map[string]*listeners, names []string, how string) error {
	at := func(channel string) *listeners {
		if all[channel] == nil {
			all[channel] = &listeners{ours: make(map[string]bool), fair: make(map[string]bool)}
		}
		return all[channel]
	}
	var unlocks []string
	for _, name := range names {
		end := personal.FindStringSubmatch(name)
		switch {
		case strings.HasSuffix(name, inLine):
		case end == nil:
			unlocks = append(unlocks, name)
		case end[2] == "":
			at(strings.TrimSuffix(name, end[0])).ours[end[1]] = true
		default:
			at(strings.TrimSuffix(name, end[0])).fair[end[1]] = true
		}
	}
	if len(unlocks) == 0 {
		return nil
	}
	reply, err := n.Do(ctx, n.B().Arbitrary("PUBSUB", how).Args(unlocks...).Build()).AsIntMap()
	for name, count := range reply {
		at(name).processes += count
	}
	return err
}

// version returns the server's major version, 0 if unknown.
func version(ctx context.Context, c rueidis.Client) int {
	hello, _ := c.Do(ctx, c.B().Hello().Build()).AsMap()
	v := hello["version"]
	text, _ := v.ToString()
	major, _, _ := strings.Cut(text, ".")
	n, _ := strconv.Atoi(major)
	return n
}

// receive is rdb.Receive on a connection of its own, which it closes. With RESP2, rueidis 1.0.79 does not replace a broken connection of
// subscriptions: each later Receive of the client fails. And it never unsubscribes.
func receive(ctx context.Context, rdb rueidis.Client, subscribe rueidis.Completed, fn func(rueidis.PubSubMessage)) error {
	conn, _ := rdb.Dedicate()
	defer conn.Close() // gives it back, too
	return conn.Receive(ctx, subscribe, fn)
}
