package main

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// newLabelled returns a Client with a label, and waits until Redis has it.
func newLabelled(t *testing.T, rdb rueidis.Client, o rlock.Options) *rlock.Client {
	t.Helper()
	c := newLocks(t, rdb, o)
	require.NoError(t, c.Mutex("label").Do(t.Context(), func(context.Context) error { return nil }))
	redistest.Eventually(t, patience, func() bool {
		return rdb.Do(t.Context(), rdb.B().Get().Key(kinds.LabelKey(c.ID())).Build()).Error() == nil
	}, "the label is written")
	return c
}

// Holders are shown by label. For others the output says, if known, that they have none or may be Redisson's.
func TestLabels(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	const java = "285475da-9152-4c83-822a-67ee2f116a79:54"
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Hset().Key("java").FieldValue().FieldValue(java, "1").Build()).Error())
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Pexpire().Key("java").Milliseconds(3_600_000).Build()).Error())
	plain := newLocks(t, rdb)
	listens, _ := lock(t.Context(), t, plain.Mutex("listens", rlock.WithAsked()))
	mayBeJava, _ := lock(t.Context(), t, plain.Mutex("plain"))
	say := func(args ...string) string {
		r := call(t, s.Addr(), args...)
		require.Empty(t, r.err)
		return r.out
	}
	require.Contains(t, say("ls"), "java\tmutex\t"+java+"\t", "no holder has a label")

	pod7 := newLabelled(t, s.Client(t), rlock.Options{Label: "pod 7"})
	job, unlock := lock(t.Context(), t, pod7.Mutex("job"))
	quoted := regexp.QuoteMeta
	require.Regexp(t, `(?m)^holder       "pod 7" \(`+quoted(rlock.Owner(job))+`(, 127\.0\.0\.1:\d+)?\) depth 1$`, say("show", "job"))
	require.Contains(t, say("show", "java"), "holder       "+java+" (Redisson, or no label) depth 1\n")
	require.Regexp(t, `holder       `+quoted(rlock.Owner(listens))+` \((127\.0\.0\.1:\d+, )?no label\) depth 1\n`, say("show", "listens"))
	all := say("ls")
	for _, line := range []string{
		"job\tmutex\t\"pod 7\" (" + rlock.Owner(job) + ")\t1\t", "java\tmutex\t" + java + " (Redisson, or no label)\t1\t",
		"listens\tmutex\t" + rlock.Owner(listens) + " (no label)\t1\t", "plain\tmutex\t" + rlock.Owner(mayBeJava) + " (Redisson, or no label)\t1\t",
	} {
		require.Contains(t, all, line)
	}
	require.Contains(t, say("ls", "-json", "job"), `"label":"pod 7"`)
	require.NotContains(t, say("ls", "-json", "java"), `"label"`)

	// Waiters, too.
	pod8 := newLabelled(t, s.Client(t), rlock.Options{Label: "pod 8"})
	got := waitFor(t, pod8, pod8.Mutex("job"))
	redistest.Eventually(t, patience, func() bool { v, _ := showJSON(t, s.Addr(), "job"); return len(v.Queue) == 1 }, "it is in the queue")
	v, _ := showJSON(t, s.Addr(), "job")
	require.Equal(t, map[string]string{pod8.ID(): "pod 8"}, v.Labels)
	require.Equal(t, "pod 7", v.Holders[0].Label)
	require.Contains(t, say("show", "job"), `queue        1. "pod 8" (`+v.Queue[0]+")\n")
	require.Contains(t, say("top"), "job\t1\tmutex\t\"pod 7\" ("+rlock.Owner(job)+")\t")
	w := start(t, nil, "watch", "-json", "-redis", s.Addr(), "-every", "50ms", "job")
	line := w.saw(`"text":"held by `)
	require.Contains(t, line, `"label":"pod 7"`)
	require.NoError(t, unlock())
	line = w.saw(`"text":"acquired by `)
	require.Contains(t, line, `"label":"pod 8"`)
	require.Contains(t, line, rlock.Owner(<-got))
	r := call(t, s.Addr(), "ask", "job")
	require.Equal(t, exitFree, r.code)
	require.Contains(t, r.err, `held by "pod 8" (`)
	require.Contains(t, say("unlock", "-force", "-yes", "job"), `holder       "pod 8" (`)
}

// A label missing in Redis counts as none; a user without the right to read labels sees everything else.
func TestLabelNotFound(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := newLabelled(t, rdb, rlock.Options{Label: "pod 7"})
	ctx, _ := lock(t.Context(), t, c.Mutex("job"))
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary("ACL", "SETUSER", "limited", "on", ">secret", "&*", "+@all", "~job", "~*{job}*").Build()).Error())
	r := call(t, "redis://limited:secret@"+s.Addr(), "show", "job")
	require.Empty(t, r.err)
	require.Contains(t, r.out, rlock.Owner(ctx))
	require.Contains(t, r.out, "label not found")
}

// A permit's Client is shown by its label, and by all of its id if its connection has a name.
func TestLabelOfAPermit(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := newLocks(t, rdb, rlock.Options{Label: "pod 7"})
	_, err := c.PermitSemaphore("workers").TrySetPermits(t.Context(), 1)
	require.NoError(t, err)
	_, p, err := c.PermitSemaphore("workers").Acquire(t.Context())
	require.NoError(t, err)
	redistest.Eventually(t, patience, func() bool {
		return rdb.Do(t.Context(), rdb.B().Get().Key(kinds.LabelKey(c.ID())).Build()).Error() == nil
	}, "the label is written")
	require.Contains(t, call(t, s.Addr(), "show", "workers").out, `client "pod 7" (`+c.ID()[:18]+"…)\n")
	lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("busy")) // in another process
	waitFor(t, c, c.Mutex("busy"))                               // by a connection with its name
	redistest.Eventually(t, patience, func() bool {
		return strings.Contains(call(t, s.Addr(), "show", "workers").out, `client "pod 7" (`+c.ID()+`) (127.0.0.1:`)
	}, "it is known")
	require.NoError(t, p.Release())
}

// rlock run is labelled with its host and pid, or the given label.
func TestRunLabel(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, row := range []struct {
		flags []string
		want  string
	}{
		{nil, `^\S+ pid \d+$`}, {[]string{"-label", "nightly on web-1"}, `^nightly on web-1$`}, {[]string{"-label", ""}, `^$`},
	} {
		r := start(t, nil, append(append([]string{"run", "-addr", s.Addr()}, row.flags...), "job", "--", "sh", "-c", untilEOF)...)
		r.saw("inside")
		var v view
		redistest.Eventually(t, patience, func() bool {
			v, _ = showJSON(t, s.Addr(), "job")
			return v.Holders[0].Label != "" || row.want == "^$"
		}, "the label is written")
		require.Regexp(t, row.want, v.Holders[0].Label)
		require.NoError(t, r.in.Close())
		require.Zero(t, r.rest().code)
		requireEmpty(t, s)
	}
	r := call(t, s.Addr(), "run", "-label", "two\nlines", "job", "--", "true")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.err, "Options.Label is")
}

// A run names the holder by its label, while it waits and when it gives up.
func TestRunNamesTheHolder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		for label, c := range map[string]*rlock.Client{
			`"nightly on web-1" (`: newLabelled(t, s.Client(t), rlock.Options{Label: "nightly on web-1"}), "": newLocks(t, s.Client(t)),
		} {
			ctx, unlock := lock(t.Context(), t, c.Mutex("job"))
			holder := rlock.Owner(ctx)
			if label != "" {
				holder = label + holder + ")"
			}
			r := call(t, s.Addr(), "run", "-v", "-wait", "300ms", "job", "--", "true")
			require.Equal(t, exitNotAcquired, r.code)
			require.Contains(t, r.err, "waiting: held by "+holder+"\n")
			require.Contains(t, r.err, ": held by "+holder+", with ")
			require.NoError(t, unlock())
		}
	})
}

// A deadlock shows the labels of its members, and of other blockers.
func TestDeadlocksHaveLabels(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		silent := newLabelled(t, s.Client(t), rlock.Options{Label: "pod 7"})
		theirs, _ := lock(t.Context(), t, silent.Mutex("theirs"))
		waits := newLabelled(t, deadlock.Apart{Client: s.Client(t), Graph: deadlock.New()},
			rlock.Options{Label: "pod 8", Deadlock: rlock.Deadlock{After: 10 * time.Millisecond}})
		ctx, _ := lock(t.Context(), t, waits.Mutex("has"))
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { // ends with the test
			defer close(ended)
			_, _, _ = waits.Mutex("theirs").Lock(ctx)
		}()
		t.Cleanup(func() { cancel(); <-ended })
		redistest.Eventually(t, patience, func() bool {
			out := call(t, s.Addr(), "deadlocks").out
			return strings.Contains(out, `"pod 8" on `) && strings.Contains(out, `behind "pod 7" (`+rlock.Owner(theirs)+"), which says nothing")
		}, "it is seen")
		var w standstill
		require.NoError(t, json.Unmarshal([]byte(call(t, s.Addr(), "deadlocks", "-json").out), &w))
		require.Equal(t, "pod 8", w.Label)
	})
}

// A hold by a library that writes other owners than Redisson is shown by all commands, waited for, and can be forced.
func TestHoldOfAnotherLibrary(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		for name, owner := range map[string]string{
			"two ids": "ddcb083c-ff83-4c63-bed5-22fec267a194:05a594da-05bd-40a1-9ba6-5d8634fcd918",
			"one id":  "ddcb083c-ff83-4c63-bed5-22fec267a194",
			"number":  "17",
			"word":    "deadbeef:worker",
			"odd":     oddOwner,
		} {
			writeHash(t, s, name, owner, "2", true)
			locks := newLocks(t, s.Client(t))
			held, err := locks.Mutex(name).IsLocked(t.Context())
			require.NoError(t, err)
			require.True(t, held)
			info, err := locks.Mutex(name).Info(t.Context())
			require.NoError(t, err)
			require.Equal(t, []rlock.Holder{{Owner: owner, Depth: 2}}, info.Holders)
			got := waitFor(t, locks, locks.Mutex(name))
			redistest.Eventually(t, patience, func() bool {
				v, _ := showJSON(t, s.Addr(), name)
				return v.Processes == 1 && len(v.Queue) == 1
			}, "it is in line")

			shown := clean(owner) + " (another library)"
			require.Contains(t, call(t, s.Addr(), "show", name).out, "holder       "+shown+" depth 2\n")
			require.Contains(t, call(t, s.Addr(), "ls").out, name+"\tmutex\t"+shown+"\t2\t")
			require.Contains(t, call(t, s.Addr(), "top", "-n", "1").out, name+"\t1\tmutex\t"+shown+"\t")
			require.Contains(t, call(t, s.Addr(), "ask", name).err, "held by "+shown)
			require.Regexp(t, "(?m)^holder .*"+regexp.QuoteMeta(shown)+" depth 2(.*\n)*freed\n$", call(t, s.Addr(), "unlock", "-force", "-yes", name).out)
			<-got
		}
	})
}

// oddOwner is one that upsets a table.
const oddOwner = "a\tb"

// watch shows such a hold, too.
func TestWatchOfAnotherLibrary(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	writeHash(t, s, "job", oddOwner, "2", true)
	w := start(t, nil, "watch", "-redis", s.Addr(), "job")
	shown := clean(oddOwner) + " (another library)"
	w.saw("held by " + shown)
	require.Zero(t, call(t, s.Addr(), "unlock", "-force", "-yes", "job").code)
	w.saw(" by " + shown) // forced open, or released if it did not listen yet
}

// A hash that cannot be a hold is none for any command, nor for a Lock.
func TestHashOfOtherData(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		locks := newLocks(t, s.Client(t))
		for name, c := range map[string]struct {
			value   string
			expires bool
		}{"visits": {"1764244800", true}, "customer": {"x", true}, "ever": {"1", false}, "zero": {"0", true}} {
			writeHash(t, s, name, "name", c.value, c.expires)
			subscribe(t, s, prefixed(lockChannel, name)) // for top
			_, err := locks.Mutex(name).Info(t.Context())
			require.ErrorContains(t, err, "not a lock")
			_, _, err = locks.Mutex(name).Lock(t.Context())
			require.ErrorContains(t, err, "not a lock")
			require.Contains(t, call(t, s.Addr(), "show", name).err, errNoLock.Error())
			require.Contains(t, call(t, s.Addr(), "top", "-n", "1").out, name+"\t1\t-\t"+errNoLock.Error()+"\t")
			require.Contains(t, call(t, s.Addr(), "unlock", "-force", "-yes", name).err, errNoLock.Error())
		}
		require.Empty(t, call(t, s.Addr(), "ls").out)
	})
}

// writeHash writes a hash with one field.
func writeHash(t *testing.T, s *redistest.Server, key, field, value string, expires bool) {
	t.Helper()
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Hset().Key(key).FieldValue().FieldValue(field, value).Build()).Error())
	if expires {
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Expire().Key(key).Seconds(3600).Build()).Error())
	}
}
