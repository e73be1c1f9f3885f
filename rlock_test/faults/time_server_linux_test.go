package faults

import (
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// clockShim shifts redis-server's wall clock by the number of seconds in a file, but not its monotonic clock.
// (libfaketime does the same, but hangs in the jemalloc of some builds.)
const clockShim = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void shim_open(void) {
	int fd = open(getenv("CLOCK_FILE"), O_RDONLY);
	offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	if (offset == MAP_FAILED) abort();
}

int clock_gettime(clockid_t id, struct timespec *t) {
	int r = syscall(SYS_clock_gettime, id, t);
	if (r == 0 && id == CLOCK_REALTIME && offset) t->tv_sec += *offset;
	return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	struct timespec now;
	int r = clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return r;
}

time_t time(time_t *t) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t) *t = now.tv_sec;
	return now.tv_sec;
}
`

// clockedServer is a server with an adjustable wall clock.
type clockedServer struct {
	*redistest.Server
	rdb  rueidis.Client
	file *os.File
}

func startClockedServer(t *testing.T, off time.Duration) *clockedServer {
	t.Helper()
	dir := t.TempDir()
	src, lib := filepath.Join(dir, "shim.c"), filepath.Join(dir, "shim.so")
	require.NoError(t, os.WriteFile(src, []byte(clockShim), 0o600))
	out, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-o", lib, src).CombinedOutput()
	require.NoError(t, err, string(out))
	s := &clockedServer{}
	s.file, err = os.Create(filepath.Join(dir, "offset"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.file.Close() })
	s.jump(t, off)
	t.Setenv("CLOCK_FILE", s.file.Name())
	t.Setenv("LD_PRELOAD", lib)
	s.Server = redistest.Start(t)
	require.NoError(t, os.Unsetenv("LD_PRELOAD")) // only the server needs it
	s.rdb = s.Client(t)
	s.isOff(t, off)
	return s
}

// jump sets the server's clock to the true time plus off.
func (s *clockedServer) jump(t *testing.T, off time.Duration) {
	t.Helper()
	_, err := s.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(off.Seconds())), 0)
	require.NoError(t, err)
	if s.rdb != nil {
		s.isOff(t, off)
	}
}

// isOff requires the server's clock to be off by that much.
func (s *clockedServer) isOff(t *testing.T, off time.Duration) {
	t.Helper()
	now, err := do(t, s.rdb, "TIME").AsIntSlice()
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(off), time.Unix(now[0], 0), time.Minute)
}

// Fault 6, G1 and G2: the server's wall clock is hours off, to no effect. A hold is renewed, and a killed
// holder's lease expires on time.
func TestServerClockOff(t *testing.T) {
	for _, off := range []time.Duration{-30 * time.Hour, 30 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			s := startClockedServer(t, off)
			const watchdog = shortWatchdog
			ctx, unlock, err := newClient(t, s.rdb, rlock.Options{WatchdogTimeout: watchdog}).Mutex("m").Lock(context.Background())
			require.NoError(t, err)
			other := newClient(t, s.rdb, rlock.Options{}).Mutex("m")
			_, _, err = other.TryLock(context.Background(), watchdog+watchdog/3)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.NoError(t, ctx.Err())
			require.NoError(t, unlock())

			p := startPeer(t, s.Addr(), peerWatchdog)
			p.send(t, "lock", "m")
			p.expect(t, "locked", patience)
			w := startLock(context.Background(), other)
			awaitSubscribers(t, s.rdb, "m", false, 1, patience)
			p.kill()
			asked := time.Now()
			left := remaining(t, s.rdb, "m")
			got := w.gets(t, left+patience, "the lease has expired")
			require.GreaterOrEqual(t, got.at.Sub(asked), left)
			require.NoError(t, got.unlock())
		})
	}
}

// Fault 6: the server's wall clock jumps forward in mid-lease. Redis expires leases early, unseen by any client.
// A hold with a watchdog ends at its next renewal; a fixed lease ends when the client expects, or at its unlock
// (docs/guarantees.md).
func TestServerClockJumpsForward(t *testing.T) {
	s := startClockedServer(t, 0)
	c := newClient(t, s.rdb, rlock.Options{WatchdogTimeout: shortWatchdog})
	ctx, unlock, err := c.Mutex("renewed").Lock(context.Background())
	require.NoError(t, err)
	fixedCtx, unlockFixed, err := c.Mutex("fixed", rlock.WithLease(time.Minute)).Lock(context.Background())
	require.NoError(t, err)
	s.jump(t, 2*time.Hour)
	jumped := time.Now()
	other := newClient(t, s.rdb, rlock.Options{})
	var next []granted
	for _, name := range []string{"renewed", "fixed"} {
		var g granted
		g.ctx, g.unlock, g.err = other.Mutex(name).TryLock(context.Background(), 0)
		require.NoError(t, g.err, "the lease has expired in Redis")
		next = append(next, g)
	}
	ended(t, ctx, patience)
	var loss *rlock.LostError
	require.ErrorAs(t, context.Cause(ctx), &loss)
	require.Equal(t, rlock.LostGone, loss.Reason, "by the next renewal")
	t.Logf("cancelled after %v", time.Since(jumped))
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	require.NoError(t, fixedCtx.Err(), "not renewed, so not noticed")
	require.ErrorIs(t, unlockFixed(), rlock.ErrLost)
	for _, g := range next {
		require.NoError(t, g.ctx.Err())
		require.NoError(t, g.unlock())
	}
}

// Fault 6: the server's wall clock jumps back in mid-lease. Holders are not affected and exclude others as
// before, and an unlock frees the lock at once. But Redis keeps an abandoned hold longer, by the size of the
// jump.
func TestServerClockJumpsBack(t *testing.T) {
	s := startClockedServer(t, 0)
	const watchdog = shortWatchdog
	c := newClient(t, s.rdb, rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := c.Mutex("m").Lock(context.Background())
	require.NoError(t, err)
	s.jump(t, -2*time.Hour)
	w := startLock(context.Background(), newClient(t, s.rdb, rlock.Options{}).Mutex("m"))
	_, _, err = newClient(t, s.rdb, rlock.Options{}).Mutex("m").TryLock(context.Background(), watchdog+watchdog/3)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NoError(t, ctx.Err())
	require.Greater(t, remaining(t, s.rdb, "m"), time.Hour)
	w.waits(t)
	require.NoError(t, unlock())
	require.NoError(t, w.gets(t, patience, "woken by the unlock").unlock())
	require.False(t, exists(t, s.rdb, "m"))
}
