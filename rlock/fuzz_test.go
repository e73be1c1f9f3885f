package rlock_test

import (
	"bytes"
	"context"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/rlock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func send(t *testing.T, rdb rueidis.Client, cmd ...string) rueidis.RedisResult {
	t.Helper()
	return rdb.Do(context.Background(), rdb.B().Arbitrary(cmd...).Build())
}

func ask(t *testing.T, rdb rueidis.Client, cmd ...string) int64 {
	t.Helper()
	n, err := send(t, rdb, cmd...).AsInt64()
	require.NoError(t, err)
	return n
}

// FuzzNames: any bytes are a valid name. Keys and channel equal Redisson's, no other key is touched, and an unlock leaves only the fencing
// counter.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"", "a", "a{b}c", "{}", "a{}b", "{", "}", "}{", "a:b", "\r\n", "\x00", "\xff\xfe", "*", "a?[b]", "锁",
		"redisson_lock__channel:{a}", "redisson_lock_token:{a}", strings.Repeat("x", 1<<10),
	} {
		f.Add([]byte(name))
	}
	rdb := redistest.Start(f).Client(f)
	client, err := rlock.New(rdb, rlock.Options{})
	require.NoError(f, err)
	f.Cleanup(client.Close)
	published := listen(f, rdb)
	f.Fuzz(func(t *testing.T, raw []byte) {
		name := string(raw)
		m := client.FencedMutex(name)
		_, unlock, err := m.Lock(t.Context())
		if name == "" {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.NoError(t, unlock())
		<-published

		// Redisson's rule: put the name in braces unless it contains an opening brace.
		tag := raw
		if bytes.IndexByte(raw, '{') < 0 {
			tag = bytes.Join([][]byte{[]byte("{"), raw, []byte("}")}, nil)
		}
		channel, token := "redisson_lock__channel:"+string(tag), "redisson_lock_token:"+string(tag)
		require.EqualValues(t, 1, ask(t, rdb, "GET", token))
		var others []string
		for _, key := range []string{channel, string(tag), name + "x", name[:len(name)-1], strings.ToUpper(name)} {
			if key != name && key != token && ask(t, rdb, "SETNX", key, "precious") == 1 {
				others = append(others, key)
			}
		}

		ctx, unlock, err := m.Lock(t.Context())
		require.NoError(t, err)
		fields, err := send(t, rdb, "HGETALL", name).AsIntMap()
		require.NoError(t, err)
		require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, fields)
		require.EqualValues(t, len(others)+2, ask(t, rdb, "DBSIZE"))
		require.NoError(t, unlock())
		require.Equal(t, channel, <-published)
		require.EqualValues(t, len(others)+1, ask(t, rdb, "DBSIZE"))
		require.EqualValues(t, 2, ask(t, rdb, "GET", token))
		for _, key := range others {
			value, err := send(t, rdb, "GET", key).ToString()
			require.NoError(t, err)
			require.Equal(t, "precious", value)
		}
		require.NoError(t, send(t, rdb, "FLUSHALL").Error())
	})
}

// listen returns the channels with published messages.
func listen(f *testing.F, rdb rueidis.Client) <-chan string {
	f.Helper()
	published, confirmed := make(chan string, 16), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	f.Cleanup(cancel)
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { close(confirmed) })
	go func() { // ended by cancel
		_ = rdb.Receive(hooked, rdb.B().Psubscribe().Pattern("*").Build(), func(m rueidis.PubSubMessage) {
			published <- m.Channel
		})
	}()
	<-confirmed
	return published
}

// FuzzOptions: any numbers in Options and WithLease either are an error or work, with an expiry that Redis accepts, and nothing is left.
// There is no upper bound because none is needed: the longest time.Duration is 292 years, and Redis can count further.
func FuzzOptions(f *testing.F) {
	const year = int64(365 * 24 * time.Hour)
	for _, n := range []int64{
		0, 1, -1, int64(time.Millisecond), int64(100 * time.Millisecond), int64(time.Minute) + 999_999, 200 * year,
		math.MaxInt64, math.MaxInt64 - 1, math.MinInt64,
	} {
		f.Add(n, int64(time.Minute), 0, int64(0))
		f.Add(int64(time.Minute), n, 0, int64(0))
		f.Add(int64(0), int64(time.Minute), 1, n)
		f.Add(n, n, int(n), n)
	}
	rdb := redistest.Start(f).Client(f)
	f.Fuzz(func(t *testing.T, watchdog, lease int64, replicas int, replicaTimeout int64) {
		o := rlock.Options{
			WatchdogTimeout: time.Duration(watchdog), Replicas: replicas, ReplicaTimeout: time.Duration(replicaTimeout),
		}
		client, err := rlock.New(rdb, o)
		bad := watchdog != 0 && o.WatchdogTimeout < rlock.MinWatchdogTimeout || replicas < 0 ||
			replicaTimeout != 0 && o.ReplicaTimeout < time.Millisecond
		require.Equal(t, bad, err != nil, "%+v: %v", o, err)
		if bad {
			return
		}
		defer client.Close()
		if watchdog == 0 {
			o.WatchdogTimeout = rlock.DefaultWatchdogTimeout
		}
		fixed := time.Duration(lease)
		stop := unblock(t, rdb)
		defer stop()

		watched := client.Mutex("options")
		if enter(t.Context(), t, rdb, watched, o.WatchdogTimeout, o, nil) {
			inside := client.Mutex("options", rlock.WithLease(fixed))
			enter(t.Context(), t, rdb, inside, fixed, o, watched)
		}
		redistest.Eventually(t, 10*time.Second, func() bool { return ask(t, rdb, "DBSIZE") == 0 }, "no key is left")
	})
}

// enter locks m with lease ttl and unlocks it, inside a section of around if that is set. It reports whether the Lock succeeded.
func enter(ctx context.Context, t *testing.T, rdb rueidis.Client, m *rlock.Mutex, ttl time.Duration, o rlock.Options,
	around *rlock.Mutex,
) bool {
	t.Helper()
	until := ttl // this call has that long
	if around != nil && ttl >= time.Millisecond {
		enter(ctx, t, rdb, m, ttl, o, nil)
		outer, unlock, err := around.Lock(ctx)
		if err != nil {
			require.Less(t, o.WatchdogTimeout, time.Second, "%v", err)
			return false
		}
		defer func() { requireEnd(t, unlock(), o.WatchdogTimeout) }()
		ctx, ttl, until = outer, max(ttl, o.WatchdogTimeout), o.WatchdogTimeout
	}
	held, unlock, err := m.Lock(ctx)
	switch {
	case ttl < time.Millisecond:
		require.ErrorContains(t, err, "want at least 1ms")
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		return false
	case o.Replicas > 0: // there are none
		require.ErrorIs(t, err, rlock.ErrNotReplicated)
		return false
	case err != nil:
		require.ErrorIs(t, err, rlock.ErrLost)
		require.Less(t, until, time.Second, "a loaded machine may be slower than that")
		return false
	}
	left := ask(t, rdb, "PTTL", m.Name())
	require.NotEqual(t, int64(-1), left, "without expiry")
	if ttl >= time.Second {
		require.Positive(t, left)
		require.NoError(t, held.Err())
	}
	require.LessOrEqual(t, left, ttl.Milliseconds())
	requireEnd(t, unlock(), ttl)
	return true
}

func requireEnd(t *testing.T, err error, ttl time.Duration) {
	t.Helper()
	if ttl >= time.Second || err == nil {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, rlock.ErrLost)
}

// unblock ends every WAIT at once, as if it had timed out, so that no test waits 292 years.
func unblock(t *testing.T, rdb rueidis.Client) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ended by stop
		defer close(ended)
		for ctx.Err() == nil {
			list, _ := rdb.Do(ctx, rdb.B().ClientList().Build()).ToString()
			for line := range strings.Lines(list) {
				if strings.Contains(line, " cmd=wait ") {
					id, _, _ := strings.Cut(line[strings.Index(line, "id=")+len("id="):], " ")
					n, _ := strconv.ParseInt(id, 10, 64)
					_ = rdb.Do(ctx, rdb.B().ClientUnblock().ClientId(n).Build()).Error() // the WAIT may have ended already
				}
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// FuzzExpiry: a foreign hold may have any expiry that Redis accepts, even longer than a time.Duration.
func FuzzExpiry(f *testing.F) {
	for _, n := range []int64{-1, 0, 1, 1000, 60_000, math.MaxInt64 / 1_000_000, math.MaxInt64/1_000_000 + 1, 1e13, 2e13, 1 << 53, math.MaxInt64} {
		f.Add(n)
	}
	rdb := redistest.Start(f).Client(f)
	client, err := rlock.New(rdb, rlock.Options{})
	require.NoError(f, err)
	f.Cleanup(client.Close)
	f.Fuzz(func(t *testing.T, millis int64) {
		m := client.Mutex("expiry")
		require.NoError(t, send(t, rdb, "HSET", m.Name(), "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41:1", "1").Error())
		defer func() { require.NoError(t, send(t, rdb, "DEL", m.Name()).Error()) }()
		if send(t, rdb, "PEXPIRE", m.Name(), strconv.FormatInt(millis, 10)).Error() != nil {
			return
		}
		ttl, err := m.TTL(t.Context())
		require.NoError(t, err)
		want := time.Duration(math.MaxInt64)
		if millis <= math.MaxInt64/int64(time.Millisecond) {
			want = max(0, time.Duration(millis)*time.Millisecond)
		}
		require.GreaterOrEqual(t, ttl, time.Duration(0))
		require.LessOrEqual(t, ttl, want)
		if want < 10*time.Second {
			return
		}
		require.Greater(t, ttl, want-10*time.Second)
		for _, wait := range []time.Duration{0, time.Millisecond} {
			_, _, err = m.TryLock(t.Context(), wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
		}
	})
}
