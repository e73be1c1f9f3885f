package calls

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// opaque hides its client.
type opaque struct {
	rueidis.CoreClient
	hidden
}

type hidden struct{ client func() rueidis.Client }

func (h hidden) Dedicated(f func(rueidis.DedicatedClient) error) error {
	return h.client().Dedicated(f)
}
func (h hidden) Dedicate() (rueidis.DedicatedClient, func()) { return h.client().Dedicate() }
func (h hidden) Nodes() map[string]rueidis.Client            { return h.client().Nodes() }
func (h hidden) Mode() rueidis.ClientMode                    { return h.client().Mode() }
func (h hidden) DoCache(ctx context.Context, cmd rueidis.Cacheable, ttl time.Duration) rueidis.RedisResult {
	return h.client().DoCache(ctx, cmd, ttl)
}

func (h hidden) DoMultiCache(ctx context.Context, all ...rueidis.CacheableTTL) []rueidis.RedisResult {
	return h.client().DoMultiCache(ctx, all...)
}

func (h hidden) DoStream(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResultStream {
	return h.client().DoStream(ctx, cmd)
}

func (h hidden) DoMultiStream(ctx context.Context, all ...rueidis.Completed) rueidis.MultiRedisResultStream {
	return h.client().DoMultiStream(ctx, all...)
}

func hide(rdb rueidis.Client) rueidis.Client {
	return opaque{rdb, hidden{func() rueidis.Client { return rdb }}}
}

// around is how rueidis's own wrappers have their clients.
type around struct {
	rueidis.CoreClient
	hidden
	client rueidis.Client
}

// tuple has several.
type tuple struct {
	rueidis.Client
	other *around
}

// Every client of rueidis says whether its connections have a lifetime, in wrappers, too. If that cannot be seen, it is taken for yes.
func TestWhoRepeats(t *testing.T) {
	s := redistest.Start(t)
	cluster, sentinel := redistest.StartCluster(t, 3, 0), redistest.StartSentinel(t)
	for name, dial := range map[string]func(...func(*rueidis.ClientOption)) rueidis.Client{
		"single":   func(o ...func(*rueidis.ClientOption)) rueidis.Client { return s.Client(t, o...) },
		"cluster":  func(o ...func(*rueidis.ClientOption)) rueidis.Client { return cluster.Client(t, o...) },
		"sentinel": func(o ...func(*rueidis.ClientOption)) rueidis.Client { return sentinel.Client(t, o...) },
		"standalone": func(o ...func(*rueidis.ClientOption)) rueidis.Client {
			return s.Client(t, append(o, func(o *rueidis.ClientOption) {
				o.Standalone.ReplicaAddress, o.SendToReplicas = o.InitAddress, func(rueidis.Completed) bool { return false }
			})...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			lasting, expiring := dial(), dial(func(o *rueidis.ClientOption) { o.ConnLifetime = time.Hour })
			require.Equal(t, nobody, repeatsOf(lasting))
			require.Equal(t, expiry, repeatsOf(expiring))
			for rdb, its := range map[rueidis.Client]repeats{lasting: wrapper, expiring: expiry} {
				require.Equal(t, its, repeatsOf(struct{ rueidis.Client }{rdb}))
				require.Equal(t, its, repeatsOf(&around{client: &around{client: rdb}}))
				require.Equal(t, its, repeatsOf(tuple{lasting, &around{client: rdb}}))
				require.Equal(t, its, repeatsOf(tuple{rdb, &around{client: lasting}}))
				require.Equal(t, expiry, repeatsOf(hide(rdb)))
			}
			require.Equal(t, expiry, repeatsOf(tuple{Client: lasting}), "what a nil pointer would call is unknown")
		})
	}
	itself := new(around)
	itself.client = itself
	require.Equal(t, expiry, repeatsOf(itself))
}

// A wrapper that derives a ctx of its own hides how often a command was sent. Then an answer that finds nothing counts as a repeat's, if
// rueidis may have sent one.
func TestHiddenRepeat(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	for its, may := range map[repeats]bool{nobody: false, wrapper: false, expiry: true} {
		c := New(rdb, net.ErrClosed)
		c.repeats = its
		ctx := c.Context(t.Context())
		own, cancel := context.WithTimeout(ctx, time.Minute)
		require.NoError(t, rdb.Do(own, rdb.B().Ping().Build()).Error())
		cancel()
		require.False(t, ctx.IsRepeated())
		require.Equal(t, may, ctx.MayBeRepeated())
	}
}

// What lua sends after an answer is another command. But the one that was answered may still run.
func TestAnsweredIsNoRepeat(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	c := New(struct{ rueidis.Client }{rdb}, net.ErrClosed)
	ctx := c.Context(t.Context())
	for range 3 {
		require.NoError(t, rdb.Do(ctx, rdb.B().Ping().Build()).Error())
		ctx.Answered()
		require.False(t, ctx.IsRepeated())
	}
	for range 2 {
		require.NoError(t, rdb.Do(ctx, rdb.B().Ping().Build()).Error())
	}
	ctx.Answered()
	require.True(t, ctx.IsRepeated() && ctx.MayBeRepeated())
}

// A command is sent once, however its connection came about: nothing else may be taken for a repeat, since an unlock of a hold that is gone
// would return nil.
func TestDialIsNoRepeat(t *testing.T) {
	s := redistest.Start(t)
	encrypted, _ := redistest.StartTLS(t, s.Addr())
	cluster := redistest.StartCluster(t, 3, 0)
	for name, row := range map[string]struct {
		option func(*rueidis.ClientOption)
	}{
		"as it is":      {option: func(*rueidis.ClientOption) {}},
		"with lifetime": {option: func(o *rueidis.ClientOption) { o.ConnLifetime = time.Hour }},
		"RESP2":         {option: func(o *rueidis.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true }},
		"pipelining":    {option: func(o *rueidis.ClientOption) { o.AlwaysPipelining = true }},
		"pool":          {option: func(o *rueidis.ClientOption) { o.DisableAutoPipelining = true }},
		"short dial":    {option: func(o *rueidis.ClientOption) { o.Dialer.Timeout = time.Second }},
		"dialler without a ctx": {option: func(o *rueidis.ClientOption) {
			o.DialFn = func(dst string, d *net.Dialer, _ *tls.Config) (net.Conn, error) { return d.Dial("tcp", dst) }
		}},
		"TLS": {option: func(o *rueidis.ClientOption) {
			o.InitAddress, o.TLSConfig = []string{encrypted}, &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a test's own server
		}},
		"cluster": {option: func(o *rueidis.ClientOption) { o.InitAddress = []string{cluster.Nodes()[0].Addr()} }},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := struct{ rueidis.Client }{s.Client(t, row.option)}
			c := New(rdb, net.ErrClosed)
			n := 0
			for round := range 2 {
				dials := true
				for i := range 64 {
					ctx := c.Context(t.Context())
					echo := rdb.B().Eval().Script("return ARGV[1]").Numkeys(1).Key("k" + strconv.Itoa(i)).Arg("x").Build()
					if rdb.Do(ctx, echo).Error() != nil {
						continue // its connection was killed
					}
					if !dials || name != "pool" { // which asks once more
						require.False(t, ctx.IsRepeated(), "round %d, command %d", round, i)
						n++
					}
					dials = false
				}
				for _, node := range rdb.Nodes() {
					_ = node.Do(t.Context(), node.B().ClientKill().TypeNormal().SkipmeNo().Build()) // they are dialled again
				}
			}
			require.True(t, n > 100, n)
		})
	}
}
