package calls

import (
	"crypto/tls"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// Only rueidis's own clients reveal whether their connections have a lifetime. Any other client is treated as if ConnLifetime were set.
func TestMayRepeat(t *testing.T) {
	s := redistest.Start(t)
	life := func(o *rueidis.ClientOption) { o.ConnLifetime = time.Hour }
	require.False(t, mayRepeat(s.Client(t)))
	require.True(t, mayRepeat(s.Client(t, life)))
	require.True(t, mayRepeat(struct{ rueidis.Client }{s.Client(t)}), "it cannot be seen through a wrapper")
	cl := redistest.StartCluster(t, 3, 0)
	require.False(t, mayRepeat(cl.Client(t)))
	require.True(t, mayRepeat(cl.Client(t, life)))
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
