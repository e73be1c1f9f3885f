package lua_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The expiries that tests distinguish: the key's expiry before a call, and the expiry requested by the call.
const (
	short = 20 * time.Second
	lease = 60 * time.Second
	long  = 180 * time.Second
)

const (
	me    = "11111111-2222-3333-4444-555555555555:7"
	other = "11111111-2222-3333-4444-555555555555:8"
)

// lab is a lock on a server, with helpers for tests.
type lab struct {
	t       *testing.T
	began   time.Time
	rdb     rueidis.Client
	name    string
	fence   string
	queue   string
	channel string
}

func newLab(t *testing.T, rdb rueidis.Client) lab {
	t.Helper()
	name := redistest.Name(t)
	in := func(prefix string) string { return prefix + ":{" + name + "}" } // the same slot
	return lab{t: t, began: time.Now(), rdb: rdb, name: name, fence: in("fence"), queue: in("queue"), channel: in("channel")}
}

func (l lab) do(cmd ...string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return l.rdb.Do(ctx, l.rdb.B().Arbitrary(cmd[0]).Keys(cmd[1]).Args(cmd[2:]...).Build())
}

func (l lab) must(cmd ...string) {
	l.t.Helper()
	require.NoError(l.t, l.do(cmd...).Error())
}

func (l lab) number(cmd ...string) int64 {
	l.t.Helper()
	n, err := l.do(cmd...).AsInt64()
	require.NoError(l.t, err)
	return n
}

// fields returns the hash, or texts for the key of another type.
func (l lab) fields() map[string]string {
	l.t.Helper()
	m, err := l.do("HGETALL", l.name).AsStrMap()
	if err != nil {
		kept, err := l.do("GET", l.name).ToString()
		require.NoError(l.t, err)
		return map[string]string{"": kept}
	}
	return m
}

func (l lab) requireFields(want map[string]string) {
	l.t.Helper()
	if want == nil {
		require.Empty(l.t, l.fields())
		return
	}
	require.Equal(l.t, want, l.fields())
}

// wants returns the acquire of an owner.
func (l lab) wants(owner string) lua.AcquireArgs {
	return lua.AcquireArgs{Name: l.name, Owner: owner, Lease: lease, Count: 1}
}

// frees returns the release of an owner.
func (l lab) frees(owner string) lua.ReleaseArgs {
	return lua.ReleaseArgs{Name: l.name, Owner: owner, Lease: lease, Publish: lua.Publish{Name: l.channel}}
}

// renews makes the call that renews the holds of these owners.
func (l lab) renews(ttl time.Duration, owners ...string) []lua.Renewal {
	l.t.Helper()
	var holds []lua.Hold
	for _, owner := range owners {
		holds = append(holds, lua.Hold{Name: l.name, Owner: owner})
	}
	got, err := lua.Renew(l.t.Context(), l.rdb, ttl, holds)
	require.NoError(l.t, err)
	return got
}

func (l lab) forces() bool {
	l.t.Helper()
	forced, err := lua.Force(l.t.Context(), l.rdb, l.name, lua.Publish{Name: l.channel})
	require.NoError(l.t, err)
	return forced
}

// ttl is the key's remaining time as Redis reports it: -1ms without an expiry, -2ms without a key.
func (l lab) ttl() time.Duration {
	l.t.Helper()
	return time.Duration(l.number("PTTL", l.name)) * time.Millisecond
}

// requireTTL checks an expiry: exactly if want is negative, otherwise at most want.
func (l lab) requireTTL(want time.Duration) {
	l.t.Helper()
	got := l.ttl()
	if want < 0 {
		require.Equal(l.t, want, got)
		return
	}
	require.True(l.t, l.remains(got, want), "%v of %v", got, want)
}

// remains reports whether so much may be left of an expiry that was set by this test. Redis rounds, and its clock may stand while it works.
func (l lab) remains(left, of time.Duration) bool {
	return left <= of && left > of-time.Since(l.began)-time.Second
}

const (
	noKey    = -2 * time.Millisecond
	noExpiry = -time.Millisecond
)

// hold makes the hash {owner: count}, with an expiry or without.
func (l lab) hold(owner, count string, ttl time.Duration) {
	l.t.Helper()
	l.must("HSET", l.name, owner, count)
	if ttl > 0 {
		l.must("PEXPIRE", l.name, strconv.FormatInt(ttl.Milliseconds(), 10))
	}
}

// A state is the key's content before a script.
type state func(l lab)

func absent(lab) {}

func holding(owner, count string, ttl time.Duration) state {
	return func(l lab) {
		l.t.Helper()
		l.hold(owner, count, ttl)
	}
}

// expired is a hold past its expiry.
func expired(owner string) state {
	return func(l lab) {
		l.t.Helper()
		l.hold(owner, "2", time.Millisecond)
		redistest.Eventually(l.t, 5*time.Second, func() bool { return l.number("EXISTS", l.name) == 0 }, "the key expires")
	}
}

func text(l lab) {
	l.t.Helper()
	l.must("SET", l.name, "no lock")
}

var texts = map[string]string{"": "no lock"}

// ear records the messages on a channel.
type ear struct {
	l       lab
	channel string
	sharded bool
	heard   chan string
}

// listen subscribes like a process in line, or about to be.
func (l lab) listen(sharded bool) *ear {
	l.t.Helper()
	return l.listenTo(l.channel, sharded, l.channel+":rlock_queue")
}

// outsider subscribes only to the unlock channel.
func (l lab) outsider(sharded bool) *ear {
	l.t.Helper()
	return l.listenTo(l.channel, sharded)
}

func (l lab) listenTo(channel string, sharded bool, beside ...string) *ear {
	l.t.Helper()
	e := &ear{l: l, channel: channel, sharded: sharded, heard: make(chan string, 100)}
	confirmed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	l.t.Cleanup(func() {
		cancel()
		<-ended
	})
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) {
		select {
		case confirmed <- struct{}{}:
		default:
		}
	})
	channels := append([]string{channel}, beside...)
	subscribe := l.rdb.B().Subscribe().Channel(channels...).Build()
	if sharded {
		subscribe = l.rdb.B().Ssubscribe().Channel(channels...).Build()
	}
	go func() { // ended by cancel
		defer close(ended)
		_ = l.rdb.Receive(hooked, subscribe, func(m rueidis.PubSubMessage) { e.heard <- m.Message })
	}()
	select {
	case <-confirmed:
	case <-time.After(10 * time.Second):
		l.t.Fatal("no subscription")
	}
	return e
}

const endMark = "end"

// said returns the messages since the last call; a mark ends them. The lock's node publishes the mark, as it did the script's messages
// before their replies. Messages of one node arrive in order, those of two nodes need not.
func (e *ear) said() []string {
	e.l.t.Helper()
	how := "publish"
	if e.sharded {
		how = "spublish"
	}
	const script = "return redis.call(ARGV[1], ARGV[2], ARGV[3])"
	cmd := e.l.rdb.B().Eval().Script(script).Numkeys(1).Key(e.l.name).Arg(how, e.channel, endMark).Build()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(e.l.t, e.l.rdb.Do(ctx, cmd).Error())
	var all []string
	for {
		select {
		case m := <-e.heard:
			if m == endMark {
				return all
			}
			all = append(all, m)
		case <-time.After(10 * time.Second):
			e.l.t.Fatal("the end mark was not delivered")
		}
	}
}

// servers runs test over RESP3, over RESP2, and on a cluster.
func servers(t *testing.T, test func(t *testing.T, l lab, sharded bool)) {
	t.Helper()
	t.Run("RESP3", func(t *testing.T) {
		t.Parallel()
		test(t, newLab(t, redistest.Dial(t, redistest.Shared(t))), false)
	})
	t.Run("RESP2", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Dial(t, redistest.Shared(t), func(o *rueidis.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true })
		test(t, newLab(t, rdb), false)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		l := newLab(t, c.Client(t))
		for _, name := range []string{l.fence, l.queue, l.channel, l.channel + ":" + client(1)} {
			require.Equal(t, c.Slot(t, l.name), c.Slot(t, name))
		}
		test(t, l, true)
	})
}

// A program restricted to FIPS 140 algorithms can import the package, although Redis names scripts by SHA-1, which FIPS 140 does not allow.
func TestImportUnderFIPS140(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=fips140=only")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}
