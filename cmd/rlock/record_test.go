package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// sawEvent waits for an event of a lock in the output of "rlock record".
func sawEvent(r *running, what, name, owner string) event {
	r.t.Helper()
	for {
		line := r.saw(`"event":"` + what + `"`)
		var e event
		require.NoError(r.t, json.Unmarshal([]byte(line), &e), line)
		if e.lock() == name && (owner == "" || e.Owner == owner) {
			return e
		}
	}
}

// hears waits until a recorder hears messages of locks, and of forced unlocks.
func hears(t *testing.T, rdb rueidis.Client, patterns int64) {
	t.Helper()
	redistest.Eventually(t, patience, func() bool {
		n, err := rdb.Do(t.Context(), rdb.B().PubsubNumpat().Build()).AsInt64()
		return err == nil && n == patterns
	}, "it listens")
}

func TestRecord(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c, other := newLabelled(t, rdb, rlock.Options{Label: "web-1"}), newLocks(t, s.Client(t))
	before, unlockBefore := lock(t.Context(), t, c.Mutex("before"))
	r := start(t, nil, "record", "-redis", s.Addr(), "-every", "100ms")
	r.saw(`{"rlock_recording":1,`)
	require.Equal(t, "web-1", sawEvent(r, "held", "before", rlock.Owner(before)).Label)
	hears(t, rdb, 3)

	_, once := lock(t.Context(), t, c.FencedMutex("job"))
	require.NoError(t, once())
	for strings.Contains(r.saw(`"name":"job"`), `"event":"held"`) { // then released; otherwise passed: it knows the lock, and that it is free
	}
	ctx, unlock := lock(t.Context(), t, c.FencedMutex("job"))
	e := sawEvent(r, "acquired", "job", rlock.Owner(ctx))
	require.EqualValues(t, 2, e.Token)
	require.Equal(t, "fenced", e.Kind)
	require.Equal(t, "web-1", e.Label)
	require.Positive(t, e.Within)

	// Who waits, and the hand-over.
	got := waitFor(t, other, other.FencedMutex("job"))
	waits := sawEvent(r, "waits", "job", "")
	require.Equal(t, other.ID(), clientID(waits.Owner))
	require.NoError(t, unlock())
	sawEvent(r, "released", "job", rlock.Owner(ctx))
	ctx = <-got
	require.Equal(t, waits.Owner, rlock.Owner(ctx))
	sawEvent(r, "acquired", "job", rlock.Owner(ctx))
	sawEvent(r, "left", "job", rlock.Owner(ctx))

	// Losses. The lock is a new one: the lease of one that was granted may end before the recorder looks.
	ctx, _ = lock(t.Context(), t, c.FencedMutex("lost"))
	sawEvent(r, "held", "lost", rlock.Owner(ctx))
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key("lost").Build()).Error())
	sawEvent(r, "gone", "lost", rlock.Owner(ctx))
	const java = "285475da-9152-4c83-822a-67ee2f116a79:54"
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Eval().Script(
		`redis.call('hset', KEYS[1], ARGV[1], 1) return redis.call('pexpire', KEYS[1], 10000)`).Numkeys(1).Key("lost").Arg(java).Build()).Error())
	sawEvent(r, "acquired", "lost", java)
	sawEvent(r, "expired", "lost", java)
	require.Zero(t, call(t, s.Addr(), "unlock", "-force", "-yes", "before").code)
	sawEvent(r, "forced", "before", rlock.Owner(before))
	require.ErrorIs(t, unlockBefore(), rlock.ErrLost)

	r.signal(syscall.SIGTERM)
	end := r.rest()
	require.Zero(t, end.code)
	require.Contains(t, end.out, `"event":"end"`)
	require.Empty(t, end.err)
}

// A message leads to a lock that no look has found.
func TestRecordHearsOfALock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := newLocks(t, rdb)
	r := start(t, nil, "record", "-redis", s.Addr(), "-every", "1h")
	r.saw(`{"rlock_recording":1,`)
	hears(t, rdb, 3)
	_, unlock := lock(t.Context(), t, c.FencedMutex("job"))
	require.NoError(t, unlock())
	require.Equal(t, 1, sawEvent(r, "passed", "job", "").Unlocks)
	r.signal(syscall.SIGTERM)
	require.Zero(t, r.rest().code)
}

// Readers, and waiters of Redisson, stand in no line: they are seen by their subscriptions, twice in a row.
func TestRecordOfWaitersInNoLine(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, other := newLocks(t, s.Client(t)), newLocks(t, s.Client(t))
	ctx, unlock := lock(t.Context(), t, c.RWMutex("rw").Write())
	lock(t.Context(), t, c.Mutex("job"))
	r := start(t, nil, "record", "-redis", s.Addr(), "-every", "100ms")
	sawEvent(r, "held", "rw", rlock.Owner(ctx))
	got := waitFor(t, other, other.RWMutex("rw").Read())
	sawEvent(r, "waits", "rw", other.ID())
	require.NoError(t, unlock())
	ctx = <-got
	sawEvent(r, "acquired", "rw", rlock.Owner(ctx))
	sawEvent(r, "left", "rw", other.ID())

	subscribe(t, s, "redisson_lock__channel:{job}") // as Redisson
	require.EqualValues(t, 1, *sawEvent(r, "others", "job", "").Count)
	r.signal(syscall.SIGINT)
	require.Zero(t, r.rest().code)
}

// Redis may fail, and start again without its data: whether a look meets the outage, or not.
func TestRecordOutlivesARestart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ctx, _ := lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
	r := start(t, nil, "record", "-redis", s.Addr(), "-every", "50ms")
	sawEvent(r, "held", "job", rlock.Owner(ctx))
	owner := rlock.Owner(ctx)
	s.Stop()
	require.Contains(t, r.saw(`"event":"down"`), s.Addr())
	s.Restart()
	r.saw(`"event":"restart"`)
	r.saw(`"event":"up"`)
	sawEvent(r, "vanished", "job", owner)
	ctx, _ = lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
	sawEvent(r, "acquired", "job", rlock.Owner(ctx))
	r.signal(syscall.SIGINT)
	require.Zero(t, r.rest().code)

	r = start(t, nil, "record", "-redis", s.Addr(), "-every", "4s")
	sawEvent(r, "held", "job", rlock.Owner(ctx))
	owner = rlock.Owner(ctx)
	hears(t, s.Client(t), 3)
	s.Stop()
	s.Restart()
	r.saw(`"event":"restart"`)
	sawEvent(r, "vanished", "job", owner)
	r.signal(syscall.SIGINT)
	require.Zero(t, r.rest().code)
}

// A lock that WithMinHold keeps after its unlock is not lost when that time is over.
func TestRecordOfAKeptLock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := newLocks(t, s.Client(t))
	r := start(t, nil, "record", "-redis", s.Addr(), "-every", "50ms")
	hears(t, s.Client(t), 3)
	ctx, unlock := lock(t.Context(), t, c.Mutex("job", rlock.WithMinHold(3*time.Second)))
	owner := rlock.Owner(ctx)
	sawEvent(r, "held", "job", owner)
	require.NoError(t, unlock())
	sawEvent(r, "released", "job", owner)
	sawEvent(r, "acquired", "job", c.ID()+":00")
	sawEvent(r, "released", "job", c.ID()+":00")
	r.signal(syscall.SIGINT)
	require.Zero(t, r.rest().code)
}

// A file may have several recordings, and a last line that was cut. Other files are left alone.
func TestRecordAppends(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		dir := t.TempDir()
		file := filepath.Join(dir, "night.jsonl")
		record := func(name string) result {
			return call(t, s.Addr(), "record", "-for", "10ms", "-o", name, "jo*")
		}
		require.Equal(t, result{}, record(file))
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, 2, strings.Count(string(text), "\n"), string(text))
		require.NoError(t, os.WriteFile(file, append(text, `{"time":"2026-11-2`...), 0o600))
		require.Equal(t, result{}, record(file))
		text, err = os.ReadFile(file)
		require.NoError(t, err)
		var headings []heading
		var events []string
		d, err := readRecording(strings.NewReader(string(text)), func(h heading) { headings = append(headings, h) }, func(e event) { events = append(events, e.Event) })
		require.NoError(t, err)
		require.Equal(t, damage{lines: 1}, d)
		require.Equal(t, []string{"end", "end"}, events)
		require.Len(t, headings, 2)
		require.Equal(t, heading{Version: 1, Time: headings[0].Time, Redis: []string{s.Addr()}, Pattern: "jo*", Every: 1000, Rate: 1000}, headings[0])

		foreign := filepath.Join(dir, "letter")
		for _, text := range []string{"Dear Sir\n", "x", `{"rlock_recording":2}` + "\n"} {
			require.NoError(t, os.WriteFile(foreign, []byte(text), 0o600))
			r := record(foreign)
			require.Equal(t, exitInternal, r.code)
			require.Contains(t, r.err, "is no recording that this version can append to")
			left, err := os.ReadFile(foreign)
			require.NoError(t, err)
			require.Equal(t, text, string(left))
		}
	})
}

// All looks together send no more commands than -rate, and a burst of a second, however many locks there are.
func TestRecordIsBounded(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	const names, rate = 500, 300
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Eval().Script(fmt.Sprintf(`for i = 1, %d do
		redis.call('hset', 'job:' .. i, '285475da-9152-4c83-822a-67ee2f116a79:' .. i, 1) redis.call('pexpire', 'job:' .. i, 300000) end return 1`, names)).Numkeys(0).Build()).Error())
	sent := func() int64 {
		var n int64
		for _, calls := range redistest.Commands(t, rdb) {
			n += calls
		}
		return n
	}
	before, began := sent(), time.Now()
	r := start(t, nil, "record", "-redis", s.Addr(), "-rate", fmt.Sprint(rate))
	for range names {
		r.saw(`"event":"held"`)
	}
	r.saw(`"event":"alive"`)
	r.signal(syscall.SIGINT)
	require.Zero(t, r.rest().code)
	took := time.Since(began).Seconds()
	t.Logf("%d commands in %.1f s", sent()-before, took)
	const connecting = 200 // connections, and this test's own
	require.LessOrEqual(t, float64(sent()-before), rate*(took+1)+connecting)
	require.GreaterOrEqual(t, float64(sent()-before), rate*took*0.5, "it uses what it may")
}

// A recorder says what its user may not see, and records the rest.
func TestRecordWithFewRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("ACL", "SETUSER", "few", "on", ">pw", "~shop:job", "&*", "+hrandfield", "+hgetall", "+pttl", "+psubscribe").Build()).Error())
	locks := newLocks(t, c, rlock.Options{Prefix: "shop:"})
	r := start(t, nil, "record", "-redis", "redis://few:pw@"+s.Addr(), "-every", "50ms", "-prefix", "shop:")
	hears(t, c, 7) // three forms of two channels, for the prefix
	for _, name := range []string{"secret", "job"} {
		_, unlock := lock(t.Context(), t, locks.Mutex(name))
		require.NoError(t, unlock())
	}
	sawEvent(r, "passed", "job", "")
	ctx, _ := lock(t.Context(), t, locks.Mutex("job"))
	sawEvent(r, "acquired", "job", rlock.Owner(ctx))
	r.signal(syscall.SIGINT)
	end := r.rest()
	require.Zero(t, end.code)
	require.NotContains(t, end.out, `"down"`)
	require.Regexp(t, `^rlock: locks that nobody waits for are found by their messages only: .*NOPERM.*\nrlock: waiters are seen only where they stand in line: .*NOPERM.*\n$`, end.err)
}

// On a cluster it looks at all nodes, and cannot hear unlocks, but it hears of forced ones.
func TestRecordOnCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	addr := cluster.Addrs()[1]
	holds, waits := newLocks(t, cluster.Client(t)), newLocks(t, cluster.Client(t))
	r := start(t, nil, "record", "-redis", addr, "-every", "50ms")
	owners, unlocks := make(map[string]string), make(map[string]rlock.UnlockFunc)
	for _, name := range []string{"a", "b", "c", "{d}"} {
		ctx, unlock := lock(t.Context(), t, holds.Mutex(name))
		owners[name], unlocks[name] = rlock.Owner(ctx), unlock
		sawEvent(r, "held", name, rlock.Owner(ctx))
	}
	got := waitFor(t, waits, waits.Mutex("b"))
	require.Equal(t, waits.ID(), clientID(sawEvent(r, "waits", "b", "").Owner))
	require.NoError(t, unlocks["b"]())
	sawEvent(r, "acquired", "b", rlock.Owner(<-got))
	require.NoError(t, unlocks["a"]())
	sawEvent(r, "released", "a", owners["a"])
	require.Zero(t, call(t, addr, "unlock", "-force", "-yes", "{d}").code)
	sawEvent(r, "forced", "{d}", owners["{d}"])
	r.signal(syscall.SIGINT)
	require.Zero(t, r.rest().code)
}

// With more locks than -limit, it says how many it leaves out.
func TestRecordLimit(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := newLocks(t, s.Client(t))
	for i := range 5 {
		lock(t.Context(), t, c.Mutex(fmt.Sprint("job:", i)))
	}
	r := start(t, nil, "record", "-redis", s.Addr(), "-limit", "3")
	var e event
	require.NoError(t, json.Unmarshal([]byte(r.saw(`"event":"more"`)), &e))
	require.EqualValues(t, 2, *e.Count)
	require.Contains(t, r.saw(`"event":"alive"`), `"names":3`)
	r.signal(syscall.SIGINT)
	require.Zero(t, r.rest().code)
}

// With too many messages it stops to listen for a while, and says so.
func TestRecordHearsNoMoreThanItCan(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	r := start(t, nil, "record", "-redis", s.Addr())
	hears(t, rdb, 3)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Eval().Script(fmt.Sprintf(
		`for i = 1, %d do redis.call('publish', 'redisson_lock__channel:{hot}', '0') end return 1`, mostMessages+1)).Numkeys(0).Build()).Error())
	r.saw(`"event":"deaf"`)
	r.signal(syscall.SIGINT)
	require.Zero(t, r.rest().code)
}

func TestRecordErrors(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for says, args := range map[string][]string{
		"-for can't be negative":           {"-for", "-1s"},
		"-every must be at least 50ms":     {"-every", "1ms"},
		"-rate must be at least 100":       {"-rate", "1"},
		"-limit must be at least 1":        {"-limit", "0"},
		"record takes one argument, not a": {"a", "b"},
	} {
		r := call(t, s.Addr(), append([]string{"record"}, args...)...)
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.err, says)
	}
	require.Equal(t, exitInternal, call(t, s.Addr(), "record", "-o", "/nowhere/night.jsonl").code)
	s.Stop()
	r := call(t, s.Addr(), "record", "-for", "1s")
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, s.Addr())
}

func TestGlobMatches(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	texts := []string{"a", "b", "ab", "abc", "a*c", "a[b]", "ä", "^", "a-c", "", `a\`, "aXbXc", "\xff", "]"}
	for _, pattern := range []string{
		"*", "a", "a*", "*c", "a?c", "[ab]", "[^a]", "[a-c]*", "[c-a]", `a\*c`, `a\[*`, "[]", "[a", "[", `\`, `a\`, "", "**", "a**c", "[^", "?", "*X*X*", "[\\]]", "[a-]", "ä", "\xff", "[^]",
	} {
		for _, text := range texts {
			if text == "" { // KEYS finds it, but as no key of ours
				continue
			}
			want, err := rdb.Do(t.Context(), rdb.B().Eval().Script(
				`redis.call('flushall') redis.call('set', KEYS[1], '1') return #redis.call('keys', ARGV[1])`).Numkeys(1).Key(text).Arg(pattern).Build()).AsInt64()
			require.NoError(t, err)
			require.Equal(t, want == 1, globMatches(pattern, text), "%q %q", pattern, text)
		}
	}
}

func TestUnlockPatterns(t *testing.T) {
	t.Parallel()
	const id = "285475da-9152-4c83-822a-67ee2f116a79"
	for _, pattern := range []string{"*", "job*", "job", "{a}*", "?b", `\*`} {
		for _, name := range []string{"job", "job:1", "{a}", "{a}b", "job{a}", "ab", "*"} {
			for _, channel := range []string{prefixed(lockChannel, name), prefixed(rwChannel, name), prefixed(lockChannel, name) + ":" + id} {
				hits := 0
				for _, p := range unlockPatterns(pattern) {
					if globMatches(p, channel) {
						hits++
					}
				}
				require.LessOrEqual(t, hits, 1, "%s %s", pattern, channel)
				if globMatches(pattern, name) {
					require.Equal(t, 1, hits, "%s %s", pattern, channel)
					require.Contains(t, keysOf(unlockChannelOf(channel)), name)
				}
			}
		}
	}
}

// The lines of a recording may be cut anywhere, and may have other lines among them.
func TestReadRecording(t *testing.T) {
	t.Parallel()
	good := jsonLine(heading{Version: 1, Time: time.Unix(1, 0)}) + "\n" + jsonLine(event{Time: time.Unix(2, 0), Event: eventEnd}) + "\n"
	read := func(text string) (events int, d damage, err error) {
		d, err = readRecording(strings.NewReader(text), func(heading) {}, func(event) { events++ })
		return events, d, err
	}
	for cut := range len(good) {
		events, d, err := read(good[:cut])
		switch {
		case !strings.Contains(good[:cut], "}"):
			require.ErrorIs(t, err, errNoRecording)
		default:
			require.NoError(t, err)
			require.Equal(t, strings.HasSuffix(good[:cut], "}") && strings.Count(good[:cut], "}") == 2, events == 1)
			require.Equal(t, events == 0 && strings.Count(good[:cut], "\n") == 1 && !strings.HasSuffix(good[:cut], "\n"), d.cut)
		}
	}
	events, d, err := read(good + "{\n\nnull\n{\"x\":1}\n" + good + strings.Repeat("x", 100_000) + "\n")
	require.NoError(t, err)
	require.Equal(t, damage{lines: 4}, d)
	require.Equal(t, 2, events)
	for _, text := range []string{"", "x", "x\n" + good, strings.Repeat("x", 2*longestLine), `{"rlock_recording":0}`} {
		_, _, err = read(text)
		require.ErrorIs(t, err, errNoRecording)
	}
	_, _, err = read(`{"rlock_recording":2}`)
	require.ErrorContains(t, err, "a later version")

	var e event
	e.of("job\xff")
	line := jsonLine(e)
	var back event
	require.NoError(t, json.Unmarshal([]byte(line), &back))
	require.Equal(t, "job\xff", back.lock())
}
