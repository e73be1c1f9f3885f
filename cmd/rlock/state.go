package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
)

// state is a lock as read from Redis. Its JSON is public: see docs/cli.md.
type state struct {
	Name    string   `json:"name"`                  // without the prefix
	Bytes   []byte   `json:"name_base64,omitempty"` // of a name that is not valid UTF-8, which JSON cannot hold
	Kind    string   `json:"kind"`                  // mutex, fenced, fair, read or write; latch, semaphore, permits or counter (a number of unknown use); "" if free
	Holders []holder `json:"holders"`
	Count   int64    `json:"count,omitempty"` // of a latch, or free permits
	// Expiring permits: the number held, and the first mostPermits of them.
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
	Idle  bool   `json:"maybe_idle,omitempty"` // taken with WithLinger: only its process knows whether anybody is inside
	// Exported: left to a ticket, not adopted yet.
	Exported bool   `json:"exported,omitempty"`
	Host     string `json:"host,omitempty"`
	Label    string `json:"label,omitempty"` // Options.Label of its Client

	note string // why it has no label
}

var errNoLock = errors.New("the key does not hold a lock")

// ownerForm is the form of all owners, Redisson's and ours. Other libraries write others into Redisson's plain lock, see lua/owner_of.lua.
var ownerForm = regexp.MustCompile(`^([0-9a-fA-F-]{36}):(-?[0-9]+)(:write)?$`)

const isWrite = 3

// glance is a first look at a key, which may hold anything: up to two fields of a hash, and the time left.
type glance struct {
	fields []string
	ttl    int64
	err    error
}

// glances looks at keys in one round trip, of two commands per key, which cost little whatever the keys hold.
func (v *viewer) glances(ctx context.Context, keys []string) []glance {
	b := v.rdb.B()
	looks := make(rueidis.Commands, 0, 2*len(keys))
	for _, key := range keys {
		looks = append(looks, b.Hrandfield().Key(key).Count(2).Build(), b.Pttl().Key(key).Build())
	}
	seen := make([]glance, len(keys))
	found := v.rdb.DoMulti(ctx, looks...)
	for i := range keys {
		seen[i].fields, seen[i].err = found[2*i].AsStrSlice()
		seen[i].ttl, _ = found[2*i+1].AsInt64() // the same error, if any
	}
	return seen
}

// read returns the held locks among keys, in their order; failed has the keys that hold something else or could not be read. It costs two
// round trips, and little server time whatever the keys hold.
func (v *viewer) read(ctx context.Context, keys []string) (locks []state, failed map[string]error) {
	return v.readAfter(ctx, keys, v.glances(ctx, keys))
}

// readAfter is read after a glance at each of the keys.
func (v *viewer) readAfter(ctx context.Context, keys []string, seen []glance) (locks []state, failed map[string]error) {
	b := v.rdb.B()
	failed = make(map[string]error)
	fail := func(key string, err error) {
		if isWrongType(err) {
			err = errNoLock
		}
		failed[key] = err
	}
	var likely, strange []string
	for i := range keys {
		fields, ttl, err := seen[i].fields, seen[i].ttl, seen[i].err
		switch {
		case isWrongType(err):
			strange = append(strange, keys[i])
		case err != nil && !rueidis.IsRedisNil(err):
			fail(keys[i], err)
		case (len(fields) != 1 || ttl < 0) && slices.ContainsFunc(fields, func(f string) bool { return f != "mode" && !ownerForm.MatchString(f) }):
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
		token, _ := replies[3*i+2].AsInt64() // missing, or not a number
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

// named returns the state of a lock that has not been read yet.
func (v *viewer) named(key string) state {
	s := state{Name: strings.TrimPrefix(key, v.prefix), key: key}
	if !utf8.ValidString(s.Name) {
		s.Bytes = []byte(s.Name)
	}
	return s
}

// isForbidden reports whether Redis refused a command for lack of rights.
func isForbidden(err error) bool { return err != nil && strings.Contains(err.Error(), "NOPERM") }

// fill parses the fields of a hash. It reports false if the hash is no lock.
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
		if owner == nil && s.isAnothers(field, fields) {
			s.Holders = append(s.Holders, holder{Owner: field, Depth: depth, note: anotherLibrary})
			continue
		}
		if owner == nil || err != nil {
			return false
		}
		tag := owner[2]
		kept, exported := tag == "00", strings.HasPrefix(tag, "000") // placeholder owners, see docs/internals/protocol.md
		if len(tag) > 1 && tag[0] == '0' && !kept && !exported {
			s.Kind = "fair"
		}
		mark, _, _ := kinds.CapabilityOf(field)
		s.Holders = append(s.Holders, holder{
			Owner: field, Depth: depth, Write: owner[isWrite] != "", Kept: kept, Idle: mark.Wants(kinds.Lingers), Exported: exported,
		})
	}
	switch {
	case s.Kind == "fair":
		s.Token = 0 // left over from a fenced lock with this name
	case s.Kind == "mutex" && s.Token != 0:
		s.Kind = "fenced"
	}
	return len(s.Holders) > 0
}

// countForm is the form of a re-entry count of another library. A longer number is a time, or an id.
var countForm = regexp.MustCompile(`^[1-9][0-9]{0,8}$`)

// anotherLibrary is the note on its holders.
const anotherLibrary = "another library"

// isAnothers reports whether a field, which is no owner of Redisson's or of this library, is one of another library.
func (s *state) isAnothers(field string, fields map[string]string) bool {
	return s.Kind == "mutex" && field != "" && len(fields) == 1 && s.TTL >= 0 && countForm.MatchString(fields[field])
}

// tokenOf returns a holder's fencing token; 0 if it has none, like readers.
func (s *state) tokenOf(h holder) int64 {
	if h.Write || s.Kind == "fenced" {
		return s.Token
	}
	return 0
}

// prefixed builds a key as Redisson does: with the lock's key as the hash tag, unless it has its own.
func prefixed(prefix, key string) string { return prefix + ":" + hashTag(key) }

// hashTag returns a key with its hash tag, as the keys beside it contain it.
func hashTag(key string) string {
	if strings.Contains(key, "{") {
		return key
	}
	return "{" + key + "}"
}

// together reports whether both keys can be used in one script.
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

// clientID returns the Client's id in an owner.
func clientID(owner string) string {
	id, _, _ := strings.Cut(owner, ":")
	return id
}

// text describes a holder in a table cell.
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

// depth returns the depth of the deepest hold.
func (s *state) depth() (deepest int) {
	for _, h := range s.Holders {
		deepest = max(deepest, h.Depth)
	}
	return deepest
}

// ttl formats the time left.
func (s *state) ttl() string {
	if s.TTL == -1 {
		return "none"
	}
	return short(millis(s.TTL))
}

// longExpiry is more than a renewed hold has, and than most fixed leases: such a lock is likely to stay when its holder is gone.
const longExpiry = 24 * time.Hour

// outlives reports whether the expiry of a held lock is of little use.
func (s *state) outlives() bool {
	return !s.isCounter() && len(s.Holders) > 0 && (s.TTL == -1 || millis(s.TTL) > longExpiry)
}

// days returns the whole days until it expires; 0 also if it never does.
func (s *state) days() int64 { return max(s.TTL, 0) / longExpiry.Milliseconds() }

// millis converts milliseconds, 292 years at most.
func millis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// short formats a duration to a tenth of a second.
func short(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// hosts returns the addresses of Clients with a connection named after them; none if the server refuses to list connections.
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
