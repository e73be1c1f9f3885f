package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	_ "github.com/go-rlock/rlock/rlocktest" // the server of the virtual world
)

// fault is something that happens between a client and its server, or to the server, and what a client sees of it.
type fault struct {
	begin func(s *redistest.Server, p *redistest.Proxy)
	end   func(s *redistest.Server, p *redistest.Proxy)
	fails bool   // a GET meanwhile
	lost  bool   // the data, afterwards
	says  string // the error
}

// The two worlds have the same faults, and their servers come back in the same way: whichever world a test runs in, it sees the same.
func TestWorldsHaveTheSameFaults(t *testing.T) {
	faults := map[string]fault{
		"none": {
			begin: func(*redistest.Server, *redistest.Proxy) {},
			end:   func(*redistest.Server, *redistest.Proxy) {},
		},
		"delay": {
			begin: func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(10 * time.Millisecond) },
			end:   func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(0) },
		},
		"cut": {
			begin: func(_ *redistest.Server, p *redistest.Proxy) { p.CutAll() },
			end:   func(*redistest.Server, *redistest.Proxy) {},
		},
		"black hole": {
			begin: func(_ *redistest.Server, p *redistest.Proxy) { p.BlackHole(true) },
			end:   func(_ *redistest.Server, p *redistest.Proxy) { p.BlackHole(false) },
			fails: true,
		},
		"refused": {
			begin: func(_ *redistest.Server, p *redistest.Proxy) { p.Refuse(true); p.CutAll() },
			end:   func(_ *redistest.Server, p *redistest.Proxy) { p.Refuse(false) },
			fails: true,
		},
		"refused by Redis": {
			begin: func(_ *redistest.Server, p *redistest.Proxy) {
				p.OnRequest(redistest.Nth(1, "GET", redistest.Fail("ERR no")))
			},
			end:   func(*redistest.Server, *redistest.Proxy) {},
			fails: true, says: "no",
		},
		"paused": {
			begin: func(s *redistest.Server, _ *redistest.Proxy) { s.Pause() },
			end:   func(s *redistest.Server, _ *redistest.Proxy) { s.Resume() },
			fails: true,
		},
		"stopped": {
			begin: func(s *redistest.Server, _ *redistest.Proxy) { s.Stop() },
			end:   func(s *redistest.Server, _ *redistest.Proxy) { s.Restart() },
			fails: true, lost: true,
		},
	}
	for world, run := range map[string]func(*testing.T, func(*testing.T)){
		"virtual": func(t *testing.T, test func(*testing.T)) {
			redistest.OnlyVirtual(t, "it is about the virtual world", test)
		},
		"real": func(t *testing.T, test func(*testing.T)) { redistest.Parallel(t); test(t) },
	} {
		for name, f := range faults {
			t.Run(world+"/"+name, func(t *testing.T) { run(t, f.test) })
		}
	}
}

func (f fault) test(t *testing.T) {
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr())
	rdb := redistest.Dial(t, p.Addr(), func(o *rueidis.ClientOption) { o.DisableRetry = true })
	get := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return rdb.Do(ctx, rdb.B().Get().Key("k").Build()).ToString()
	}
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key("k").Value("v").Build()).Error())
	f.begin(s, p)
	redistest.Eventually(t, testTimeout, func() bool { // a connection that was cut fails one command
		v, err := get()
		return (err != nil) == f.fails && (err != nil || v == "v") && (f.says == "" || err.Error() == f.says)
	}, "what a client sees meanwhile")
	f.end(s, p)
	redistest.Eventually(t, testTimeout, func() bool {
		v, err := get()
		return f.lost && rueidis.IsRedisNil(err) || !f.lost && err == nil && v == "v"
	}, "what a client sees afterwards")
	require.Positive(t, s.Connections(t))
}
