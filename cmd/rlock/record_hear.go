package main

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/pubsub"
)

const (
	// mostMessages bounds the messages a second that a recorder hears. If there are more, it does not listen for deafTime.
	mostMessages = 5000
	deafTime     = 10 * time.Second

	// forcedKind is the kind of a message to the ear of an owner's Client: rlock unlock -force is about to free that owner's lock. Clients
	// ignore it.
	forcedKind = "forced"
	// forcedTime is how long after that message the end of the hold is taken for its effect.
	forcedTime = 2 * time.Second
)

// hearing collects what a recorder hears on the unlock channels of all locks: which are worth a look.
type hearing struct {
	*viewer
	pattern string // of keys
	most    int    // keys and owners that are remembered

	confirmed atomic.Int32 // subscriptions to unlock channels
	wants     int32        // how many there are; 0: this Redis has no such subscriptions

	mu     sync.Mutex           // guards the following
	told   map[string]int       // messages by key
	forced map[string]time.Time // owners under which a lock is about to be freed
	second time.Time            // when many began to count
	many   int
	deaf   bool // there were too many messages
	lost   bool // a connection ended by itself
}

// listen starts to hear. Pattern subscribers do not count as waiters. The sharded channels of a cluster have no patterns.
func (h *hearing) listen(ctx context.Context) {
	h.told, h.forced = make(map[string]int), make(map[string]time.Time)
	go h.keepListening(ctx, []string{pubsub.EarChannel("*")}, func() {}) // ends with ctx; on a connection of its own, as it may be forbidden
	if h.rdb.Mode() == rueidis.ClientModeCluster && version(ctx, h.rdb) >= 7 {
		return
	}
	patterns := unlockPatterns(h.pattern)
	h.wants = int32(len(patterns))
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "psubscribe" {
			h.confirmed.Add(1)
		}
	})
	go h.keepListening(hooked, patterns, func() { h.confirmed.Store(0) }) // ends with ctx
}

// keepListening listens again if a connection breaks.
func (h *hearing) keepListening(ctx context.Context, patterns []string, ended func()) {
	for ctx.Err() == nil {
		listening, stop := context.WithCancel(ctx)
		err := receive(listening, h.rdb, h.rdb.B().Psubscribe().Pattern(patterns...).Build(), func(m rueidis.PubSubMessage) {
			if !h.hear(m, time.Now()) {
				stop()
			}
		})
		pause := time.Second // the looks report what is wrong
		switch {
		case listening.Err() != nil:
			pause = deafTime
		case isForbidden(err):
			pause = time.Minute
		default:
			h.mu.Lock()
			h.lost = true
			h.mu.Unlock()
		}
		stop()
		ended()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// hear notes a message. It reports false if there are too many.
func (h *hearing) hear(m rueidis.PubSubMessage, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.second) >= time.Second {
		h.second, h.many = now, 0
	}
	if h.many++; h.many > mostMessages {
		h.deaf = true
		return false
	}
	if strings.HasPrefix(m.Channel, earPrefix) {
		if said, ok := pubsub.ReadSpoken(m.Message); ok && said.Kind == forcedKind && len(h.forced) < h.most {
			h.forced[said.Payload] = now
		}
		return true
	}
	for _, key := range keysOf(unlockChannelOf(m.Channel)) {
		if h.concerns(key) && (h.told[key] > 0 || len(h.told) < h.most) {
			h.told[key]++
		}
	}
	return true
}

// unlockChannelOf returns the unlock channel of a lock whose channel that is.
func unlockChannelOf(channel string) string {
	if end := personal.FindStringIndex(channel); end != nil {
		return channel[:end[0]]
	}
	return channel
}

// concerns reports whether a key is to be recorded.
func (h *hearing) concerns(key string) bool {
	return strings.HasPrefix(key, h.prefix) && globMatches(h.pattern, key)
}

// heard returns what was heard since the last call: messages by key, and whether there were too many.
func (h *hearing) heard() (told map[string]int, deaf bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	told, deaf = h.told, h.deaf
	h.told, h.deaf = make(map[string]int), false
	for owner, at := range h.forced {
		if time.Since(at) > forcedTime {
			delete(h.forced, owner)
		}
	}
	return told, deaf
}

// wasCut reports whether a connection ended by itself since the last call.
func (h *hearing) wasCut() (lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lost, h.lost = h.lost, false
	return lost
}

// wasForced reports whether an owner's lock was just freed by force.
func (h *hearing) wasForced(owner string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.forced[owner]
	return ok
}

// listens reports whether each unlock message is heard.
func (h *hearing) listens() bool { return h.wants > 0 && h.confirmed.Load() == h.wants }

// unlockPatterns returns patterns of the unlock channels of all keys that match a pattern, and of those that wake one process. No channel
// matches two of them, or each message would come twice; so they may match other channels as well.
func unlockPatterns(pattern string) (all []string) {
	for _, channel := range []string{lockChannel, rwChannel} {
		if pattern == "" || strings.ContainsAny(pattern[:1], `*?[\{`) {
			all = append(all, channel+":*")
			continue
		}
		all = append(all, channel+":{"+pattern+"}", channel+":{"+pattern+"}:*", channel+":"+pattern)
	}
	return all
}

// globMatches reports whether a text matches a pattern as Redis does: *, ?, [abc], [^a-z], and \ before one of these.
func globMatches(pattern, text string) bool {
	for pattern != "" {
		if pattern[0] == '*' {
			for pattern = strings.TrimLeft(pattern, "*"); ; text = text[1:] {
				if pattern == "" || globMatches(pattern, text) {
					return true
				}
				if text == "" {
					return false
				}
			}
		}
		if text == "" {
			return false
		}
		ok := true
		switch pattern[0] {
		case '?':
			pattern = pattern[1:]
		case '[':
			ok, pattern = classMatches(pattern[1:], text[0])
		case '\\':
			if len(pattern) > 1 {
				pattern = pattern[1:]
			}
			fallthrough
		default:
			ok, pattern = pattern[0] == text[0], pattern[1:]
		}
		if !ok {
			return false
		}
		text = text[1:]
	}
	return text == ""
}

// classMatches matches a byte with what follows a [, and returns what follows the ].
func classMatches(class string, b byte) (ok bool, rest string) {
	not := strings.HasPrefix(class, "^")
	class = strings.TrimPrefix(class, "^")
	for class != "" && class[0] != ']' {
		from := class[0]
		if from == '\\' && len(class) > 1 {
			class = class[1:]
			ok, class = ok || class[0] == b, class[1:]
			continue
		}
		to := from
		if len(class) > 2 && class[1] == '-' {
			to, class = class[2], class[2:]
		}
		if from > to {
			from, to = to, from
		}
		ok, class = ok || from <= b && b <= to, class[1:]
	}
	return ok != not, strings.TrimPrefix(class, "]")
}

// announceForced tells rlock record and rlock watch that an owner's lock is about to be freed. It is a courtesy: a user may lack the right.
func (v *viewer) announceForced(ctx context.Context, owner string) {
	said := pubsub.Spoken{Kind: forcedKind, Payload: owner}.String()
	_ = v.rdb.Do(ctx, v.rdb.B().Publish().Channel(pubsub.EarChannel(clientID(owner))).Message(said).Build()).Error()
}
