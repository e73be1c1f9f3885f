package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// A full disk ends a recording.
func TestRecordEndsWithItsFile(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := call(t, s.Addr(), "record", "-for", "1m", "-o", "/dev/full")
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "the recording ends early: write /dev/full: no space left on device")
}

// While its file is stuck, a recorder looks at nothing, so that nothing piles up, and it can be ended.
func TestRecordWaitsForItsFile(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Eval().Script(`for i = 1, 2000 do
		redis.call('hset', 'job:' .. i, '285475da-9152-4c83-822a-67ee2f116a79:' .. i, 1) redis.call('pexpire', 'job:' .. i, 300000) end return 1`).Numkeys(0).Build()).Error())
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // which reads nothing
	require.NoError(t, err)
	defer func() { _ = reader.Close() }()
	cmd := exec.CommandContext(t.Context(), binary, "record", "-redis", s.Addr(), "-rate", "100000", "-o", pipe)
	require.NoError(t, cmd.Start())
	var looks int64
	var since time.Time
	redistest.Eventually(t, patience, func() bool {
		if now := redistest.Commands(t, rdb)["hrandfield"]; now != looks {
			looks, since = now, time.Now()
		}
		return looks > 0 && time.Since(since) > 2*time.Second // it looks each second otherwise
	}, "it looks no more")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
}
