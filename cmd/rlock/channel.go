package main

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// Unlocks are published on a channel named after the key: with one beginning for read/write locks, and another for all others.
const (
	lockChannel = "redisson_lock__channel"
	rwChannel   = "redisson_rwlock"
)

// personal is the end of a channel on which one process, or one of Redisson's waiters, is told that it is next.
var personal = regexp.MustCompile(`:[0-9a-fA-F-]{36}(:-?[0-9]+)?$`)

// keysOf are the keys whose unlocks are published on a channel: one, or two, since x and {x} have one channel.
func keysOf(channel string) []string {
	name, ok := strings.CutPrefix(channel, lockChannel+":")
	if !ok {
		if name, ok = strings.CutPrefix(channel, rwChannel+":"); !ok {
			return nil
		}
	}
	if personal.MatchString(name) {
		return nil
	}
	if strings.HasPrefix(name, "{") && strings.HasSuffix(name, "}") {
		if inner := name[1 : len(name)-1]; !strings.Contains(inner, "{") {
			return []string{inner, name}
		}
	}
	return []string{name}
}

// listening counts who listens to the unlock channels of a server, plain and sharded ones, whatever they are told by.
func (n node) listening(ctx context.Context, channels map[string]int64) error {
	for _, prefix := range []string{lockChannel, rwChannel} {
		b := n.B()
		names, err := n.Do(ctx, b.PubsubChannels().Pattern(prefix+":*").Build()).AsStrSlice()
		if err != nil {
			return err
		}
		if err := n.count(ctx, channels, names, "NUMSUB"); err != nil {
			return err
		}
		// Before Redis 7 there are none.
		names, _ = n.Do(ctx, b.PubsubShardchannels().Pattern(prefix+":*").Build()).AsStrSlice()
		if err := n.count(ctx, channels, names, "SHARDNUMSUB"); err != nil {
			return err
		}
	}
	return nil
}

func (n node) count(ctx context.Context, channels map[string]int64, names []string, how string) error {
	var unlocks []string
	for _, name := range names {
		if keysOf(name) != nil {
			unlocks = append(unlocks, name)
		}
	}
	if len(unlocks) == 0 {
		return nil
	}
	reply, err := n.Do(ctx, n.B().Arbitrary("PUBSUB", how).Args(unlocks...).Build()).AsIntMap()
	if err != nil {
		return err
	}
	for name, count := range reply {
		channels[name] += count
	}
	return nil
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
