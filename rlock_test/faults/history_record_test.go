package faults

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sys/unix"
)

// histNow is a clock that all processes of the machine share, and that nobody can set.
func histNow() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// histKey is an owner's field in the hash of a lock.
type histKey struct{ Name, Owner string }

// histLog collects the history of one process, and what its clients know of their leases. It looks
// over the shoulder of the library for that: see histRedis.
type histLog struct {
	mu      sync.Mutex // guards the following
	entries []histEntry
	trust   map[histKey]int64 // until when the last success guards the key in Redis
	asked   map[histKey]bool  // an acquire was sent
	unsure  map[histKey]bool  // the outcome of a command was unknown
	forged  int64             // hand-offs, see histForged
	runs    histRuns
}

func newHistLog() *histLog {
	return &histLog{
		trust: make(map[histKey]int64), asked: make(map[histKey]bool), unsure: make(map[histKey]bool),
		runs: histRuns{length: make(map[histKey]int)},
	}
}

func (l *histLog) add(e histEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
}

func (l *histLog) doubt(k histKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsure[k] = true
}

func (l *histLog) trusted(k histKey) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trust[k]
}

// histRedis notes what the lock client sends and what comes back. The time is taken before a command
// is handed on, so not before the library took its own, and not after Redis ran it: a key is safe
// until that time plus the lease, and trusted in until then or a little less.
type histRedis struct {
	rueidis.Client

	log      *histLog
	sabotage string // of the plan
}

func (r histRedis) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := slices.Clone(cmd.Commands()) // Do takes the command back
	c, ok := parseHistScript(words)
	if ok && (c.what == "acquire" || c.what == "hand-off") {
		r.log.mu.Lock()
		r.log.asked[c.keys[0]] = true
		r.log.mu.Unlock()
	}
	sent := histNow()
	result := r.Client.Do(ctx, cmd)
	if r.sabotage == histForged && c.what == "hand-off" && result.Error() == nil && !c.granted(0, result) {
		r.log.mu.Lock()
		r.log.forged++
		r.log.mu.Unlock()
		result = r.forge(ctx, c)
	}
	if ok {
		r.log.answered(c, sent, result)
	}
	return result
}

// forge makes the reply that a hand-off had if it had been made.
func (r histRedis) forge(ctx context.Context, c histScript) rueidis.RedisResult {
	if c.fence == "" {
		return r.Client.Do(ctx, r.B().Exists().Key(c.keys[0].Name+":none").Build())
	}
	return r.Client.Do(ctx, r.B().Incr().Key(c.fence).Build())
}

// histScript is a script call of the library.
type histScript struct {
	what  string // acquire, release, hand-off or renew
	keys  []histKey
	lease time.Duration
	first bool    // an acquire of a new hold, no re-entry
	fence string  // key of the fencing counter, if there is one
	from  histKey // whose hold is handed off; keys has who gets it
}

// parseHistScript tells the scripts apart by their arguments.
func parseHistScript(words []string) (histScript, bool) {
	if len(words) < 3 || (words[0] != "EVALSHA" && words[0] != "EVAL") {
		return histScript{}, false
	}
	n, err := strconv.Atoi(words[2])
	if err != nil || len(words) < 3+n {
		return histScript{}, false
	}
	names, args := words[3:3+n], words[3+n:]
	c := histScript{what: "renew"}
	if n == 2 && strings.HasPrefix(names[1], "redisson_lock_token:") {
		n, names, c.fence = 1, names[:1], names[1]
	}
	var lease string
	switch {
	case n == 1 && len(args) == 3 && strings.Contains(args[1], ":"): // owner, next owner, lease
		c.what, lease = "hand-off", args[2]
		c.keys, c.from = []histKey{{names[0], args[1]}}, histKey{names[0], args[0]}
	case n == 1 && len(args) == 3: // owner, lease, count
		c.what, lease, c.first = "acquire", args[1], args[2] == "1"
		c.keys = []histKey{{names[0], args[0]}}
	case n == 1 && len(args) == 5: // owner, count, lease, how and where to publish
		c.what, lease = "release", args[2]
		c.keys = []histKey{{names[0], args[0]}}
		if args[1] == "0" {
			lease = "0"
		}
	case n == len(args)-1: // lease, owners
		lease = args[0]
		for i, name := range names {
			c.keys = append(c.keys, histKey{name, args[i+1]})
		}
	}
	ms, err := strconv.Atoi(lease)
	c.lease = time.Duration(ms) * time.Millisecond
	return c, err == nil
}

func (l *histLog) answered(c histScript, sent int64, result rueidis.RedisResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs.note(c, result)
	if err := result.Error(); err != nil {
		// A renewal that comes late keeps a key or does nothing. NOSCRIPT is followed by the script.
		redisErr, said := rueidis.IsRedisErr(err)
		if c.what != "renew" && (!said || !redisErr.IsNoScript()) {
			l.unsure[c.keys[0]] = true
		}
		if c.what == "hand-off" && !said {
			l.unsure[c.from] = true
		}
		return
	}
	for i, k := range c.keys {
		if c.lease > 0 && c.granted(i, result) {
			l.trust[k] = max(l.trust[k], sent+int64(c.lease))
		}
	}
}

// granted reports whether the reply says that the i-th key is held, for the lease.
func (c histScript) granted(i int, result rueidis.RedisResult) bool {
	if c.what == "renew" {
		values, err := result.ToArray()
		if err != nil || i >= len(values) {
			return false
		}
		done, err := values[i].AsInt64()
		return err == nil && done == 1
	}
	n, err := result.ToInt64() // an acquire that finds the lock held answers a list
	if c.what == "release" {
		return err == nil && n == 1
	}
	return err == nil && n >= 0
}

// histReport is what a process has to say after a run; logs of several processes are merged.
type histReport struct {
	Entries []histEntry
	Asked   []histKey
	Unsure  []histKey
	Tally   histTally
	Left    int // goroutines of the library that no caller needs
	Error   string
}

func (l *histLog) report() histReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := histReport{Entries: l.entries}
	r.Tally.HandOffs = l.runs.total
	for k := range l.asked {
		r.Asked = append(r.Asked, k)
	}
	for k := range l.unsure {
		r.Unsure = append(r.Unsure, k)
	}
	return r
}

// histMerge makes one history of the reports. An owner that others saw but no Lock returned is what a
// failed Lock left for a while; if nobody ever asked for it, the model will not have it.
func histMerge(reports ...histReport) []histEntry {
	var all []histEntry
	unsure, asked, locked := make(map[histKey]bool), make(map[histKey]bool), make(map[histKey]bool)
	for _, r := range reports {
		all = append(all, r.Entries...)
		for _, k := range r.Unsure {
			unsure[k] = true
		}
		for _, k := range r.Asked {
			asked[k] = true
		}
	}
	for _, e := range all {
		if e.Kind == histLock {
			locked[histKey{e.Name, e.Owner}] = true
		}
	}
	for i, e := range all {
		k := histKey{e.Name, e.Owner}
		all[i].Unsure = unsure[k] || asked[k] && !locked[k]
	}
	return all
}
