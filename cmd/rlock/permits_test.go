package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// javaPermits makes n permits in Redisson's format, without slots, which expire in that many ms.
func javaPermits(t *testing.T, rdb rueidis.Client, key string, n int, ms time.Duration) (first string) {
	t.Helper()
	ids, err := rdb.Do(t.Context(), rdb.B().Eval().Script(`
local time = redis.call('time')
for i = 1, tonumber(ARGV[1]) do
  redis.call('zadd', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2], string.format('java%12d', i))
end
return string.format('java%12d', 1)`).Numkeys(1).Key(permitsOf(key)).Arg(fmt.Sprint(n), fmt.Sprint(ms.Milliseconds())).Build()).ToString()
	require.NoError(t, err)
	return hex.EncodeToString([]byte(ids))
}

func TestPermits(t *testing.T) {
	t.Parallel()
	for deployment, deploy := range map[string]func(t *testing.T) (addr string, dial func() rueidis.Client){
		"server": func(t *testing.T) (string, func() rueidis.Client) {
			s := redistest.Start(t)
			return s.Addr(), func() rueidis.Client { return s.Client(t) }
		},
		"cluster": func(t *testing.T) (string, func() rueidis.Client) {
			s := redistest.StartCluster(t, 3, 0)
			return s.Addrs()[0], func() rueidis.Client { return s.Client(t) }
		},
	} {
		t.Run(deployment, func(t *testing.T) {
			t.Parallel()
			const name = "p[x]:workers"
			addr, dial := deploy(t)
			rdb := dial()
			c, other, waits := newLocks(t, rdb), newLocks(t, dial()), newLocks(t, dial())
			say := func(args ...string) string {
				t.Helper()
				r := call(t, addr, args...)
				require.Empty(t, r.err)
				return r.out
			}
			sem := c.PermitSemaphore(name)
			require.NoError(t, sem.SetPermits(t.Context(), 3))
			require.Empty(t, say("ls"), "no holders, no waiters")
			require.Contains(t, say("show", name), "3 left, counter\n", "nothing says that it is a semaphore")

			_, p, err := sem.Acquire(t.Context())
			require.NoError(t, err)
			_, fixed, err := other.PermitSemaphore(name, rlock.WithLease(time.Hour)).Acquire(t.Context())
			require.NoError(t, err)
			require.Equal(t, name+"\tpermits\t2 held, 1 free\t0\tnone\n", say("ls"))
			require.Equal(t, "workers\tpermits\t2 held, 1 free\t0\tnone\n", say("ls", "-prefix", "p[x]:", "w*"))
			require.Empty(t, say("ls", "q*"))
			require.Regexp(t, `^lock         p\[x\]:workers
state        2 held, 1 free, permits
ttl          none
permit       `+p.ID()+`, slot 0, [123]\d\.\ds left, client `+c.ID()[:18]+`…
permit       `+fixed.ID()+`, slot 1, 3[56]\d\d\.\ds left, client `+other.ID()[:18]+`…
processes    0 listening
$`, say("show", name))

			var got *rlock.Permit
			ended := begin(t, waits, func(ctx context.Context) error {
				_, p, err := waits.PermitSemaphore(name).AcquireN(ctx, 2)
				got = p
				return err
			})
			var v view
			redistest.Eventually(t, patience, func() bool { // show reads the queue after it has counted the listeners
				v, _ = showJSON(t, addr, name)
				return len(v.Queue) == 1 && v.Processes == 1
			}, "it has its place")
			slot := func(n int64) *int64 { return &n }
			require.InDelta(t, 3_600_000, v.Permits[1].TTL, 600_000)
			v.Permits[0].TTL, v.Permits[1].TTL = 0, 0
			require.Equal(t, view{
				state: state{
					Name: name, Kind: "permits", Holders: []holder{}, Count: 1, TTL: -1, Acquired: 2,
					Permits: []permit{{ID: p.ID(), Slot: slot(0), Client: c.ID()[:18]}, {ID: fixed.ID(), Slot: slot(1), Client: other.ID()[:18]}},
				},
				Held: true, Processes: 1, Queue: []string{waits.ID()}, Wants: [][]int64{{2}},
			}, v)
			require.Contains(t, say("top"), name+"\t1\tpermits\t2 held, 1 free\t")
			require.Equal(t, 1, strings.Count(say("ls"), "\n"), "it is held and waited for, and listed once")

			r := call(t, addr, "unlock", "-force", "-yes", name)
			require.Equal(t, exitInternal, r.code)
			require.Contains(t, r.err, "the key does not hold a lock")

			w := start(t, nil, "watch", "-redis", addr, "-every", "50ms", name)
			w.saw("permits: 2 held, 1 free, ttl none")
			w.saw("held: permit " + p.ID() + ", slot 0")
			w.saw("held: permit " + fixed.ID() + ", slot 1")
			require.NoError(t, p.Release())
			require.NoError(t, <-ended)
			w.saw("released: permit " + p.ID())
			w.saw("acquired: permit " + got.ID() + ", slot 0")
			w.saw("3 held, 0 free")
			_, err = c.CountDownLatch("p[x]:parts").TrySetCount(t.Context(), 1)
			require.NoError(t, err)
			begin(t, waits, waits.CountDownLatch("p[x]:parts").Await) // a waiting process has a named connection
			require.Regexp(t, `permit       `+got.IDs()[1]+`, slot 2, \d+\.\ds left, client `+waits.ID()+` \(127\.0\.0\.1:\d+\)\n`, say("show", name))
			java := javaPermits(t, rdb, name, 1, 2*time.Second)
			require.NotContains(t, w.saw("acquired: permit "+java+", "), "slot")
			w.saw("lost: permit " + java + ": its lease ended")
			w.signal(syscall.SIGINT)
			require.Zero(t, w.rest().code)
		})
	}
}

// The permits of a name with braces have another form of key. Other keys with such names are not listed.
func TestPermitsOfNames(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		rdb := s.Client(t)
		c := newLocks(t, rdb)
		for _, name := range []string{"a", "{b}", "{b}:c"} {
			require.NoError(t, c.PermitSemaphore(name).SetPermits(t.Context(), 1))
			_, _, err := c.PermitSemaphore(name).Acquire(t.Context())
			require.NoError(t, err)
		}
		for _, key := range []string{"x:timeout", "{x}:timeout", "{{x}:timeout", "{y}:timeout"} {
			require.NoError(t, rdb.Do(t.Context(), rdb.B().Zadd().Key(key).ScoreMember().ScoreMember(1, "m").Build()).Error())
		}
		lock(t.Context(), t, c.Mutex("y"))
		row := func(name string) string { return name + "\tpermits\t1 held, 0 free\t0\tnone\n" }
		require.Regexp(t, "^"+row("a")+"y\tmutex\t.*\n"+regexp.QuoteMeta(row("{b}")+row("{b}:c"))+"$", call(t, s.Addr(), "ls").out)
		require.Equal(t, row("{b}")+row("{b}:c"), call(t, s.Addr(), "ls", "{b*").out)
		require.Equal(t, "rlock: stopped at -limit 2; there may be more\n", call(t, s.Addr(), "ls", "-limit", "2").err)
	})
}

// With any number of permits, reads and output stay bounded.
func TestManyPermits(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		rdb := s.Client(t)
		require.NoError(t, newLocks(t, rdb).PermitSemaphore("many").SetPermits(t.Context(), 0))
		javaPermits(t, rdb, "many", mostPermits+10, time.Hour)
		v, _ := showJSON(t, s.Addr(), "many")
		require.Equal(t, int64(mostPermits+10), v.Acquired)
		require.Len(t, v.Permits, mostPermits)
		require.Nil(t, v.Permits[0].Slot)
		text := call(t, s.Addr(), "show", "many").out
		require.Equal(t, mostLines+1, strings.Count(text, "\npermit "))
		require.Contains(t, text, fmt.Sprintf("\npermit       and %d more\n", mostPermits+10-mostLines))
		// Expired permits count as free: the next call removes them.
		javaPermits(t, rdb, "many", mostPermits+10, -time.Second)
		require.Contains(t, call(t, s.Addr(), "show", "many").out, "\nstate        0 held, 1010 free, permits\n")
	})
}

// A user without the right to read permits sees the number.
func TestPermitsWithFewRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("ACL", "SETUSER", "few", "on", ">pw", "~workers", "+hrandfield", "+getrange", "+pttl").Build()).Error())
	sem := newLocks(t, c).PermitSemaphore("workers")
	require.NoError(t, sem.SetPermits(t.Context(), 2))
	_, _, err := sem.Acquire(t.Context())
	require.NoError(t, err)
	v, code := showJSON(t, "redis://few:pw@"+s.Addr(), "workers")
	require.Zero(t, code)
	require.Equal(t, view{state: state{Name: "workers", Kind: "counter", Holders: []holder{}, Count: 1, TTL: -1}, Held: true, Processes: -1}, v)
}

func TestTakenPermits(t *testing.T) {
	t.Parallel()
	sees := func(acquired int64, ids ...string) *view {
		v := &view{state: state{Kind: permitKind, Acquired: acquired}}
		for _, id := range ids {
			v.Permits = append(v.Permits, permit{ID: id, TTL: 30_000})
		}
		return v
	}
	soon := sees(1, "a")
	soon.Permits[0].TTL = 400
	last := sees(1, "a") // in a look at 0.9 ms, and gone in one at 501.0 ms
	last.Permits[0].TTL = 501
	never := sees(1, "a")
	never.Permits[0].TTL = -1
	for name, c := range map[string]struct {
		before, now *view
		want        string
	}{
		"nothing":         {sees(1, "a"), sees(1, "a"), ""},
		"one for another": {sees(1, "a"), sees(1, "b"), "released a, acquired b"},
		"ran out":         {soon, sees(0), "expired a"},
		"ran out at last": {last, sees(0), "expired a"},
		"does not expire": {never, sees(0), "released a"},
		"too many before": {sees(2, "a"), sees(1, "b"), ""},
		"too many now":    {sees(1, "a"), sees(2, "b"), ""},
	} {
		var got []string
		for _, c := range taken(c.before, c.now, 500*time.Millisecond) {
			got = append(got, c.Event+" "+c.Permit)
		}
		require.Equal(t, c.want, strings.Join(got, ", "), name)
	}
}
