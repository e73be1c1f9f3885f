// Package older tests this version of the library together with older ones, as in a rolling upgrade: processes
// of both use the same locks.
package older

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// version is an older version: a commit of this repository and its properties.
type version struct {
	name   string
	commit string
	tags   string // for building the peer
	oldest bool   // only plain and fenced locks, and no queue in Redis
	trusts bool   // this version and it accept each other's grants
}

var versions = []version{
	// The last version whose holders could not receive messages.
	beforeTheEar,
	// The last version before an unlock passed a lock on in memory, and before readers shared a tenure.
	{name: "before passing on", commit: "15260fca62b9cfb625d001da5207d9eda83e3213", trusts: true},
	// The last version whose grants carried the number of grants in a row, in the field that now has the version.
	{name: "grants that count", commit: "99622b20cb87f656a0ece82b481376e567706f02"},
	// The last version without a queue in Redis.
	{name: "without a queue", commit: "1fbfa0c323afaac6fbee28cc421d2c2562fe5d1b", tags: "oldest", oldest: true},
}

var beforeTheEar = version{name: "before the ear", commit: "0444da80c1a9ae31464d765f15059071ec1a845a", trusts: true}

// upgrade is a service in the middle of a rolling upgrade.
type upgrade struct {
	version
	rdb       rueidis.Client
	addrs     []string
	program   string // of this version
	older     string
	olds, now []*peer
}

// G1, G4: processes of an older version and of this one exclude and wake each other. They hand the lock over in
// queue order, and skip dead processes of either version.
func TestOlderVersions(t *testing.T) {
	t.Parallel()
	now := build(t)
	addrs := []string{redistest.Shared(t), redistest.Start(t).Addr(), redistest.Start(t).Addr()}
	for _, v := range versions {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			f := &upgrade{version: v, rdb: redistest.Dial(t, addrs[0]), addrs: addrs, program: now, older: buildOlder(t, v)}
			for i := range 2 {
				f.olds = append(f.olds, start(t, f.older, fmt.Sprintf("old %d", i), addrs))
				f.now = append(f.now, start(t, f.program, fmt.Sprintf("new %d", i), addrs))
			}
			run := func(name string, test func(t *testing.T, f *upgrade)) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, f)
				})
			}
			run("exclusion", exclusion)
			run("hand-off", handOff)
			run("the dead", theDead)
			run("herd", herd)
			run("spoken to", spokenTo)
			if !v.oldest {
				run("readers", readers)
			}
		})
	}
}

// knows reports whether the older version has these kinds of locks.
func (f *upgrade) knows(kinds ...string) bool {
	return !f.oldest || !slices.ContainsFunc(kinds, func(kind string) bool { return kind != "plain" && kind != "fenced" })
}

func (f *upgrade) number(t *testing.T, command ...string) (n int64) {
	t.Helper()
	n, err := f.rdb.Do(t.Context(), f.rdb.B().Arbitrary(command...).Build()).AsInt64()
	if !rueidis.IsRedisNil(err) {
		require.NoError(t, err)
	}
	return n
}

// channel returns a waiter's channel.
func channel(holder, waiter, name string) string {
	switch waiter {
	case "upgradeable":
		if holder == waiter {
			return "redisson_lock__channel:rlock_upgrade:{" + name + "}"
		}
		fallthrough
	case "read", "write":
		return "redisson_rwlock:{" + name + "}"
	default:
		return "redisson_lock__channel:{" + name + "}"
	}
}

// awaitListener waits until a process has subscribed.
func (f *upgrade) awaitListener(t *testing.T, channel string) {
	t.Helper()
	redistest.Eventually(t, patience, func() bool {
		of, err := f.rdb.Do(t.Context(), f.rdb.B().PubsubNumsub().Channel(channel).Build()).ToArray()
		require.NoError(t, err)
		n, err := of[1].AsInt64()
		require.NoError(t, err)
		return n > 0
	}, "a process waits")
}

// awaitQueue waits until the queue has that many processes.
func (f *upgrade) awaitQueue(t *testing.T, kind, name string, want int) {
	t.Helper()
	count := []string{"ZCARD", "rlock_queue:{" + name + "}"}
	switch kind {
	case "fair":
		count = []string{"LLEN", "redisson_lock_queue:{" + name + "}"}
	case "write":
		count = []string{"ZCARD", "rlock_writers:{" + name + "}"}
	}
	redistest.Eventually(t, patience, func() bool { return f.number(t, count...) == int64(want) }, "the queue")
}

// wakeUp bounds the time from an unlock to the next Lock, in the best of several rounds. A busy machine slows
// down a single round, a missed wake-up every round. A grant that its process does not use costs two seconds.
const wakeUp = time.Second

// G1 and G4: one process holds, the other waits, and gets the lock long before the lease expires.
func exclusion(t *testing.T, f *upgrade) {
	for _, kinds := range [][2]string{
		{"plain", "plain"}, {"fenced", "fenced"}, {"plain", "fenced"}, {"fair", "fair"}, {"write", "write"}, {"write", "read"}, {"read", "write"},
		{"upgradeable", "write"}, {"write", "upgradeable"}, {"upgradeable", "upgradeable"}, {"all", "all"}, {"all", "plain"}, {"plain", "all"},
		{"quorum", "quorum"},
	} {
		if !f.knows(kinds[:]...) {
			continue
		}
		for name, pair := range map[string][2]*peer{"old then new": {f.olds[0], f.now[0]}, "new then old": {f.now[0], f.olds[0]}} {
			t.Run(kinds[0]+" "+kinds[1]+" "+name, func(t *testing.T) {
				t.Parallel()
				best := patience
				for range 3 {
					best = min(best, f.exclude(t, pair[0], pair[1], kinds))
				}
				require.Less(t, best, wakeUp)
			})
		}
	}
}

// exclude returns the duration of the wake-up.
func (f *upgrade) exclude(t *testing.T, one, other *peer, kinds [2]string) time.Duration {
	t.Helper()
	name := redistest.Name(t)
	holder := one.lock(t, kinds[0], name)
	first := holder.in(t)
	require.Equal(t, "taken", other.ask(t, "try", kinds[1], name))
	waiter := other.lock(t, kinds[1], name)
	f.awaitListener(t, channel(kinds[0], kinds[1], name))
	waiter.requireOut(t)
	began := time.Now()
	holder.unlock(t)
	second := waiter.in(t)
	took := time.Since(began)
	if kinds == [2]string{"fenced", "fenced"} {
		require.Greater(t, second, first, "tokens rise")
	}
	require.Equal(t, "taken", one.ask(t, "try", kinds[0], name))
	waiter.unlock(t)
	return took
}

// G1 and G4: processes of both versions queue up, and each unlock hands the lock to the next in the queue.
func handOff(t *testing.T, f *upgrade) {
	for _, kind := range []string{"plain", "fenced", "fair"} {
		if !f.knows(kind) {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var all []*peer
			for i := range 2 {
				all = append(all, start(t, f.older, fmt.Sprintf("old %d", i), f.addrs), start(t, f.program, fmt.Sprintf("new %d", i), f.addrs))
			}
			const rounds = 4
			best := make(map[string]time.Duration) // by hand-over, from peer to peer
			for i := range rounds {
				turns := append(slices.Clone(all[i:]), all[:i]...) // each peer is first once
				f.line(t, kind, turns, best)
			}
			for way, took := range best {
				require.Less(t, took, wakeUp, way)
			}
			if f.trusts || kind == "fair" {
				for _, p := range all {
					require.GreaterOrEqual(t, p.grants(t), rounds/2, "of %s, which was given the lock by others, and need not have asked", p.name)
				}
			}
		})
	}
}

// line makes the peers lock one after the other, and unlock in turn. It records the best time of each hand-over.
func (f *upgrade) line(t *testing.T, kind string, peers []*peer, best map[string]time.Duration) {
	t.Helper()
	name := redistest.Name(t)
	current := peers[0].lock(t, kind, name)
	last := current.in(t)
	var waiting []section
	for i, p := range peers[1:] {
		waiting = append(waiting, p.lock(t, kind, name))
		if f.oldest {
			f.awaitListener(t, channel(kind, kind, name))
		} else {
			f.awaitQueue(t, kind, name, i+1)
		}
	}
	for len(waiting) > 0 {
		for _, s := range waiting {
			s.requireOut(t)
		}
		began := time.Now()
		current.unlock(t)
		next, token := first(t, waiting)
		way := current.name + " to " + next.name
		best[way] = min(time.Since(began), cmp.Or(best[way], patience))
		if f.trusts || kind == "fair" {
			require.Equal(t, waiting[0].name, next.name, "the order of the queue")
		}
		if kind == "fenced" {
			require.Greater(t, token, last)
		}
		waiting = slices.DeleteFunc(waiting, func(s section) bool { return s == next })
		current, last = next, token
	}
	current.unlock(t)
}

// first returns the first of these sections to begin.
func first(t *testing.T, all []section) (began section, token int64) {
	t.Helper()
	var answers []reflect.SelectCase
	for _, s := range all {
		answers = append(answers, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(s.answer(s.id))})
	}
	late := reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(time.After(patience))}
	i, text, _ := reflect.Select(append(answers, late))
	require.Less(t, i, len(all), "no section has begun")
	_, err := fmt.Sscanf(text.String(), "locked %d", &token)
	require.NoError(t, err, "%s: %s", all[i].name, text)
	return all[i], token
}

// G4: a dead process of the other version in the queue is skipped.
func theDead(t *testing.T, f *upgrade) {
	for _, kind := range []string{"plain", "fair", "write"} {
		if !f.knows(kind) {
			continue
		}
		for name, row := range map[string]struct {
			holder, waiter *peer
			dead           string
		}{
			"old among new": {f.now[0], f.now[1], f.older}, "new among old": {f.olds[0], f.olds[1], f.program},
			"old before old": {f.now[0], f.olds[0], f.older}, "new before new": {f.olds[0], f.now[0], f.program},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				name := redistest.Name(t)
				holder := row.holder.lock(t, kind, name)
				holder.in(t)
				dead := start(t, row.dead, "dead", f.addrs)
				dead.lock(t, kind, name)
				if f.oldest {
					f.awaitListener(t, channel(kind, kind, name))
				} else {
					f.awaitQueue(t, kind, name, 1)
				}
				waiter := row.waiter.lock(t, kind, name)
				if !f.oldest {
					f.awaitQueue(t, kind, name, 2)
				}
				require.NoError(t, dead.Process.Kill())
				dead.gone(t)
				holder.unlock(t)
				waiter.in(t)
				waiter.unlock(t)
			})
		}
	}
}

// G1 and G4: readers of both versions share the lock. A writer of either version waits for all of them, and
// later readers wait for the writer.
func readers(t *testing.T, f *upgrade) {
	for name, row := range map[string]struct{ writer, later *peer }{
		"old writer, new reader": {f.olds[1], f.now[1]}, "new writer, old reader": {f.now[1], f.olds[1]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			var inside []section
			for _, p := range []*peer{f.now[0], f.olds[0], f.now[0], f.now[0], f.olds[0]} { // readers of a process may share its hold in Redis
				s := p.lock(t, "read", name)
				s.in(t)
				inside = append(inside, s)
			}
			writer := row.writer.lock(t, "write", name)
			f.awaitQueue(t, "write", name, 1)
			later := row.later.lock(t, "read", name)
			f.awaitListener(t, channel("write", "read", name))
			for _, s := range inside {
				writer.requireOut(t)
				later.requireOut(t)
				require.Equal(t, "taken", f.now[0].ask(t, "try", "write", name))
				s.unlock(t)
			}
			writer.in(t)
			later.requireOut(t)
			writer.unlock(t)
			later.in(t)
			later.unlock(t)
		})
	}
}

// G1 and G4: goroutines of two processes of each version compete for a lock. No update is lost, tokens rise,
// each Lock returns, and with a queue no process starves.
func herd(t *testing.T, f *upgrade) {
	for _, kind := range []string{"plain", "fenced", "fair", "readwrite", "quorum"} {
		if !f.knows(kind) {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			all := slices.Concat(f.olds, f.now)
			ids := make([]string, len(all))
			for i, p := range all {
				ids[i] = p.tell(t, "herd", kind, name, "3", "1s")
			}
			sections, sum := make([]int, len(all)), 0
			for i, p := range all {
				text := p.await(t, p.answer(ids[i]))
				var writes int
				_, err := fmt.Sscanf(text, "done %d %d", &sections[i], &writes)
				require.NoError(t, err, "%s: %s", p.name, text)
				sum += writes
			}
			t.Logf("%s: sections of two older processes and of two of this version: %v", kind, sections)
			require.EqualValues(t, sum, f.number(t, "GET", name+":count"), "an update was lost")
			if !f.oldest && kind != "quorum" { // without a queue, the first to ask gets the lock
				require.Greater(t, 40*slices.Min(sections), slices.Max(sections), "a process starves: %v", sections)
			}
			require.Zero(t, f.number(t, "EXISTS", name))
		})
	}
}
