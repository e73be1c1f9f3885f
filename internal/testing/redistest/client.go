package redistest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// aWhile is how long a connection may take, where rueidis gives it five seconds: a machine that stands still takes these.
const aWhile = time.Minute

// Dial returns a client of the server at addr. Several addresses, separated by commas, make a cluster client. Each mod may change the
// options first. The test's clean-up closes the client.
func Dial(tb testing.TB, addr string, mod ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return dial(tb, rueidis.ClientOption{InitAddress: strings.Split(addr, ",")}, mod)
}

func dial(tb testing.TB, opt rueidis.ClientOption, mod []func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	opt.ReadBufferEachConn, opt.WriteBufferEachConn = 16<<10, 16<<10 // half a megabyte each takes the race detector a while
	opt.Dialer.Timeout = aWhile
	if w := worldOf(tb); w != nil {
		w.option(&opt)
	}
	for _, m := range mod {
		m(&opt)
	}
	c, err := rueidis.NewClient(opt)
	if err != nil {
		tb.Fatalf("redistest: connect to %v: %v", opt.InitAddress, err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Single is a Dial option: the client talks only to its address, even if that is a cluster node.
func Single(opt *rueidis.ClientOption) { opt.ForceSingleClient = true }
