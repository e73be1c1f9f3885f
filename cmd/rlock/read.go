package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/rlock"
)

// state is what can be seen of a lock. Its JSON is what programs read.
type state struct {
	Name    string   `json:"name"`                  // without the prefix
	Bytes   []byte   `json:"name_base64,omitempty"` // of a name that is no UTF-8, which the JSON of a text cannot be
	Kind    string   `json:"kind"`                  // mutex, fenced, fair, read or write; latch, semaphore or permits, or counter if it may be one; "" of a free lock
	Holders []holder `json:"holders"`
	Count   int64    `json:"count,omitempty"` // of a latch, or free permits
	// Of a semaphore whose permits expire: how many are held, and the first mostPermits of those.
	Acquired int64    `json:"acquired,omitempty"`
	Permits  []permit `json:"permits,omitempty"`
	TTL      int64    `json:"ttl_ms"` // -1: no expiry
	Token    int64    `json:"token,omitempty"`

	key string
}

// holder is an owner of a lock.
type holder struct {
	Owner string `json:"owner"`
	Depth int    `json:"depth"`
	Write bool   `json:"write,omitempty"`
	Kept  bool   `json:"kept,omitempty"`       // unlocked, and kept by WithMinHold
	Idle  bool   `json:"maybe_idle,omitempty"` // taken with WithLinger: held, or kept when nobody is inside, which its process alone knows
	// Exported says that it was left to a ticket, and is not adopted yet.
	Exported bool   `json:"exported,omitempty"`
	Host     string `json:"host,omitempty"`
	Label    string `json:"label,omitempty"` // Options.Label of its Client

	note string // why it has none
}

var errNoLock = errors.New("the key holds something else than a lock")

// ownerForm is how all of Redisson's locks, and ours, write their owners.
var ownerForm = regexp.MustCompile(`^([0-9a-fA-F-]{36}):(-?[0-9]+)(:write)?$`)

const isWrite = 3

// read looks at keys and returns the locks that are held, in the order of the keys; failed are those keys that hold something else, or could
// not be read. It costs two round trips, and little time on the server whatever the keys hold.
func (v *viewer) read(ctx context.Context, keys []string) (locks []state, failed map[string]error) {
	b := v.rdb.B()
	looks := make(rueidis.Commands, len(keys))
	for i, key := range keys {
		looks[i] = b.Hrandfield().Key(key).Count(2).Build()
	}
	failed = make(map[string]error)
	fail := func(key string, err error) {
		if isWrongType(err) {
			err = errNoLock
		}
		failed[key] = err
	}
	var likely, strange []string
	for i, reply := range v.rdb.DoMulti(ctx, looks...) {
		fields, err := reply.AsStrSlice()
		switch {
		case isWrongType(err):
			strange = append(strange, keys[i])
		case err != nil && !rueidis.IsRedisNil(err):
			fail(keys[i], err)
		case slices.ContainsFunc(fields, func(f string) bool { return f != "mode" && !ownerForm.MatchString(f) }):
			fail(keys[i], errNoLock)
		case len(fields) > 0:
			likely = append(likely, keys[i])
		}
	}
	var reads rueidis.Commands
	for _, key := range likely {
		reads = append(reads, b.Hgetall().Key(key).Build(), b.Pttl().Key(key).Build(),
			b.Get().Key(tokenKey(key)).Build())
	}
	reads = append(reads, v.readCounters(strange)...)
	replies := v.rdb.DoMulti(ctx, reads...)
	for i, key := range likely {
		fields, err1 := replies[3*i].AsStrMap()
		ttl, err2 := replies[3*i+1].AsInt64()
		token, _ := replies[3*i+2].AsInt64() // there may be none, or something else
		s := v.named(key)
		s.TTL, s.Token = ttl, token
		switch err := cmp.Or(err1, err2); {
		case err != nil:
			fail(key, err)
		case len(fields) == 0 || ttl == -2: // it has gone meanwhile
		case !s.fill(fields):
			fail(key, errNoLock)
		default:
			locks = append(locks, s)
		}
	}
	for i, key := range strange {
		switch s, err := v.counter(key, replies[3*len(likely)+counterReads*i:]); {
		case err != nil:
			fail(key, err)
		case s.Count > 0 || s.isSemaphore() || s.Kind == counterKind && s.TTL != -2:
			locks = append(locks, s)
		}
	}
	return locks, failed
}

func isWrongType(err error) bool {
	redisErr, said := rueidis.IsRedisErr(err)
	return said && strings.HasPrefix(redisErr.Error(), "WRONGTYPE")
}

// named is what is known of a lock before it is read.
func (v *viewer) named(key string) state {
	s := state{Name: strings.TrimPrefix(key, v.prefix), key: key}
	if !utf8.ValidString(s.Name) {
		s.Bytes = []byte(s.Name)
	}
	return s
}

// isForbidden reports whether Redis has refused a command because of the user's rights.
func isForbidden(err error) bool { return err != nil && strings.Contains(err.Error(), "NOPERM") }

// fill takes the fields of a hash. It reports false if that is no lock.
func (s *state) fill(fields map[string]string) bool {
	s.Kind = "mutex"
	if mode, ok := fields["mode"]; ok {
		if s.Kind = mode; mode != "read" && mode != "write" {
			return false
		}
		delete(fields, "mode")
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		owner := ownerForm.FindStringSubmatch(field)
		depth, err := strconv.Atoi(fields[field])
		if owner == nil || err != nil {
			return false
		}
		tag := owner[2]
		kept, exported := tag == "00", strings.HasPrefix(tag, "000") // for nobody, see docs/protocol.md
		if len(tag) > 1 && tag[0] == '0' && !kept && !exported {
			s.Kind = "fair"
		}
		mark, _, _ := kinds.MarkOf(field)
		s.Holders = append(s.Holders, holder{
			Owner: field, Depth: depth, Write: owner[isWrite] != "", Kept: kept, Idle: mark.Wants(kinds.Lingers), Exported: exported,
		})
	}
	switch {
	case s.Kind == "fair":
		s.Token = 0 // of a former life of the name
	case s.Kind == "mutex" && s.Token != 0:
		s.Kind = "fenced"
	}
	return len(s.Holders) > 0
}

// tokenOf is the fencing token of a holder; 0 if it has none, as readers.
func (s *state) tokenOf(h holder) int64 {
	if h.Write || s.Kind == "fenced" {
		return s.Token
	}
	return 0
}

// prefixed makes a name the way Redisson does: with the key as the hash tag, unless it brings its own.
func prefixed(prefix, key string) string { return prefix + ":" + hashTag(key) }

// hashTag is a key as the names of the keys beside it have it.
func hashTag(key string) string {
	if strings.Contains(key, "{") {
		return key
	}
	return "{" + key + "}"
}

// together reports whether one script can have two keys.
func (v *viewer) together(a, b string) bool {
	if v.rdb.Mode() != rueidis.ClientModeCluster {
		return true
	}
	slot := func(key string) uint16 {
		cmd := v.rdb.B().Exists().Key(key).Build()
		return cmd.Slot()
	}
	return slot(a) == slot(b)
}

// clientID is the part of an owner that names its Client.
func clientID(owner string) string {
	id, _, _ := strings.Cut(owner, ":")
	return id
}

// text is what fits in a cell of a table.
func (h holder) text() string {
	var notes []string
	if h.Label != "" {
		notes = append(notes, h.Owner)
	}
	if h.Kept {
		notes = append(notes, "unlocked, kept by its WithMinHold")
	}
	if h.Idle {
		notes = append(notes, "held or idle")
	}
	if h.Exported {
		notes = append(notes, "exported, not adopted yet")
	}
	if h.Host != "" {
		notes = append(notes, h.Host)
	}
	if h.note != "" {
		notes = append(notes, h.note)
	}
	who := h.Owner
	if h.Label != "" {
		who = strconv.Quote(h.Label)
	}
	if len(notes) == 0 {
		return who
	}
	return who + " (" + strings.Join(notes, ", ") + ")"
}

// depth is that of the deepest hold.
func (s *state) depth() (deepest int) {
	for _, h := range s.Holders {
		deepest = max(deepest, h.Depth)
	}
	return deepest
}

// ttl is the time left, for people.
func (s *state) ttl() string {
	if s.TTL == -1 {
		return "none"
	}
	return short(time.Duration(s.TTL) * time.Millisecond)
}

// short is a duration to a tenth of a second.
func short(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// hosts finds the address of each Client that has a connection named after it. On a server that does not tell there are none.
func hosts(ctx context.Context, rdb rueidis.Client) map[string]string {
	found := make(map[string]string)
	for _, n := range nodes(rdb) {
		list, err := n.Do(ctx, n.B().ClientList().Build()).ToString()
		if err != nil {
			continue
		}
		for line := range strings.Lines(list) {
			var addr, id string
			for word := range strings.FieldsSeq(line) {
				if text, ok := strings.CutPrefix(word, "addr="); ok {
					addr = text
				} else if text, ok := strings.CutPrefix(word, "name=rlock:"); ok {
					id = text
				}
			}
			if id != "" {
				found[id] = addr
			}
		}
	}
	return found
}

// view is all that can be found out of one lock.
type view struct {
	state
	Held bool `json:"held"`
	// Processes is how many listen for the unlock, Redisson's included; -1 if the server does not tell.
	Processes int       `json:"waiting_processes"`
	Queue     []string  `json:"queue,omitempty"`      // what each process is to become that waits for a plain or fenced lock; of a semaphore their Clients
	Wants     [][]int64 `json:"wants,omitempty"`      // of a semaphore, for each of these: how many permits each of its waiters wants
	FairQueue []string  `json:"fair_queue,omitempty"` // those who wait for a fair lock
	Writers   []string  `json:"writers,omitempty"`    // those who wait for a read/write lock
	// Labels are those of the Clients that wait, or hold permits, by their ids.
	Labels map[string]string `json:"labels,omitempty"`
}

// viewer is what commands that look at locks have.
type viewer struct {
	target
	rdb   rueidis.Client
	locks *rlock.Client
	known map[string]string // labels by the ids of their Clients
}

// open connects a viewer. It reports false, with the exit code, if there is no connection.
func (p *program) open(ctx context.Context, t target) (v *viewer, code int, ok bool) {
	rdb, code, ok := p.connect(ctx, &t)
	if !ok {
		return nil, code, false
	}
	locks, err := rlock.New(rdb, rlock.Options{Prefix: t.prefix})
	if err != nil {
		rdb.Close()
		return nil, p.fail(exitInternal, err), false
	}
	return &viewer{t, rdb, locks, make(map[string]string)}, 0, true
}

// closeTime bounds how long a Redis that does not answer keeps us from the end.
const closeTime = time.Second

func (v *viewer) close() { closeSoon(v.locks.Close, v.rdb.Close) }

// closeSoon closes all there is, and leaves that alone when it takes too long.
func closeSoon(closers ...func()) {
	closed := make(chan struct{})
	go func() { // ends when all is closed, or with the process
		defer close(closed)
		for _, c := range closers {
			c()
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeTime):
	}
}

// see connects a viewer and looks at one lock. It reports false, with the exit code, if that failed.
func (p *program) see(ctx context.Context, t target, name string) (v *viewer, seen *view, code int, ok bool) {
	if v, code, ok = p.open(ctx, t); !ok {
		return nil, nil, code, false
	}
	seen, err := v.inspect(ctx, name)
	if err != nil {
		v.close()
		return nil, nil, p.failed(ctx, v.at(err)), false
	}
	return v, seen, 0, true
}

// inspect looks at one lock, whatever kind it is of.
func (v *viewer) inspect(ctx context.Context, name string) (*view, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	key := v.prefix + name
	held, failed := v.read(ctx, []string{key})
	if err := failed[key]; err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	seen := &view{state: v.named(key), Held: len(held) > 0}
	seen.Holders = []holder{}
	if seen.Held {
		seen.state = held[0]
	}
	if err := v.seeWaiters(ctx, seen); err != nil {
		return nil, err
	}
	if seen.isSemaphore() {
		if err := v.seeLine(ctx, seen); err != nil {
			return nil, err
		}
	}
	// The queues of all kinds: a lock that is free does not tell its own.
	for _, kind := range []struct {
		lock   *rlock.Mutex
		beside string // a key that such a lock has besides
		queue  *[]string
	}{
		{v.locks.Mutex(name), key, &seen.Queue},
		{v.locks.FairMutex(name), prefixed("redisson_lock_timeout", key), &seen.FairQueue},
		{v.locks.RWMutex(name).Write(), hashTag(key) + ":", &seen.Writers},
	} {
		if seen.isCounter() { // it has neither
			break
		}
		if !v.together(key, kind.beside) { // a lock that this cluster cannot have
			continue
		}
		info, err := kind.lock.Info(ctx)
		switch {
		case isForbidden(err): // whoever may not see the queues still sees the holder
			info.Listening = -1
		case err != nil:
			return nil, err
		}
		*kind.queue = info.Queue
		switch {
		case info.Listening < 0 || seen.Processes < 0:
			seen.Processes = -1
		case kind.queue != &seen.FairQueue: // which has the channel of the plain lock
			seen.Processes += info.Listening
		}
	}
	// Redisson's waiters for a fair lock have channels of their own alone. Tags of ours begin with 0 in that queue.
	java := make(map[string]bool)
	for _, owner := range seen.FairQueue {
		if id, tag, _ := strings.Cut(owner, ":"); seen.Processes >= 0 && !strings.HasPrefix(tag, "0") && !java[id] {
			java[id] = true
			seen.Processes++
		}
	}
	if !seen.isCounter() && !v.together(key, prefixed(lockChannel, key)) { // nor can one see who listens
		seen.Processes = -1
	}
	if seen.Kind == "mutex" && len(seen.FairQueue) > 0 {
		seen.Kind = "fair"
	}
	if !seen.Held && !seen.isCounter() {
		seen.Token, _ = v.token(ctx, key) // there may be none, or something else
	}
	v.addLabels(ctx, &seen.state)
	return seen, nil
}

// addHosts says from where the holders have come, as far as that is known.
func (v *viewer) addHosts(ctx context.Context, s *state) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	known := hosts(ctx, v.rdb)
	for i := range s.Holders {
		s.Holders[i].Host = known[clientID(s.Holders[i].Owner)]
	}
	for i := range s.Permits {
		s.Permits[i].addHost(known)
	}
}
