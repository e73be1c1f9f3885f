package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// sh scripts that report that they are inside, and then wait for the end of stdin or a signal.
const (
	untilEOF    = `echo inside; cat`
	untilSignal = `trap 'echo ended by TERM; exit 11' TERM
		trap 'echo ended by INT; exit 12' INT
		trap 'echo ended by HUP; exit 13' HUP
		trap 'echo ended by QUIT; exit 14' QUIT
		echo inside; while :; do sleep 0.1; done`
	stubborn = `trap '' TERM; echo inside; while :; do sleep 0.1; done`
)

// quick reports the loss of a lock after a second, but tolerates a machine that stands still for two.
const quick = "3s"

func TestRunPassesTheExitCodeOn(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("no program"), 0o600))
	bare := filepath.Join(t.TempDir(), "bare")
	require.NoError(t, os.WriteFile(bare, []byte(`exit "$1"`), 0o700))
	binary := filepath.Join(t.TempDir(), "binary")
	require.NoError(t, os.WriteFile(binary, []byte("\x00\x01\n"), 0o700))
	for name, c := range map[string]struct {
		code int
		argv []string
	}{
		"zero":           {0, []string{"true"}},
		"seven":          {7, []string{"sh", "-c", "exit 7"}},
		"signal":         {128 + 9, []string{"sh", "-c", "kill -9 $$"}},
		"not found":      {exitNotFound, []string{"there-is-no-such-command"}},
		"no such path":   {exitNotFound, []string{"./there-is-no-such-command"}},
		"not executable": {exitCannotRun, []string{plain}},
		"without #!":     {8, []string{bare, "8"}},
		"no program":     {exitCannotRun, []string{binary}},
	} {
		t.Run(name, func(t *testing.T) {
			r := call(t, s.Addr(), append([]string{"run", "job", "--"}, c.argv...)...)
			require.Equal(t, c.code, r.code, r.err)
			requireEmpty(t, s)
		})
	}
}

func TestRunPassesTheStreamsThrough(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", "cat; echo oops >&2")
	_, err := r.in.Write([]byte("hello\n"))
	require.NoError(t, err)
	require.NoError(t, r.in.Close())
	require.Equal(t, result{0, "hello", "oops\n"}, r.rest())
}

func TestRunExcludes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	env := []string{"REDIS_ADDR=redis://" + s.Addr()}
	first := start(t, env, "run", "job", "--", "sh", "-c", untilEOF)
	first.saw("inside")
	require.Zero(t, call(t, s.Addr(), "run", "another job", "--", "true").code)
	second := start(t, env, "run", "job", "--", "echo", "inside")
	waitForWaiter(t, s)
	require.NoError(t, first.in.Close())
	require.Zero(t, first.rest().code)
	second.saw("inside")
	require.Zero(t, second.rest().code)
	requireEmpty(t, s)
}

// TestRunTries: a run that does not wait, or not for long, says who has the lock.
func TestRunTries(t *testing.T) {
	redistest.OnlyVirtual(t, "a label is written some time after its lock is taken", func(t *testing.T) {
		s := redistest.Start(t)
		refused := func(code int, after string, args ...string) {
			t.Helper()
			r := call(t, s.Addr(), slices.Concat([]string{"run"}, args, []string{"job", "--", "echo", "inside"})...)
			require.Equal(t, code, r.code, r.err)
			require.Empty(t, r.out, "ran without the lock")
			require.Regexp(t, `^rlock: "job": not acquired`+after+`: held by "\S+ pid \d+" \([-0-9a-f]{36}:\d{20}\), with [0-9.]+s left\n$`, r.err)
		}
		holder := newLocks(t, s.Client(t), rlock.Options{Label: "web-1 pid 7"})
		lock(t.Context(), t, holder.Mutex("job"))
		redistest.Settle(t) // its label is written
		refused(exitNotAcquired, "", "-wait", "0")
		refused(exitNotAcquired, " after 50ms", "-wait", "50ms")
		refused(9, "", "-wait", "0", "-E", "9")
		refused(0, "", "-wait", "0", "-E", "0")
		require.Zero(t, call(t, s.Addr(), "run", "-wait", "0", "another job", "--", "true").code)
	})
}

// A silent Redis is not "not acquired", which scripts may take for "another instance runs".
func TestRunWhileRedisHangs(t *testing.T) {
	redistest.OnlyVirtual(t, hastyAlone, func(t *testing.T) {
		beHasty(t)
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if strings.HasPrefix(cmd[0], "EVAL") {
				return redistest.Drop
			}
			return redistest.Pass
		})
		r := call(t, proxy.Addr(), "run", "-wait", "50ms", "-E", "0", "job", "--", "echo", "inside")
		require.Equal(t, exitInternal, r.code, r.err)
		require.Empty(t, r.out)
		require.Contains(t, r.err, "Redis not reached")
	})
}

// waitForWaiter returns once a lock has a waiter.
func waitForWaiter(t *testing.T, s *redistest.Server) {
	t.Helper()
	c := s.Client(t)
	redistest.Eventually(t, patience, func() bool {
		channels, err := c.Do(t.Context(), c.B().PubsubChannels().Build()).AsStrSlice()
		return err == nil && len(channels) == 3 // of unlocks, of the queue, and of the waiter's grants
	}, "a process waits")
}

func TestRunLost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, c := range map[string]struct{ script, killAfter, says string }{
		"gentle":   {untilSignal, "1h", "ended by TERM"},
		"stubborn": {stubborn, "200ms", ""},
		// Children of the command must end as well, or rest would wait for them.
		"left behind": {`(trap '' TERM; while :; do sleep 0.1; done) & echo inside; wait`, "1h", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, nil, "run", "-addr", s.Addr(), "-watchdog", quick, "-kill-after", c.killAfter, name, "--", "sh", "-c", c.script)
			r.saw("inside")
			rdb := s.Client(t)
			require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key(name).Build()).Error())
			got := r.rest()
			require.Equal(t, exitLost, got.code, got.err)
			require.Equal(t, c.says, got.out)
			require.Contains(t, got.err, "stopping the command")
			require.Contains(t, got.err, "lost")
		})
	}
}

func TestRunLeaseEnds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := call(t, s.Addr(), "run", "-lease", "10s", "job", "--", "sh", "-c", untilSignal)
	require.Equal(t, exitLost, r.code, r.err)
	require.Equal(t, "inside\nended by TERM\n", r.out)
	requireEmpty(t, s)
}

// -grace keeps others out while the command stops after a loss.
func TestRunGrace(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	addr, fallSilent := silenceable(t, s)
	r := start(t, hasty, "run", "-addr", addr, "-watchdog", "10s", "-grace", "1h", "-kill-after", "1h", "job", "--",
		"sh", "-c", `exec 3<&0; trap 'trap "" TERM; echo stopping; cat <&3; exit' TERM; echo inside; while :; do sleep 0.1; done`)
	r.saw("inside")
	fallSilent()
	r.saw("stopping")
	require.Zero(t, call(t, s.Addr(), "show", "job").code, "others are kept out")
	require.NoError(t, r.in.Close())
	require.Equal(t, exitLost, r.rest().code)
}

// silenceable is the address of a server that can fall silent. fallSilent returns once a question has no answer.
func silenceable(t *testing.T, s *redistest.Server) (addr string, fallSilent func()) {
	t.Helper()
	proxy := redistest.StartProxy(t, s.Addr())
	var hangs atomic.Bool
	asked := make(chan struct{}, 1000)
	proxy.OnRequest(func([]string) redistest.Action {
		if hangs.Load() {
			asked <- struct{}{}
			return redistest.Drop
		}
		return redistest.Pass
	})
	return proxy.Addr(), func() {
		hangs.Store(true)
		<-asked
	}
}

func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, c := range map[string]struct {
		signal syscall.Signal
		code   int
	}{
		"TERM": {syscall.SIGTERM, 11},
		"INT":  {syscall.SIGINT, 12},
		"HUP":  {syscall.SIGHUP, 13},
		"QUIT": {syscall.SIGQUIT, 14},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", untilSignal)
			r.saw("inside")
			r.signal(c.signal)
			got := r.rest() // some shells report on stderr that their sleep was ended
			require.Equal(t, c.code, got.code)
			require.Equal(t, "ended by "+name, got.out)
			requireEmpty(t, s)
		})
	}
	t.Run("ends the command", func(t *testing.T) {
		r := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", untilEOF)
		r.saw("inside")
		r.signal(syscall.SIGTERM)
		require.Equal(t, result{128 + 15, "", ""}, r.rest())
		requireEmpty(t, s)
	})
}

func TestRunGivesUpWaitingOnASignal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	first := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", untilEOF)
	first.saw("inside")
	second := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "echo", "inside")
	waitForWaiter(t, s)
	second.signal(syscall.SIGINT)
	require.Equal(t, result{128 + 2, "", ""}, second.rest())
	require.NoError(t, first.in.Close())
	require.Zero(t, first.rest().code)
	requireEmpty(t, s)
}

// TestRunRedisGone: the command was alone, because its lease had not expired: its own code is returned.
func TestRunRedisGone(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, hasty, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", "echo inside; cat; exit 5")
	r.saw("inside")
	s.Stop()
	require.NoError(t, r.in.Close())
	got := r.rest()
	require.Equal(t, 5, got.code)
	require.Contains(t, got.err, "the lock stays until its lease expires")
}

func TestRunErrors(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	secret := redistest.Start(t, "--requirepass", "secret")
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key("text").Value("x").Build()).Error())
	down := redistest.Start(t)
	down.Stop()
	orphan, carriage := filepath.Join(t.TempDir(), "orphan"), filepath.Join(t.TempDir(), "carriage")
	require.NoError(t, os.WriteFile(orphan, []byte("#!/there/is/no/sh -e\n"), 0o700))
	require.NoError(t, os.WriteFile(carriage, []byte("#!/bin/sh\r\n"), 0o700))
	for name, c := range map[string]struct {
		code int
		says string
		args []string
	}{
		"nothing":          {2, "run needs NAME", nil},
		"no command":       {2, "run needs NAME", []string{"job", "--"}},
		"no dashes":        {2, "run needs NAME", []string{"job", "true", "true"}},
		"empty name":       {2, "NAME is empty", []string{"", "--", "true"}},
		"unknown flag":     {2, "-nope", []string{"-nope", "job", "--", "true"}},
		"negative wait":    {2, "negative", []string{"-wait", "-1s", "job", "--", "true"}},
		"no duration":      {2, "-wait", []string{"-wait", "soon", "job", "--", "true"}},
		"no lease":         {2, "-lease", []string{"-lease", "0", "job", "--", "true"}},
		"no grace":         {2, "-grace", []string{"-grace", "0", "job", "--", "true"}},
		"negative kill":    {2, "negative", []string{"-kill-after", "-1s", "job", "--", "true"}},
		"bad code":         {2, "-E", []string{"-E", "256", "job", "--", "true"}},
		"two kinds":        {2, "one of -fenced", []string{"-fair", "-shared", "job", "--", "true"}},
		"three kinds":      {2, "one of -fenced", []string{"-fenced", "-exclusive", "-fair", "job", "--", "true"}},
		"min hold of rw":   {2, "-min-hold only works", []string{"-fenced", "-exclusive", "-min-hold", "1s", "job", "--", "true"}},
		"min hold of all":  {2, "-min-hold only works", []string{"-fair", "-min-hold", "1s", "job", "--", "true"}},
		"no min hold":      {2, "at least 1ms", []string{"-min-hold", "0", "job", "--", "true"}},
		"no max hold":      {2, "at least 1ms", []string{"-max-hold", "-1s", "job", "--", "true"}},
		"bad watchdog":     {2, "WatchdogTimeout", []string{"-watchdog", "1ms", "job", "--", "true"}},
		"bad address":      {2, "address", []string{"-addr", "http://x", "job", "--", "true"}},
		"redis is down":    {exitInternal, "refused", []string{"-addr", down.Addr(), "job", "--", "true"}},
		"another type":     {exitInternal, "WRONGTYPE", []string{"text", "--", "true"}},
		"no password":      {exitInternal, "NOAUTH", []string{"-addr", secret.Addr(), "job", "--", "true"}},
		"a password":       {0, "", []string{"-addr", "redis://:secret@" + secret.Addr(), "job", "--", "true"}},
		"no interpreter":   {exitNotFound, `interpreter "/there/is/no/sh"`, []string{"-addr", down.Addr(), "job", "--", orphan}},
		"carriage return":  {exitNotFound, `interpreter "/bin/sh\r"`, []string{"-addr", down.Addr(), "job", "--", carriage}},
		"misspelt command": {exitNotFound, "not found", []string{"-addr", down.Addr(), "job", "--", "there-is-no-such-command"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := call(t, s.Addr(), append([]string{"run"}, c.args...)...)
			require.Equal(t, c.code, r.code, r.err)
			require.Contains(t, r.err, c.says)
			require.Empty(t, r.out)
			require.LessOrEqual(t, strings.Count(r.err, "\n"), 1, "one line")
		})
	}
}

const tellsEnvironment = `echo "$RLOCK_NAME,$RLOCK_OWNER,$RLOCK_TOKEN"`

func TestRunEnvironment(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sh := []string{"--", "sh", "-c", tellsEnvironment}
	run := func(args ...string) string {
		t.Helper()
		r := call(t, s.Addr(), append(append([]string{"run"}, args...), sh...)...)
		require.Zero(t, r.code, r.err)
		return r.out
	}
	require.Regexp(t, `^job,[-0-9a-f]{36}:\d+,\n$`, run("job"))
	require.Regexp(t, `^job,[-0-9a-f]{36}:\d+,1\n$`, run("-fenced", "job"))
	require.Regexp(t, `^job,[-0-9a-f]{36}:\d+,2\n$`, run("-fenced", "job"))
	require.Regexp(t, `^job,[-0-9a-f]{36}:\d+,1\n$`, run("-fenced", "-prefix", "shop:", "job"))
	require.Regexp(t, `^job,[-0-9a-f]{36}:\d+:write,3\n$`, run("-fenced", "-exclusive", "job"))
	require.Regexp(t, `^fair,[-0-9a-f]{36}:0\d+,\n$`, run("-fair", "fair"))
	// rlock's own variables stay with it; the command inherits the rest.
	env := start(t, []string{"RLOCK_REDIS_URL=redis://" + s.Addr(), "REDIS_URL=redis://127.0.0.1:1"}, "run", "job", "--", "sh", "-c", `echo "$RLOCK_REDIS_URL,$REDIS_URL"`)
	require.Equal(t, result{0, ",redis://127.0.0.1:1", ""}, env.rest())
	// An outer lock's token is not the inner lock's.
	r := start(t, []string{"REDIS_ADDR=" + s.Addr(), "RLOCK_TOKEN=7"}, append([]string{"run", "-exclusive", "rw"}, sh...)...)
	require.Regexp(t, `^rw,[-0-9a-f]{36}:\d+:write,$`, r.rest().out)
}

// Readers run together, and exclude a writer and a plain lock; both kinds of writers exclude readers.
func TestRunShared(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		try := func(want int, flags ...string) {
			t.Helper()
			r := call(t, s.Addr(), slices.Concat([]string{"run", "-wait", "0"}, flags, []string{"job", "--", "true"})...)
			require.Equal(t, want, r.code, r.err)
		}
		end := hold(t, s.Addr(), "-shared")
		try(0, "-shared")
		try(exitNotAcquired, "-exclusive")
		try(exitNotAcquired)
		end()
		end = hold(t, s.Addr(), "-exclusive")
		try(exitNotAcquired, "-shared")
		end()
		requireEmpty(t, s)
	})
}

func TestRunSkip(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
		require.Equal(t, result{}, call(t, s.Addr(), "run", "-skip", "job", "--", "echo", "inside"))
		require.Equal(t, result{code: 9}, call(t, s.Addr(), "run", "-skip", "-E", "9", "-wait", "10ms", "job", "--", "echo", "inside"))
		r := call(t, s.Addr(), "run", "-skip", "-v", "job", "--", "echo", "inside")
		require.Zero(t, r.code)
		require.Contains(t, r.err, "not acquired")
		require.Equal(t, "inside\n", call(t, s.Addr(), "run", "-skip", "another", "--", "echo", "inside").out)
	})
}

func TestRunMinHold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		require.Zero(t, call(t, s.Addr(), "run", "-min-hold", "1h", "short", "--", "true").code)
		r := call(t, s.Addr(), "run", "-wait", "0", "short", "--", "true")
		require.Equal(t, exitNotAcquired, r.code)
		require.Contains(t, r.err, "WithMinHold")
	})
}

func TestRunMaxHold(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := call(t, s.Addr(), "run", "-max-hold", "10s", "-watchdog", "8s", "long", "--", "sh", "-c", untilSignal)
	require.Equal(t, exitLost, r.code, r.err)
	require.Equal(t, "inside\nended by TERM\n", r.out)
}

// putOwner replaces the owner of the lock job.
func putOwner(t *testing.T, s *redistest.Server, owner string) {
	t.Helper()
	rdb := s.Client(t)
	swap := `redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], ARGV[1], 1) return redis.call('pexpire', KEYS[1], 60000)`
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Eval().Script(swap).Numkeys(1).Key("job").Arg(owner).Build()).Error())
}

// -v shows the holder during the wait, also when it changes.
func TestRunVerbose(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	put := func(owner string) { putOwner(t, s, owner) }
	const java = "285475da-9152-4c83-822a-67ee2f116a79:"
	put(java + "54")
	r := start(t, nil, "run", "-v", "-addr", s.Addr(), "job", "--", "echo", "inside")
	said := func(text string) {
		t.Helper()
		redistest.Eventually(t, patience, func() bool { return strings.HasSuffix(r.err.String(), text+"\n") }, text)
	}
	said(`rlock: "job": waiting: held by ` + java + "54")
	put(java + "55")
	said(`rlock: "job": waiting: held by ` + java + "55")
	require.Zero(t, call(t, s.Addr(), "unlock", "-force", "-yes", "job").code)
	got := r.rest()
	require.Zero(t, got.code)
	require.Regexp(t, `\nrlock: "job": acquired after \d+\.\ds as [-0-9a-f]{36}:\d+\nrlock: "job": released after \d+\.\ds\n$`, got.err)
}

// TestRunWaitTakesItsTime: -wait bounds the wait, not an attempt.
func TestRunWaitTakesItsTime(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
		began := time.Now()
		require.Equal(t, exitNotAcquired, call(t, s.Addr(), "run", "-wait", "250ms", "job", "--", "true").code)
		require.GreaterOrEqual(t, time.Since(began), 250*time.Millisecond)
	})
}

// TestRunOnCluster: one node's address is enough.
func TestRunOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	addr := c.Addrs()[0]
	first := start(t, nil, "run", "-addr", addr, "job", "--", "sh", "-c", untilEOF)
	first.saw("inside")
	second := start(t, nil, "run", "-v", "-addr", "redis://"+addr, "job", "--", "echo", "inside")
	redistest.Eventually(t, patience, func() bool { return strings.Contains(second.err.String(), "waiting: held by") }, "it waits")
	require.NoError(t, first.in.Close())
	require.Equal(t, result{0, "", ""}, first.rest())
	got := second.rest()
	require.Zero(t, got.code, got.err)
	require.Equal(t, "inside", got.out)
}

// TestRunCanBeFound: a holder that never waited has a named connection.
func TestRunCanBeFound(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", untilEOF)
	r.saw("inside")
	v, _ := showJSON(t, s.Addr(), "job")
	require.Regexp(t, `^127\.0\.0\.1:\d+$`, v.Holders[0].Host)
}

// A run that waits for a run around it, in whatever depth, would wait for ever.
func TestRunNested(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	run := func(args ...string) []string { return append([]string{binary, "run", "-addr", s.Addr()}, args...) }
	for name, c := range map[string]struct {
		code   int
		says   string
		around []string
		inner  []string
	}{
		"mutex":              {exitInternal, "that this one runs under", run("mutex", "--"), run("-wait", "1h", "mutex", "--", "echo", "inside")},
		"fair":               {exitInternal, "that this one runs under", run("-fair", "fair", "--"), run("-fair", "fair", "--", "echo", "inside")},
		"reader and writer":  {exitInternal, "that this one runs under", run("-shared", "rw", "--"), run("-exclusive", "rw", "--", "echo", "inside")},
		"another in between": {exitInternal, "that this one runs under", append(run("far", "--"), run("near", "--")...), run("far", "--", "echo", "inside")},
		"readers":            {0, "", run("-shared", "readers", "--"), run("-shared", "readers", "--", "echo", "inside")},
		"another Redis":      {0, "", run("-prefix", "other:", "prefix", "--"), run("prefix", "--", "echo", "inside")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			argv := slices.Concat(c.around, c.inner)
			got := startCommand(t, nil, argv[0], argv[1:]...).rest()
			require.Equal(t, c.code, got.code, got.err)
			require.Contains(t, got.err, c.says)
			require.Equal(t, map[bool]string{true: "inside"}[c.code == 0], got.out)
		})
	}
}

// One that only tries would not wait.
func TestRunNestedTries(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		ctx, _ := lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("once"))
		env := map[string]string{"REDIS_ADDR": s.Addr(), ownersVariable: rlock.Owner(ctx)}
		r := callWith(t, env, "run", "-wait", "0", "once", "--", "echo", "inside")
		require.Equal(t, exitNotAcquired, r.code, r.err)
		require.Contains(t, r.err, "not acquired")
		require.Empty(t, r.out)
	})
}

// A silent Redis adds little to -wait.
func TestRunLeavesASilentRedis(t *testing.T) {
	redistest.OnlyVirtual(t, hastyAlone, func(t *testing.T) {
		beHasty(t)
		s := redistest.Start(t)
		lock(t.Context(), t, newLocks(t, s.Client(t)).Mutex("job"))
		addr, fallSilent := silenceable(t, s)
		time.AfterFunc(time.Second, fallSilent)
		began := time.Now()
		r := call(t, addr, "run", "-v", "-wait", "3s", "job", "--", "true")
		require.Equal(t, exitNotAcquired, r.code, r.err)
		require.Contains(t, r.err, "waiting: held by")
		require.Less(t, time.Since(began), 3*time.Second+5*leaveTime)

		addr, fallSilent = silenceable(t, s)
		go fallSilent()
		r = call(t, addr, "run", "-wait", "10ms", "job", "--", "true")
		require.Equal(t, result{exitInternal, "", "rlock: " + addr + ": no answer within 2s\n"}, r)
	})
}

// Nor to the time that a signal takes, whatever was asked for -v.
func TestRunLeavesASilentRedisAtASignal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	first := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", untilEOF)
	first.saw("inside")
	addr, fallSilent := silenceable(t, s)
	r := start(t, hasty, "run", "-v", "-addr", addr, "job", "--", "true")
	redistest.Eventually(t, patience, func() bool { return strings.Contains(r.err.String(), "waiting") }, "it waits")
	fallSilent()
	began := time.Now()
	r.signal(syscall.SIGINT)
	require.Equal(t, exitSignal+int(syscall.SIGINT), r.rest().code)
	require.Less(t, redistest.Ran(t, began, time.Now()), 5*leaveTime)
}

// An unlock that Redis carries out in part leaves no lock behind: the waiters only learn of it later.
func TestRunUnlocksUntold(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary("ACL", "SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-publish").Build()).Error())
	r := call(t, "redis://mute:secret@"+s.Addr(), "run", "job", "--", "true")
	require.Zero(t, r.code)
	require.Contains(t, r.err, "UNTOLD")
	require.Contains(t, r.err, ": the lock is free\n")
}
