package main

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// Unlocks are published on a channel named after the key: with one beginning for read/write locks, and another for all others. See latchChannel and
// semaphoreChannel for others.
const (
	lockChannel = "redisson_lock__channel"
	rwChannel   = "redisson_rwlock"
)

// inLine is the end of a channel to which processes in line listen beside the unlock channel.
const inLine = ":rlock_queue"

// personal is the end of a channel on which one process, or one of Redisson's waiters, is told that it is next.
var personal = regexp.MustCompile(`:([0-9a-fA-F-]{36})(:-?[0-9]+)?$`)

// keysOf are the keys whose unlocks are published on a channel: one, or two, since x and {x} have one channel.
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

// listeners are who listens for the unlocks of a lock.
type listeners struct {
	processes int64           // on the unlock channel
	ours      map[string]bool // client ids of this library, each with a channel of its own
	fair      map[string]bool // of those that are told as one owner: Redisson's waiters for a fair lock listen there alone
}

// count is how many processes these are.
func (l *listeners) count() int64 {
	n := l.processes
	for id := range l.fair {
		if !l.ours[id] {
			n++
		}
	}
	return n
}

// listening adds those who listen at a server, on plain and sharded channels, by unlock channel.
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
		// Before Redis 7 there are none.
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

// version is the major version of a server; 0 if it does not tell.
func version(ctx context.Context, c rueidis.Client) int {
	hello, _ := c.Do(ctx, c.B().Hello().Build()).AsMap()
	v := hello["version"]
	text, _ := v.ToString()
	major, _, _ := strings.Cut(text, ".")
	n, _ := strconv.Atoi(major)
	return n
}
