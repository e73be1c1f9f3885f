package faults

import (
	"context"
	"crypto/sha1"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sys/unix"

	"github.com/go-rlock/rlock/lua"
)

// histNow reads a clock that all processes of the machine share and nobody can set.
func histNow() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// histEpoch is one moment on both clocks.
var histEpoch = func() (e struct {
	at   int64
	time time.Time
}) {
	for took := int64(time.Hour); took > int64(time.Millisecond); { // without a pause between the two
		e.at, e.time = histNow(), time.Now()
		took = histNow() - e.at
	}
	return e
}()

// histTime is a time of histNow.
func histTime(at int64) time.Time { return histEpoch.time.Add(time.Duration(at - histEpoch.at)) }

// histClock is the opposite of histTime.
func histClock(at time.Time) int64 { return histEpoch.at + int64(at.Sub(histEpoch.time)) }

// histKey is an owner's field in the hash of a lock.
type histKey struct{ Name, Owner string }

// histLog collects the history of one process and the leases known to its clients, which histRedis
// sees in the library's commands and replies.
type histLog struct {
	mu      sync.Mutex // guards the following
	entries []histEntry
	trust   map[histKey]int64 // end of the lease set by the last success
	queued  map[histKey]int64 // sending time of the first call that may have queued it among the processes
	grants  histGrants        // to this client
	asked   map[histKey]bool  // an acquire was sent
	unsure  map[histKey]bool  // the outcome of a command was unknown
	forged  int64             // replies, see histForged
	tries   int64             // see forges
	since   map[histKey]histSince
	holds   map[histKey]int  // number of successive holds of the owner
	ended   map[histKey]bool // a release was answered
	stays   int64            // of a read/write lock
	ending  bool             // no more sabotage of grants, so that all callers return
}

// histSince is the earliest time at which an owner may have the lock: the sending of the first acquire with unknown
// outcome, or of the last acquire.
type histSince struct {
	sent  int64
	under int // acquires under way
}

func (s histSince) sends(now int64, unsure bool) histSince {
	if s.under == 0 && !unsure {
		s.sent = now
	}
	s.under++
	return s
}

func newHistLog() *histLog {
	return &histLog{
		trust: make(map[histKey]int64), queued: make(map[histKey]int64), grants: newHistGrants(),
		since: make(map[histKey]histSince), asked: make(map[histKey]bool), unsure: make(map[histKey]bool),
		holds: make(map[histKey]int), ended: make(map[histKey]bool),
	}
}

// stay numbers the stays in a read/write lock.
func (l *histLog) stay() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stays++
	return l.stays
}

// ends is the end of the sabotage.
func (l *histLog) ends() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ending = true
}

// sabotaged counts the forged replies, and the holds that lasted too long.
func (l *histLog) sabotaged() (forged, overdue int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.Kind == histOver {
			overdue++
		}
	}
	return l.forged, overdue
}

func (l *histLog) add(e histEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
}

// next names the hold that a Lock returned: the owner, for its first hold. No hold follows the release of an owner (I3).
func (l *histLog) next(k histKey) (hold string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds[k]++; l.holds[k] == 1 {
		return k.Owner, nil
	}
	if l.ended[k] {
		err = fmt.Errorf("%s: a hold has the owner %s, which was released", k.Name, k.Owner)
	}
	return fmt.Sprintf("%s#%d", k.Owner, l.holds[k]), err
}

func (l *histLog) doubt(k histKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsure[k] = true
}

// trusted is the time until which a hold is safe in Redis, as far as its client can know. A hold granted by another
// process begins with the grant's lease, counted from the client's request for a place in the queue.
func (l *histLog) trusted(k histKey) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := l.trust[k]; until != 0 {
		return until
	}
	if lease, queued := l.grants.lease[k.Owner], l.queued[k]; lease > 0 && queued > 0 {
		return queued + int64(lease)
	}
	return 0
}

// histRedis records the commands of the lock client and their replies. It takes the time before it passes a
// command on: after the library took its own, and before Redis runs it. A key is safe until that time plus
// the lease, and the library trusts it until then or slightly less.
type histRedis struct {
	rueidis.Client

	log      *histLog
	sabotage string // of the plan
}

func (r histRedis) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := slices.Clone(cmd.Commands()) // Do recycles the command
	c, ok := parseHistScript(words)
	sent := histNow()
	if ok && (c.what == "acquire" || c.what == "hand-off") {
		r.log.mu.Lock()
		r.log.asked[c.keys[0]] = true
		r.log.since[c.keys[0]] = r.log.since[c.keys[0]].sends(sent, r.log.unsure[c.keys[0]])
		if c.joins && r.log.queued[c.keys[0]] == 0 {
			r.log.queued[c.keys[0]] = sent
		}
		over := r.log.grants.over[c.keys[0].Owner]
		old := over > 0 && c.what == "acquire" && c.first && !r.log.ending
		if old && sent > over {
			r.log.forged++
		}
		r.log.mu.Unlock()
		if old && sent <= over {
			return r.refuse(ctx, time.Duration(over-sent))
		}
		if old {
			result := r.forge(ctx, c)
			r.log.answered(c, sent, result)
			return result
		}
	}
	if r.sabotage == histNoUnlock && c.what == "release" && c.ends && !strings.HasPrefix(c.from.Name, "rlock_upgrade") && r.log.forges(7) {
		return r.Client.Do(ctx, r.B().Arbitrary("EVAL", "return 1", "0").Build())
	}
	result := r.Client.Do(ctx, cmd)
	if r.sabotage == histReadAll && c.what == "acquire" && c.first && !rwWrites(c.keys[0].Owner) && refusedFirst(result) && r.log.forges(2) {
		result = r.forge(ctx, c)
	}
	if r.sabotage == histForged && c.what == "hand-off" && result.Error() == nil && c.refused(result) {
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

// forges reports true once in every so many calls, and counts the forgeries.
func (l *histLog) forges(every int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tries++; l.ending || l.tries%every != 0 {
		return false
	}
	l.forged++
	return true
}

// refusedFirst reports whether the reply to an acquire shows that others have the lock.
func refusedFirst(result rueidis.RedisResult) bool {
	_, err := result.ToArray()
	return err == nil
}

// forge makes the reply for a caller that has the lock: the token for an acquire, a list with the token for a hand-off.
func (r histRedis) forge(ctx context.Context, c histScript) rueidis.RedisResult {
	const script = "local token = KEYS[1] and redis.call('incr', KEYS[1]) or 0 if ARGV[1] == 'acquire' then return token end return {token}"
	words := []string{"EVAL", script, "0", c.what}
	if c.fence != "" {
		words = []string{"EVAL", script, "1", c.fence, c.what}
	}
	return r.Client.Do(ctx, r.B().Arbitrary(words[:3]...).Keys(words[3:len(words)-1]...).Args(c.what).Build())
}

// refuse makes the reply to an acquire while another process has the lock for ttl.
func (r histRedis) refuse(ctx context.Context, ttl time.Duration) rueidis.RedisResult {
	return r.Client.Do(ctx, r.B().Arbitrary("EVAL", "return {tonumber(ARGV[1]), '', 1}", "0").
		Args(strconv.FormatInt(ttl.Milliseconds(), 10)).Build())
}

// histScript is a script call of the library.
type histScript struct {
	what  string // acquire, release, hand-off or renew
	keys  []histKey
	lease time.Duration
	each  []time.Duration // the leases of keys, if each has one of its own
	first bool            // an acquire of a new hold, no re-entry
	fence string          // key of the fencing counter, if there is one
	queue string          // key of the queue of waiting processes, if there is one
	from  histKey         // the hold handed off, or released for other processes; keys has this process's next owner
	joins bool            // keys joins the queue if refused
	ends  bool            // a release or hand-off that ends the hold
	left  histKey         // the ticket of an export
	fair  bool            // each waiter has a place in the queue
}

// histScripts names the scripts, by what EVAL and EVALSHA send.
var histScripts = func() map[string]string {
	all := make(map[string]string)
	for _, name := range []string{
		"acquire", "release", "renew", "read_acquire", "read_release", "read_renew", "write_acquire", "fenced_write_acquire", "write_release",
	} {
		text := lua.Text(name)
		all[text], all[fmt.Sprintf("%x", sha1.Sum([]byte(text)))] = name, name
	}
	return all
}()

// parseHistScript knows the scripts by their texts, those of fair locks and tickets by their arguments.
func parseHistScript(words []string) (histScript, bool) {
	if len(words) < 3 || (words[0] != "EVALSHA" && words[0] != "EVAL") {
		return histScript{}, false
	}
	n, err := strconv.Atoi(words[2])
	if err != nil || n < 1 || len(words) < 3+n {
		return histScript{}, false
	}
	names, args := words[3:3+n], words[3+n:]
	c := histScript{what: "renew"}
	if t, ok := parseTicketScript(names, args); ok {
		return t, true
	}
	if f, ok := parseFairScript(names, args); ok {
		return f, true
	}
	if last := names[n-1]; n > 1 && (strings.HasPrefix(last, "rlock_writers:") || strings.HasPrefix(last, "rlock_queue:")) {
		n, names, c.queue = n-1, names[:n-1], last
	}
	if n == 2 && strings.HasPrefix(names[1], "redisson_lock_token:") {
		names, c.fence = names[:1], names[1]
	}
	var lease string
	switch histScripts[words[1]] {
	case "read_acquire", "write_acquire", "fenced_write_acquire": // owner, lease, count
		c.what, lease, c.first = "acquire", args[1], args[2] == "1"
		c.keys = []histKey{{names[0], args[0]}}
	case "read_release", "write_release": // owner, count, lease
		c.what, lease, c.ends = "release", args[2], args[1] == "0"
		c.from = histKey{names[0], args[0]}
		c.keys = []histKey{c.from}
	case "release": // owner, where to publish, grant and how to publish; perhaps count, lease, next, stay
		c.what, lease, c.ends = "release", "0", len(args) < 5 || args[4] == "0"
		c.from = histKey{names[0], args[0]}
		c.keys = []histKey{c.from}
		if len(args) > 5 {
			lease = args[5]
		}
		if len(args) > 6 {
			c.what, c.keys = "hand-off", []histKey{{names[0], args[6]}}
			c.joins = args[7] == "0"
		}
	case "acquire": // owner, lease; in the queue grant and where to publish, or '' and the count
		c.what, lease, c.joins = "acquire", args[1], c.queue != ""
		c.first = c.joins || len(args) == 2
		c.keys = []histKey{{names[0], args[0]}}
	case "read_renew": // owner and lease of each
		for i, name := range names {
			lease = args[2*i+1]
			ms, err := strconv.Atoi(lease)
			if err != nil {
				return c, false
			}
			c.keys, c.each = append(c.keys, histKey{name, args[2*i]}), append(c.each, time.Duration(ms)*time.Millisecond)
		}
	case "renew": // lease, owners
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
	if c.ends && result.Error() == nil {
		l.ended[c.from] = true
	}
	l.seePlaces(c, sent, result)
	if c.left.Owner != "" { // whatever the reply: its Export may have gone before that, and is undone then
		l.asked[c.left] = true
	}
	if c.what == "acquire" {
		since := l.since[c.keys[0]]
		since.under--
		l.since[c.keys[0]] = since
	}
	if err := result.Error(); err != nil {
		// A late renewal keeps a key or does nothing. After NOSCRIPT the script is sent.
		redisErr, said := rueidis.IsRedisErr(err)
		if c.what != "renew" && c.what != "refresh" && (!said || !redisErr.IsNoScript()) {
			l.unsure[c.keys[0]] = true
		}
		if c.what == "hand-off" && !said {
			l.unsure[c.from] = true
		}
		return
	}
	for i, k := range c.keys {
		lease := c.lease
		if c.each != nil {
			lease = c.each[i]
		}
		if lease > 0 && c.granted(i, result) {
			l.trust[k] = max(l.trust[k], sent+int64(lease))
		}
	}
}

// granted reports whether, by the reply, the i-th key is held for the lease.
func (c histScript) granted(i int, result rueidis.RedisResult) bool {
	switch c.what {
	case "renew":
		values, err := result.ToArray()
		if err != nil || i >= len(values) {
			return false
		}
		done, err := values[i].AsInt64()
		return err == nil && done == 1
	case "hand-off": // a list with the token; a number means that another process has the lock, or asks first
		_, err := result.ToArray()
		return err == nil
	}
	n, err := result.ToInt64() // the reply is a list if the lock is held
	if c.what == "release" {
		return err == nil && n == 1
	}
	return err == nil && n >= 0
}

// refused reports whether, by the reply, there was no hold to end.
func (c histScript) refused(result rueidis.RedisResult) bool {
	n, err := result.ToInt64()
	return err == nil && n == 0
}

// histReport is the report of a process after a run; histMerge joins the logs of several.
type histReport struct {
	Entries []histEntry
	Asked   []histKey
	Unsure  []histKey
	Queued  []histKey // had a place in the processes' queue
	Ended   []histKey // have had a reply to their release
	Tally   histTally
	Stalls  []histStall // of the process
}

// histStall is a stall, in times of histNow.
type histStall struct{ From, To int64 }

func (l *histLog) report() histReport {
	l.grants.late.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := histReport{Entries: l.entries, Stalls: ownStalls.recorded()}
	for k := range l.asked {
		r.Asked = append(r.Asked, k)
	}
	for k := range l.unsure {
		r.Unsure = append(r.Unsure, k)
	}
	for k := range l.queued {
		r.Queued = append(r.Queued, k)
	}
	for k := range l.ended {
		r.Ended = append(r.Ended, k)
	}
	return r
}

// histNext names the hold that follows another of the same owner.
func histNext(hold string) string {
	owner, number, _ := strings.Cut(hold, "#")
	n, err := strconv.Atoi(number)
	if err != nil {
		n = 1
	}
	return fmt.Sprintf("%s#%d", owner, n+1)
}

// histMerge joins the reports into one history. If others saw an owner that no Lock returned, a failed Lock left
// it for a while; if no acquire was ever sent for it, the model rejects it. A queued owner may appear and disappear
// before its Lock returns: its grant came too late.
func histMerge(reports ...histReport) []histEntry {
	var all []histEntry
	unsure, asked, queued, ended := make(map[histKey]bool), make(map[histKey]bool), make(map[histKey]bool), make(map[histKey]bool)
	locked := make(map[histKey]int64) // when its Lock or Export returned
	for _, r := range reports {
		all = append(all, r.Entries...)
		for _, k := range r.Unsure {
			unsure[k] = true
		}
		for _, k := range r.Asked {
			asked[k] = true
		}
		for _, k := range r.Queued {
			queued[k] = true
		}
		for _, k := range r.Ended {
			ended[k] = true
		}
	}
	holds := make(map[histKey]bool)
	for _, e := range all {
		if e.Kind == histLock || e.Kind == histAdopt {
			k := histKey{e.Name, histTenure(e.Owner)}
			if at := locked[k]; at == 0 || e.Return < at {
				locked[k] = e.Return
			}
			holds[histKey{e.Name, e.Owner}] = true
		}
		if e.Kind == histExport {
			locked[histKey{e.Name, e.Ticket}] = e.Return
		}
	}
	over := make(map[histKey]bool) // may stay in Redis for longer
	for _, e := range all {
		if e.Kind == histLost || e.Kind == histUnknown {
			over[histKey{e.Name, histTenure(e.Owner)}] = true
		}
	}
	for i, e := range all {
		var seen []string
		for hold := range strings.FieldsSeq(e.Seen) {
			if k := (histKey{e.Name, rwOwner(hold)}); unsure[k] || over[k] || asked[k] && locked[k] == 0 {
				hold += "?"
			}
			seen = append(seen, hold)
		}
		all[i].Seen = strings.Join(seen, " ")
		if next := histNext(e.Owner); holds[histKey{e.Name, next}] {
			all[i].Next = next
		}
		k := histKey{e.Name, histTenure(e.Owner)}
		all[i].Passes = e.Kind == histUnlock && !ended[k]
		isLook := e.Kind == histLook || e.Kind == histDelete
		all[i].Unsure = unsure[k] || asked[k] && locked[k] == 0 || isLook && queued[k] && e.Call < locked[k]
	}
	return all
}

// parseFairScript parses the calls of fair locks' scripts. Their keys are the lock, the queue and its times.
func parseFairScript(names, args []string) (histScript, bool) {
	n := len(names) / 3
	if len(names)%3 != 0 || !strings.HasPrefix(names[1], "redisson_lock_queue:") {
		return histScript{}, false
	}
	c := histScript{fair: true, keys: []histKey{{names[0], args[0]}}}
	switch {
	case n == 1 && len(args) == 7: // owner, lease, to join the queue
		ms, err := strconv.Atoi(args[1])
		c.what, c.first, c.joins, c.lease = "acquire", true, args[2] == "1", time.Duration(ms)*time.Millisecond
		return c, err == nil
	case n == 1 && len(args) == 6: // owner
		c.what, c.ends, c.from = "release", true, c.keys[0]
		return c, true
	case len(args) == 3+2*n: // three common arguments, then owners and channels
		c.what, c.keys = "refresh", nil
		for i := range n {
			c.keys = append(c.keys, histKey{names[3*i], args[3+2*i]})
		}
		return c, true
	}
	return histScript{}, false
}

// seePlaces records the places in fair queues that a reply confirms. A grant comes later, so it counts from then, unless a late copy of a call
// may have put the owner in the queue again. The caller holds the log's mutex.
func (l *histLog) seePlaces(c histScript, sent int64, result rueidis.RedisResult) {
	reply, err := result.ToArray()
	if !c.fair || err != nil {
		return
	}
	for i, k := range c.keys {
		at := i
		if c.what == "acquire" {
			at = 2
		}
		if at >= len(reply) {
			continue
		}
		if there, err := reply[at].AsInt64(); err == nil && there >= 1 && !l.unsure[k] {
			l.queued[k] = max(l.queued[k], sent)
		}
	}
}
