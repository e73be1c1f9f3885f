package faults

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// histGrants is what a client was told of locks that other processes gave to it.
type histGrants struct {
	lease map[string]time.Duration // of each owner that was granted one
	over  map[string]int64         // by when a grant is over that a sabotage has kept back
	used  int64                    // holds that began with a grant, without a command
	late  sync.WaitGroup           // messages that a sabotage keeps back
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

// Dedicate hands out the connection of the subscriptions, and looks over the shoulder there too.
func (r histRedis) Dedicate() (rueidis.DedicatedClient, func()) {
	conn, cancel := r.Client.Dedicate()
	return histConn{conn, r}, cancel
}

// histConn is a connection that subscribes.
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

// heard notes a message. It reports true if a sabotage has taken it.
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
	case histOldGrant: // the process hears of nothing until the grant is over
		l.grants.over[owner] = histNow() + int64(lease+lease/4)
		return true
	case histOtherGrant: // whoever waits when it comes a second time takes it for its own
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

// later runs f after a while, on a goroutine of its own that ends with it.
func (l *histLog) later(d time.Duration, f func()) {
	l.grants.late.Add(1)
	time.AfterFunc(d, func() {
		defer l.grants.late.Done()
		f()
	})
}

// placed returns the owner that asked last for a place in the queue of the lock with that channel: not the one that the grant was for.
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

// began is called with each hold that a Lock which competed came back with.
func (l *histLog) began(k histKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trust[k] == 0 && l.grants.lease[k.Owner] > 0 {
		l.grants.used++
	}
}
