package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestToken(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	m := newLocks(t, rdb).FencedMutex("job")
	given := func() int64 {
		t.Helper()
		ctx, unlock := lock(t.Context(), t, m)
		defer func() { require.NoError(t, unlock()) }()
		token, ok := rlock.FencingToken(ctx, "job")
		require.True(t, ok)
		return token
	}
	token := func(args ...string) result { return call(t, s.Addr(), append([]string{"token"}, args...)...) }
	require.Equal(t, result{0, "0\n", ""}, token("job"))
	require.EqualValues(t, 1, given())
	require.Equal(t, result{0, "1\n", ""}, token("job"))
	require.Equal(t, result{0, "41\n", ""}, token("job", "-at-least", "41"))
	require.EqualValues(t, 42, given())
	require.Equal(t, result{0, "42\n", ""}, token("-at-least", "7", "job"), "never lowered")
	require.EqualValues(t, 43, given())
	require.Regexp(t, `(?m)^token        43$`, call(t, s.Addr(), "show", "job").out, "of a free lock, too")
	most := strconv.FormatInt(mostToken, 10)
	require.Equal(t, result{0, most + "\n", ""}, token("another", "-at-least", most))
	last, unlock := lock(t.Context(), t, newLocks(t, rdb).FencedMutex("another"))
	highest, _ := rlock.FencingToken(last, "another")
	require.Equal(t, int64(mostToken+1), highest, "it can still be locked")
	require.NoError(t, unlock())
	require.Equal(t, "0\n", token("-prefix", "p:", "job").out)
	require.Equal(t, "5\n", token("-prefix", "p:", "-at-least", "5", "{job}").out)
	got, err := rdb.Do(t.Context(), rdb.B().Get().Key("redisson_lock_token:p:{job}").Build()).ToString()
	require.NoError(t, err)
	require.Equal(t, "5", got)

	for _, least := range []string{"0", "-1", "9007199254740991", "9007199254740992", "x", ""} {
		require.Equal(t, exitUsage, token("-at-least", least, "job").code, least)
	}
	for name, cmd := range map[string][]string{
		"hash": {"HSET", "redisson_lock_token:{hash}", "a", "1"}, "text": {"SET", "redisson_lock_token:{text}", "many"},
		"less": {"SET", "redisson_lock_token:{less}", "-3"}, "half": {"SET", "redisson_lock_token:{half}", "1.5"},
	} {
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary(cmd...).Build()).Error())
		before, err := rdb.Do(t.Context(), rdb.B().Dump().Key("redisson_lock_token:{"+name+"}").Build()).ToString()
		require.NoError(t, err)
		for _, args := range [][]string{{name}, {name, "-at-least", "9"}} {
			r := token(args...)
			require.Equal(t, exitInternal, r.code, name)
			require.Equal(t, fmt.Sprintf("rlock: %s: %q: its counter is not a token\n", s.Addr(), name), r.err)
		}
		after, err := rdb.Do(t.Context(), rdb.B().Dump().Key("redisson_lock_token:{"+name+"}").Build()).ToString()
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
}

// Concurrent raises and Locks lose nothing: no token is issued twice.
func TestTokenIsRaisedAtomically(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		m := newLocks(t, s.Client(t)).FencedMutex("job")
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for j := range 10 {
					r := call(t, s.Addr(), "token", "job", "-at-least", strconv.Itoa(100*j+i+1))
					now, err := strconv.Atoi(strings.TrimSpace(r.out))
					if err != nil || now < 100*j+i+1 {
						t.Errorf("%d: %+v", 100*j+i+1, r)
					}
				}
			})
		}
		raised := make(chan struct{})
		go func() { // ends with the raises
			wg.Wait()
			close(raised)
		}()
		for last, done := int64(0), false; !done; {
			select {
			case <-raised:
				done = true
			default:
			}
			ctx, unlock, err := m.Lock(t.Context())
			require.NoError(t, err)
			token, _ := rlock.FencingToken(ctx, "job")
			require.Greater(t, token, last)
			last = token
			require.NoError(t, unlock())
		}
	})
}

// A FencedRWMutex's writer counts as well, and show and watch print its token; readers have none.
func TestTokenOfAWriter(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	locks := newLocks(t, s.Client(t))
	rw := locks.FencedRWMutex("job")
	w := start(t, nil, "watch", "-redis", s.Addr(), "-every", "50ms", "job")
	w.saw("free")
	require.Equal(t, result{0, "41\n", ""}, call(t, s.Addr(), "token", "job", "-at-least", "41"))
	ctx, unlock := lock(t.Context(), t, rw.Write())
	w.saw("acquired by " + rlock.Owner(ctx) + ", token 42")
	require.Equal(t, result{0, "42\n", ""}, call(t, s.Addr(), "token", "job"))
	v, _ := showJSON(t, s.Addr(), "job")
	require.Equal(t, "write", v.Kind)
	require.EqualValues(t, 42, v.Token)
	require.NoError(t, unlock())
	ctx, unlock = lock(t.Context(), t, rw.Read())
	require.NotContains(t, w.saw("acquired by "+rlock.Owner(ctx)), "token")
	require.NoError(t, unlock())
}
