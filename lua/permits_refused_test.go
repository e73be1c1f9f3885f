package lua_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

func TestPermitsForeign(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s permits){
		"hash":     func(s permits) { s.must("HSET", s.name, "a", "1") },
		"text":     func(s permits) { s.must("SET", s.name, "three") },
		"places":   func(s permits) { s.set(3); s.must("SET", s.requests, "a") },
		"queue":    func(s permits) { s.set(3); s.must("SET", s.queue, "a") },
		"timeouts": func(s permits) { s.set(3); s.must("SET", s.timeouts, "a") },
		"slots":    func(s permits) { s.set(3); s.must("SET", s.slots, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sharedPermits(t)
			spoil(s)
			before, err := s.do("DUMP", s.name).ToString()
			require.NoError(t, err)
			a := s.request(1)
			a.N, a.Wants, a.IDs, a.Release, a.Waits = 1, []int64{1}, ids(1, 1), ids(2, 2), true
			_, err = lua.UsePermits(t.Context(), s.rdb, a)
			require.ErrorIs(t, err, lua.ErrNoCounter)
			after, err := s.do("DUMP", s.name).ToString()
			require.NoError(t, err)
			require.Equal(t, before, after)
		})
	}
	s := sharedPermits(t)
	s.must("SET", s.timeouts, "a")
	_, err := lua.LookPermits(t.Context(), s.rdb, s.semaphore(), nil)
	require.ErrorIs(t, err, lua.ErrNoCounter)
	_, err = lua.SetPermitLease(t.Context(), s.rdb, s.semaphore(), id(1), lease)
	require.ErrorIs(t, err, lua.ErrNoCounter)
}

// Impossible requests are never sent.
func TestPermitsBadCalls(t *testing.T) {
	t.Parallel()
	s := sharedPermits(t)
	s.set(5000)
	for _, change := range []func(a *lua.PermitsArgs){
		func(a *lua.PermitsArgs) { a.IDs = ids(1, 2) },
		func(a *lua.PermitsArgs) { a.Wants, a.IDs = []int64{1001}, ids(1, 1001) },
		func(a *lua.PermitsArgs) { a.Release = ids(1, 1001) },
	} {
		a := s.request(1)
		change(&a)
		_, err := lua.UsePermits(t.Context(), s.rdb, a)
		require.Error(t, err)
	}
	s.take(1, ids(1, 1000)...)
	s.give(1, ids(1, 1000)...)
	s.requirePermits(5000, 0)
}

// The commands needed by permit scripts, in addition to those of semaphores.
var permitsCommands = append([]string{"zinterstore", "zrangebyscore", "zscore"}, semaphoreCommands...)

func TestPermitsRights(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := newPermits(t, srv.Client(t))
	limited := s.limited(srv.Addr(), permitsCommands, s.name, s.requests+"*", s.queue+"*", s.timeouts, s.slots)
	everything := func() error {
		s.must("DEL", s.name)
		s.must("DEL", s.timeouts)
		p := id(99)
		s.must("ZADD", s.slots, "1", string(p[:]))
		total, take, give := s.request(1), s.request(1), s.request(1)
		total.Change, total.N = lua.SetTotal, 2
		take.Wants, take.IDs, take.Waits = []int64{1, 1, 1}, ids(1, 3), true
		give.Release, give.Waits = ids(1, 2), true
		var errs []error
		use := func(a lua.PermitsArgs) {
			_, err := lua.UsePermits(t.Context(), limited, a)
			errs = append(errs, err)
		}
		use(total)
		use(take)
		s.expire(0, id(2))
		_, err1 := lua.SetPermitLease(t.Context(), limited, s.semaphore(), id(1), lease)
		_, err2 := lua.RenewPermits(t.Context(), limited, lease, []lua.PermitsToRenew{{s.timeouts, ids(1, 1)}})
		_, err3 := lua.LookPermits(t.Context(), limited, s.semaphore(), nil)
		use(give)
		return errors.Join(append(errs, err1, err2, err3)...)
	}
	require.NoError(t, everything())
	for _, command := range permitsCommands[:3] {
		s.forbid(command)
		err := fmt.Sprint(everything())
		require.True(t, strings.Contains(err, "permission") || strings.Contains(err, "run this command"), "%s: %v", command, err)
		s.must("ACL", "SETUSER", "limited", "+"+command)
		require.NoError(t, everything())
	}
}
