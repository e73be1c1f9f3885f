package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

var okLine = regexp.MustCompile(`^ok: ([1-9][0-9]*) sections, 0 overlaps, 0 lost updates, 1 crash survived$`)

// requireOK checks a whole demo's output.
func requireOK(t *testing.T, r result, redis string) {
	t.Helper()
	require.Zero(t, r.code, "%s\n%s", r.out, r.err)
	require.Empty(t, r.err)
	requirePlain(t, r.out)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	require.Regexp(t, okLine, lines[len(lines)-1])
	for _, text := range []string{"redis   " + redis, "B is killed", "the lease ran out", "re-entry ", "hand-off ", "crash  ", "█×·"} {
		require.Contains(t, r.out, text)
	}
}

// requirePlain checks that output suits a pipe or a log.
func requirePlain(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		require.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
		require.NotContains(t, line, "\x1b")
		require.NotContains(t, line, "\r")
	}
}

func TestDemoOnGivenRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	began := time.Now()
	r := call(t, s.Addr(), "demo")
	ended := time.Now()
	requireOK(t, r, s.Addr()+", from REDIS_ADDR")
	require.Greater(t, ended.Sub(began), 7*time.Second)
	require.Less(t, redistest.Ran(t, began, ended), 20*time.Second)
	requireEmpty(t, s)
}

func TestDemoStartsRedis(t *testing.T) {
	t.Parallel()
	r := call(t, "", "demo")
	requireOK(t, r, "redis-server ")
	requireGone(t, r.out)
}

// requireGone checks that the demo's server has ended.
func requireGone(t *testing.T, out string) {
	t.Helper()
	found := regexp.MustCompile(`started on (\S+)`).FindStringSubmatch(out)
	require.NotNil(t, found, out)
	conn, err := net.Dial("tcp", found[1])
	if err == nil {
		_ = conn.Close()
	}
	require.Error(t, err, "the server is still there")
}

func requireNoFiles(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestDemoEmbedded(t *testing.T) {
	t.Parallel()
	r := start(t, []string{"REDIS_ADDR=", "PATH=" + t.TempDir()}, "demo").rest()
	requireOK(t, r, "miniredis, embedded: there is no redis-server on PATH")
}

func TestDemoBrokenRedisServer(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	script := "#!/bin/sh\necho no memory\nexit 1\n"
	require.NoError(t, os.WriteFile(filepath.Join(path, "redis-server"), []byte(script), 0o700))
	r := start(t, []string{"REDIS_ADDR=", "PATH=" + path}, "demo", "-cheats", "4").rest()
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.out, "miniredis, embedded: redis-server does not start")
	require.Contains(t, r.err, "no memory")
}

// TestDemoNotices: one process without the lock is enough.
func TestDemoNotices(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := call(t, s.Addr(), "demo", "-cheats", "1")
	require.Equal(t, exitFailed, r.code, r.out)
	requirePlain(t, r.out)
	require.Regexp(t, `\nFAILED: [1-9]\d* overlaps, [1-9]\d* seen by the witness, [1-9]\d* lost updates\n$`, r.out)
	require.Contains(t, r.out, "1 of 4 processes left out the lock")
	require.NotContains(t, r.out, "ok:")
	requireEmpty(t, s)
}

func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		tmp := t.TempDir()
		r := start(t, []string{"REDIS_ADDR=", "TMPDIR=" + tmp}, "demo")
		redis := r.saw("redis   ")
		r.saw(" shipped: ")
		r.signal(s)
		got := r.rest()
		assert.Equal(t, exitSignal+int(s), got.code)
		assert.NotContains(t, got.out, "ok:")
		assert.Contains(t, got.err, s.String())
		requireGone(t, redis)
		requireNoFiles(t, tmp)
	}
}

func TestDemoLosesAProcess(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	r := start(t, []string{"REDIS_ADDR=", "TMPDIR=" + tmp}, "demo")
	redis := r.saw("redis   ")
	var a, b, c, d int
	_, ids, _ := strings.Cut(r.saw("process ids"), "process ids")
	_, err := fmt.Sscanf(ids, " A %d B %d C %d D %d", &a, &b, &c, &d)
	require.NoError(t, err, ids)
	process, err := os.FindProcess(c)
	require.NoError(t, err)
	require.NoError(t, process.Kill())
	got := r.rest()
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.out, "FAILED: process C: signal: killed")
	requireGone(t, redis)
	requireNoFiles(t, tmp)
}

func TestDemoLosesRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, []string{"REDIS_ADDR=" + s.Addr()}, "demo")
	r.saw(" shipped: ")
	s.Kill()
	got := r.rest()
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.out, "FAILED: process ")
}

func TestDemoErrors(t *testing.T) {
	t.Parallel()
	down := redistest.Start(t)
	down.Stop()
	for name, c := range map[string]struct {
		addr string
		code int
		says string
		args []string
	}{
		"argument":     {"", 2, "no arguments", []string{"now"}},
		"unknown flag": {"", 2, "-nope", []string{"-nope"}},
		"many cheats":  {"", 2, "-cheats", []string{"-cheats", "5"}},
		"bad address":  {"http://x", 1, "FAILED: address: ", nil},
		"redis down":   {down.Addr(), 1, "FAILED: dial tcp", nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := call(t, c.addr, append([]string{"demo"}, c.args...)...)
			require.Equal(t, c.code, r.code)
			require.Contains(t, r.out+r.err, c.says)
		})
	}
}
