package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// effect is what a call does to a lock in some state, and what its repeats do.
type effect struct {
	name   string
	at     state
	count  int
	want   any    // the reply, without the token
	again  any    // the reply to a repeat; nil: the same
	err    string // beside the reply, or a zero one
	fields map[string]string
	ttl    time.Duration
	said   []string // the messages of the first call; repeats send none
	raised calling  // which calls raise the fencing counter, if they want a token
}

type calling int

const (
	noCall calling = iota
	firstCall
	eachCall
)

// effects makes a call and two repeats in each state, with and without tokens if the script gives some.
func effects(t *testing.T, script string, tokens bool, all []effect, call func(l lab, e effect, fence string) (any, error)) {
	t.Helper()
	rdb := redistest.Dial(t, redistest.Shared(t))
	variants := []bool{false}
	if tokens {
		variants = append(variants, true)
	}
	for _, e := range all {
		for _, fenced := range variants {
			t.Run(fmt.Sprintf("%s/fenced=%v", e.name, fenced), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, rdb)
				e.at(l)
				l.must("SET", l.fence, "41")
				fence, token := "", int64(41)
				if fenced {
					fence = l.fence
				}
				ear, want, said := l.listen(false), e.want, e.said
				for i := range 3 {
					if fenced && (e.raised == eachCall || e.raised == firstCall && i == 0) {
						token++
					}
					got, err := call(l, e, fence)
					if e.err == "" {
						require.NoError(t, err)
						require.Equal(t, withToken(want, fenced, token), got)
						require.Equal(t, token, l.number("GET", l.fence))
					} else {
						requireSaid(t, err, script+" script: ", e.err)
						if want == nil {
							require.Zero(t, got)
						} else {
							require.Equal(t, want, got)
						}
					}
					l.requireFields(e.fields)
					l.requireTTL(e.ttl)
					require.Equal(t, said, ear.said())
					if said = nil; e.again != nil {
						want = e.again
					}
				}
			})
		}
	}
}

// withToken adds the token to a reply that has one.
func withToken(reply any, fenced bool, token int64) any {
	switch r := reply.(type) {
	case lua.AcquireReply:
		if fenced && r.Status == lua.Acquired {
			r.Token = token
		}
		return r
	case lua.ReleaseReply:
		if fenced && r.Status == lua.HandedOff {
			r.Token = token
		}
		return r
	}
	return reply
}

// requireSaid requires an error of the server.
func requireSaid(t *testing.T, err error, says ...string) {
	t.Helper()
	var said *rueidis.RedisError
	require.ErrorAs(t, err, &said)
	for _, text := range says {
		require.ErrorContains(t, err, text)
	}
}
