package lua_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// fairOwner returns a fair lock's owner, each time of another process.
func fairOwner(i int) string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000:0%d", i, i) }

func (l lab) fair() lua.Fair {
	return lua.Fair{
		List: "list:{" + l.name + "}", Times: "times:{" + l.name + "}",
		Place: lease, GrantLease: 2 * time.Second, Counts: true,
	}
}

// endFair releases fair holds.
func (l lab) endFair(owners ...int) {
	l.t.Helper()
	for _, i := range owners {
		l.releases(l.endsFair(i))
	}
}

func (l lab) acquiresFair(i int) (lua.AcquireReply, error) {
	return lua.Acquire(l.t.Context(), l.rdb, lua.AcquireArgs{
		Name: l.name, Owner: fairOwner(i), Lease: lease, Count: 1, Fair: l.fair(), Join: true, Publish: lua.Publish{Name: l.channel},
	})
}

func (l lab) endsFair(i int) lua.ReleaseArgs {
	return lua.ReleaseArgs{Name: l.name, Owner: fairOwner(i), Fair: l.fair(), Publish: lua.Publish{Name: l.channel}}
}

// queueFair makes the first owner hold the lock and all others wait.
func (l lab) queueFair(n int) {
	l.t.Helper()
	for i := range n {
		got, err := l.acquiresFair(i)
		require.NoError(l.t, err)
		require.Equal(l.t, i > 0, got.Joined)
	}
}

// What a place in the queue costs Redis, to join and to get the lock, is the same however many wait.
func TestFairCostsOfAPlace(t *testing.T) {
	t.Parallel()
	costs := make(map[int]map[string]int64)
	for _, n := range []int{50, 200} {
		l := newLab(t, redistest.Start(t).Client(t))
		l.queueFair(2) // loads the script
		l.endFair(0, 1)
		l.queueFair(n)
		before := redistest.Commands(t, l.rdb)
		_, err := l.acquiresFair(n)
		require.NoError(t, err)
		l.endFair(0)
		costs[n] = make(map[string]int64)
		for command, count := range redistest.Commands(t, l.rdb) {
			if count > before[command] {
				costs[n][command] = count - before[command]
			}
		}
		delete(costs[n], "ping") // rueidis's
	}
	t.Log(costs[50])
	require.Equal(t, costs[50], costs[200])
}

func TestFairWithoutMemory(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Start(t).Client(t))
	l.queueFair(3)
	first := l.listenTo(l.channel+":"+fairOwner(1)[:36], false)
	l.must("CONFIG", "SET", "maxmemory", "1")

	_, err := l.acquiresFair(3)
	require.ErrorContains(t, err, "OOM", "no place for another waiter")
	require.EqualValues(t, 2, l.number("LLEN", l.fair().List))

	require.Equal(t, granted, l.releases(l.endsFair(0)))
	require.Equal(t, []string{fairOwner(1) + " 2000 0 -"}, first.said())
	require.Equal(t, notHeld, l.releases(l.endsFair(2)))
	require.Zero(t, l.number("EXISTS", l.fair().List, l.fair().Times))
}

// A user that may not publish to waiters still releases the lock, and gets an error.
func TestFairMayNotPublish(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	root := newLab(t, s.Client(t))
	root.must("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "resetchannels")
	l := root
	l.rdb = s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "mute", "x" })
	for _, n := range []int{1, 3} {
		l.queueFair(n)
		_, err := lua.Release(t.Context(), l.rdb, l.endsFair(0))
		require.ErrorContains(t, err, "release script: UNTOLD ")
		require.Equal(t, noKey, l.ttl())
		require.EqualValues(t, n-1, root.number("LLEN", l.fair().List), "they look by themselves")
	}
	got, err := l.acquiresFair(1)
	require.NoError(t, err)
	require.Equal(t, lua.Acquired, got.Status)
}

// ReleaseAll releases all kinds together.
func TestReleaseAllKinds(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for range 2 { // in the second round the server knows the scripts
		plain, fair := newLab(t, rdb), newLab(t, rdb)
		plain.hold(me, "1", short)
		fair.queueFair(2)
		got := lua.ReleaseAll(t.Context(), rdb, []lua.ReleaseArgs{
			{Name: plain.name, Owner: me, Publish: lua.Publish{Name: plain.channel}}, fair.endsFair(1), fair.endsFair(0),
		})
		for i, want := range []lua.Released{lua.Freed, lua.NotHeld, lua.Freed} {
			require.NoError(t, got[i].Err)
			require.Equal(t, want, got[i].Status)
		}
		require.Zero(t, fair.number("EXISTS", fair.name, plain.name, fair.fair().List))
	}
}

// While a slot moves to another node, Redis refuses a multi-key call if some keys do not exist. A release then continues without the queue.
func TestFairReleaseWithoutTheQueue(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	l := newLab(t, c.Client(t))
	l.queueFair(1)
	slot := c.Slot(t, l.name)
	from, _ := c.BeginMove(t, slot)
	ear := l.listen(false)
	require.Equal(t, lua.ReleaseReply{Status: lua.Freed, WithoutQueue: true}, l.releases(l.endsFair(0)))
	require.NoError(t, atNode(t, from, "CLUSTER", "SETSLOT", strconv.Itoa(int(slot)), "STABLE").Error()) // or the end mark would come from the other node
	require.Equal(t, []string{"0"}, ear.said())
}

func TestFairReplies(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	places := []lua.Place{{Name: "a", Owner: fairOwner(1)}, {Name: "a", Owner: fairOwner(2)}}
	for reply, want := range map[string]string{
		"*2\r\n:1\r\n:0\r\n":  "[1 2]",
		"*2\r\n:-1\r\n:1\r\n": "[3 1]",
		"*2\r\n:2\r\n:1\r\n":  "refresh script: unknown answer 2",
		"*1\r\n:1\r\n":        "refresh script: 1 answers for 2 holds",
		"+OK\r\n":             "refresh script: ",
	} {
		p.say(reply)
		got, err := lua.Refresh(t.Context(), c, lua.Fair{}, lua.Publish{}, places)
		text := fmt.Sprint(got)
		if err != nil {
			text = err.Error()
		}
		require.True(t, strings.HasPrefix(text, want), text)
		_, err = lua.ForceFair(t.Context(), c, "a", lua.Fair{}, lua.Publish{})
		require.ErrorContains(t, err, "force script: ")
	}
}

func TestFairWakeReplies(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	for reply, want := range map[string]string{
		"*1\r\n:1500\r\n":    "[1.5s] <nil>",
		"*1\r\n:0\r\n":       "[0s] <nil>",
		"*1\r\n:-1\r\n":      "[0s] <nil>",
		"*2\r\n:1\r\n:1\r\n": "[] refresh script: 2 answers for 1 looks",
		"+OK\r\n":            "[] refresh script: ",
	} {
		p.say(reply)
		again, err := lua.Wake(t.Context(), c, lua.Fair{}, lua.Publish{}, []lua.Place{{Name: "a"}})
		require.True(t, strings.HasPrefix(fmt.Sprint(again, " ", err), want), fmt.Sprint(again, " ", err))
	}
}

// A look at a lock says when the next one is due: when a lost hold ends, or the first waiter has had its time, but only if Redisson is behind
// it.
func TestFairWake(t *testing.T) {
	t.Parallel()
	const redisson = "ffffffff-0000-4000-8000-000000000001:1"
	for name, c := range map[string]struct {
		queue []string
		held  string // by whom
		want  time.Duration
	}{
		"empty":                           {},
		"of ours":                         {queue: []string{fairOwner(1), fairOwner(2)}},
		"Redisson alone":                  {queue: []string{redisson}},
		"Redisson, and ours behind it":    {queue: []string{redisson, fairOwner(1)}},
		"ours, and Redisson behind it":    {queue: []string{fairOwner(1), redisson}, want: lease},
		"ours, Redisson, and ours":        {queue: []string{fairOwner(1), redisson, fairOwner(2)}, want: lease},
		"two of Redisson's, and of ours":  {queue: []string{redisson, redisson + "2", fairOwner(2)}, want: lease},
		"held by the one that lost it":    {queue: []string{redisson}, held: fairOwner(0), want: long},
		"held by another":                 {queue: []string{fairOwner(1), redisson}, held: fairOwner(3)},
		"an empty queue of the held lock": {held: fairOwner(0), want: long},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
			f := l.fair()
			f.Counts = false // they live
			behind := 0
			for _, owner := range c.queue {
				lasts := lease + time.Duration(behind)*300*time.Second
				if strings.HasPrefix(owner, redisson) {
					behind++
					lasts = time.Duration(behind) * 300 * time.Second
				}
				l.must("RPUSH", f.List, owner)
				l.must("ZADD", f.Times, strconv.FormatInt(time.Now().Add(lasts).UnixMilli(), 10), owner)
			}
			if c.held != "" {
				l.hold(c.held, "1", long)
			}
			look := lua.Place{Name: l.name, Owner: fairOwner(0), List: f.List, Times: f.Times, Channel: l.channel}
			free := lua.Place{Name: "{" + l.name + "}:free", List: "{" + l.name + "}:list", Times: "{" + l.name + "}:times", Channel: "free"}
			all, err := lua.Wake(t.Context(), l.rdb, f, lua.Publish{}, []lua.Place{free, look})
			require.NoError(t, err)
			require.Zero(t, all[0])
			again := all[1]
			require.LessOrEqual(t, again, c.want)
			require.GreaterOrEqual(t, again, c.want-time.Since(l.began)-time.Second)
			require.Equal(t, c.want > 0, again > 0)
			l.must("DEL", l.name)
			l.must("DEL", f.List)
			l.must("DEL", f.Times)
		})
	}
}

// queueOf makes the queue that n waiters of this library, joining behind r Redisson waiters, would make.
func (l lab) queueOf(r, n int) {
	l.t.Helper()
	const script = `
local now = redis.call('time')[1] * 1000
for i = 1, ARGV[1] do
  local entry = string.format('ffffffff-0000-4000-8000-%012x:%d', i, i)
  redis.call('rpush', KEYS[1], entry)
  redis.call('zadd', KEYS[2], now + 300000 * i, entry)
end
for i = 1, ARGV[2] do
  local entry = string.format('%08x-0000-4000-8000-000000000000:0%d', i, i)
  redis.call('rpush', KEYS[1], entry)
  redis.call('zadd', KEYS[2], now + 300000 * ARGV[1] + 4000, entry)
end`
	f := l.fair()
	cmd := l.rdb.B().Eval().Script(script).Numkeys(2).Key(f.List, f.Times).Arg(strconv.Itoa(r), strconv.Itoa(n)).Build()
	require.True(l.t, rueidis.IsRedisNil(l.rdb.Do(l.t.Context(), cmd).Error()))
	l.hold(fairOwner(0), "1", long)
}

// refreshes renews the waiters' places, in calls like those of a process.
func (l lab) refreshes(owners ...int) (all []lua.Renewal) {
	l.t.Helper()
	f := l.fair()
	for batch := range slices.Chunk(owners, 100) {
		var places []lua.Place
		for _, i := range batch {
			places = append(places, lua.Place{Name: l.name, Owner: fairOwner(i), List: f.List, Times: f.Times, Channel: l.channel})
		}
		got, err := lua.Refresh(l.t.Context(), l.rdb, f, lua.Publish{}, places)
		require.NoError(l.t, err)
		all = append(all, got...)
	}
	return all
}

// lasts returns the remaining time of a waiter's place.
func (l lab) lasts(i int) time.Duration {
	l.t.Helper()
	score, err := l.do("ZSCORE", l.fair().Times, fairOwner(i)).AsFloat64()
	require.NoError(l.t, err)
	now, err := l.rdb.Do(l.t.Context(), l.rdb.B().Time().Build()).AsStrSlice()
	require.NoError(l.t, err)
	seconds, err := strconv.ParseFloat(now[0], 64)
	require.NoError(l.t, err)
	return time.Duration((score/1000 - seconds) * float64(time.Second))
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i + 1
	}
	return all
}

// Refreshing ten times as many places costs ten times as much, also behind Redisson waiters.
func TestFairPlacesCostByTheirNumber(t *testing.T) {
	t.Parallel()
	const few, many = 1000, 10_000
	rdb := redistest.Start(t).Client(t)
	cost := func(redissons, n, rounds int) float64 {
		l := newLab(t, rdb)
		l.queueOf(redissons, n)
		before := usedCPU(t, rdb)
		for range rounds {
			require.NotContains(t, fmt.Sprint(l.refreshes(upTo(n)...)), fmt.Sprint(lua.Gone))
		}
		return usedCPU(t, rdb) - before
	}
	for _, redissons := range []int{0, 2} {
		cost(redissons, few, 1)
		a, b := cost(redissons, few, many/few), cost(redissons, many, 1)
		t.Logf("behind %d of Redisson's: %.3f s for %d, %.3f s for %d", redissons, a, few, b, many)
		require.Less(t, b, 3*a)
	}
}

// usedCPU returns the CPU time of a server in seconds.
func usedCPU(t *testing.T, rdb rueidis.Client) (used float64) {
	t.Helper()
	text, err := rdb.Do(t.Context(), rdb.B().Info().Section("cpu").Build()).ToString()
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && (name == "used_cpu_sys" || name == "used_cpu_user") {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			used += seconds
		}
	}
	return used
}

// Behind Redisson waiters a place lasts longer, by the time that each of them may subtract from it. Far back in the queue, the stored time
// is used unchanged.
func TestFairPlacesBehindRedisson(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	const redissonWait = 300 * time.Second
	l.queueOf(2, 2000)
	// A Redisson waiter has left, and the places have lost some of their time.
	leaves := func(waiter, lost string) {
		t.Helper()
		l.must("LPOP", l.fair().List)
		l.must("ZREM", l.fair().Times, waiter)
		for _, i := range []int{1, 900, 1900} {
			l.must("ZINCRBY", l.fair().Times, lost, fairOwner(i))
		}
		l.refreshes(1, 900, 1900)
	}
	requireLasts := func(i int, want time.Duration) {
		t.Helper()
		got := l.lasts(i)
		require.LessOrEqual(t, got, want+time.Second)
		require.Greater(t, got, want-time.Since(l.began)-time.Second)
	}
	l.refreshes(1, 900, 1900)
	for _, i := range []int{1, 900, 1900} {
		requireLasts(i, 2*redissonWait+lease)
	}
	// One that accepted a shorter wait gives up: places that are not far back are corrected.
	leaves("ffffffff-0000-4000-8000-000000000001:1", "-20000")
	requireLasts(1, redissonWait+lease)
	requireLasts(900, redissonWait+lease)
	requireLasts(1900, 2*redissonWait+lease)
	// The other one had the lock.
	leaves("ffffffff-0000-4000-8000-000000000002:2", "-300000")
	requireLasts(1, lease)
	requireLasts(900, lease)
	requireLasts(1900, redissonWait+lease)
	had := []string{"ZREM", l.fair().Times}
	for _, i := range upTo(1000) {
		had = append(had, fairOwner(i))
	}
	l.must(had...)
	l.must("LTRIM", l.fair().List, "1000", "-1")
	l.refreshes(1900)
	requireLasts(1900, lease)
}
