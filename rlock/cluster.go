package rlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/pubsub"
)

// topology is what has to be known of a cluster.
type topology struct {
	mu      sync.Mutex // guards the following
	known   bool
	sharded bool // Redis 7 or later: unlocks are published with SPUBLISH
}

// channel returns the unlock channel of m. On a cluster the first call asks for the server's
// version.
func (c *Client) channel(ctx context.Context, m *Mutex) (pubsub.Channel, error) {
	if c.cluster != nil {
		if err := c.cluster.learn(ctx, c); err != nil {
			return pubsub.Channel{}, err
		}
	}
	return c.knownChannel(m), nil
}

// knownChannel is channel for a lock that has been asked for before.
//
// A sharded channel can be published to by a script only if it hashes to the slot of the script's
// keys. It does, except for names with an empty or misplaced pair of braces, where prefixing
// changes what is hashed. These use plain pub/sub; Redisson fails to unlock them.
func (c *Client) knownChannel(m *Mutex) pubsub.Channel {
	ch := pubsub.Channel{Name: m.kind.channel(m.name)}
	if c.cluster != nil && c.cluster.isSharded() {
		ch.Sharded = c.slot(ch.Name) == c.slot(m.name)
	}
	return ch
}

func (c *Client) slot(key string) uint16 {
	cmd := c.rdb.B().Exists().Key(key).Build()
	return cmd.Slot()
}

func (t *topology) isSharded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sharded
}

func (t *topology) learn(ctx context.Context, c *Client) error {
	t.mu.Lock()
	known := t.known
	t.mu.Unlock()
	if known {
		return nil
	}
	// HELLO is allowed to every user, unlike INFO.
	info, err := await(ctx, c, func(ctx context.Context) (map[string]rueidis.RedisMessage, error) {
		return c.rdb.Do(ctx, c.rdb.B().Hello().Build()).AsMap()
	})
	var redisErr *rueidis.RedisError
	if errors.As(err, &redisErr) && !mayPass(err) {
		info, err = nil, nil // an imitation of Redis that does not know this form of HELLO
	}
	if err != nil {
		return fmt.Errorf("ask for the server's version: %w", err)
	}
	version := info["version"]
	text, _ := version.ToString()
	major, _, _ := strings.Cut(text, ".")
	n, _ := strconv.Atoi(major)
	t.mu.Lock()
	t.known, t.sharded = true, n >= 7
	t.mu.Unlock()
	return nil
}
