package faults

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// histGrants records the grants that a client got from other processes.
type histGrants struct {
	lease map[string]time.Duration // of each granted owner
	over  map[string]int64         // end of a grant delayed by a sabotage
	late  sync.WaitGroup           // messages delayed by a sabotage
}

func newHistGrants() histGrants {
	return histGrants{lease: make(map[string]time.Duration), over: make(map[string]int64)}
}

// histGrant is the message '<owner> <lease> <grants> <token>' to one process.
func histGrant(payload string) (owner string, lease time.Duration, ok bool) {
	words := strings.Fields(payload)
	if len(words) != 4 {
		return "", 0, false
	}
	ms, err := strconv.Atoi(words[1])
	return words[0], time.Duration(ms) * time.Millisecond, err == nil
}

// Dedicate returns the connection for subscriptions, and records its messages.
func (r histRedis) Dedicate() (rueidis.DedicatedClient, func()) {
	conn, cancel := r.Client.Dedicate()
	return histConn{conn, r}, cancel
}

// histConn is a subscribing connection.
type histConn struct {
	rueidis.DedicatedClient

	redis histRedis
}

func (c histConn) SetPubSubHooks(hooks rueidis.PubSubHooks) <-chan error {
	next := hooks.OnMessage
	hooks.OnMessage = func(m rueidis.PubSubMessage) {
		if !c.redis.log.heard(c.redis.sabotage, m, next) {
			next(m)
		}
	}
	return c.DedicatedClient.SetPubSubHooks(hooks)
}

// heard records a message. It reports true if a sabotage has taken the message.
func (l *histLog) heard(sabotage string, m rueidis.PubSubMessage, next func(rueidis.PubSubMessage)) (taken bool) {
	owner, lease, ok := histGrant(m.Message)
	if !ok {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants.lease[owner] = lease
	if l.ending {
		return false
	}
	switch sabotage {
	case histOldGrant: // the process gets no message until the grant is over
		l.grants.over[owner] = histNow() + int64(lease+lease/4)
		return true
	case histOtherGrant: // the waiter at its second delivery takes it for its own
		l.later(lease/20, func() {
			if other := l.placed(m.Channel, owner); other != "" {
				again := m
				again.Message = strings.Replace(m.Message, owner, other, 1)
				next(again)
			}
		})
	}
	return false
}

// later runs f after d, on a goroutine that ends with f.
func (l *histLog) later(d time.Duration, f func()) {
	l.grants.late.Add(1)
	time.AfterFunc(d, func() {
		defer l.grants.late.Done()
		f()
	})
}

// placed returns the owner, other than granted, that last asked for a place in the queue of that channel's lock.
func (l *histLog) placed(channel, granted string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last histKey
	for k, at := range l.queued {
		if k.Owner != granted && at > l.queued[last] && l.trust[k] == 0 && strings.Contains(channel, "{"+k.Name+"}") {
			last = k
		}
	}
	if last.Owner == "" {
		return ""
	}
	l.grants.lease[last.Owner] = l.grants.lease[granted]
	l.forged++
	return last.Owner
}
