package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Members may be of any type, and are locked in the fixed order. A member's error is returned, and then no lock is kept.
func TestAllOfOtherLockers(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		f := &fakeLocker{name: b.name + ":b"}
		m := rlock.All(b.Mutex(b.name+":c"), f, b.Mutex(b.name+":a"), f)
		require.Equal(t, "All("+b.name+":a, "+b.name+":b, "+b.name+":c)", m.Name())
		require.NoError(t, m.Do(context.Background(), func(ctx context.Context) error {
			require.NotNil(t, ctx.Value(f), "its ctx is part of the section's")
			return nil
		}))
		require.Equal(t, 1, f.unlocked)
		g := &fakeLocker{name: b.name + ":d"}
		two := rlock.All(valueLocker{f, nil}, valueLocker{g, nil})
		require.NoError(t, two.Do(context.Background(), nothing), "not comparable")
		require.Equal(t, []int{2, 1}, []int{f.unlocked, g.unlocked})
		f.err = errors.New("out of order")
		require.ErrorIs(t, m.Do(context.Background(), func(context.Context) error { panic("not held") }), f.err)
		require.False(t, b.exists(t, b.name+":a"))
		require.False(t, b.exists(t, b.name+":c"))
	})
}

type valueLocker struct {
	*fakeLocker

	_ []string
}

type fakeLocker struct {
	name     string
	err      error
	unlocked int
}

func (f *fakeLocker) Name() string { return f.name }

func (f *fakeLocker) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return f.TryLock(ctx, 1)
}

func (f *fakeLocker) TryLock(ctx context.Context, _ time.Duration) (context.Context, rlock.UnlockFunc, error) {
	if f.err != nil {
		return ctx, func() error { return rlock.ErrNotHeld }, f.err
	}
	return context.WithValue(ctx, f, f.name), func() error { f.unlocked++; return nil }, nil
}

// refusedAtTheEnd is a lock whose ctx is done in the moment after it was refused.
type refusedAtTheEnd struct {
	*rlock.Mutex

	end context.CancelFunc
}

func (r refusedAtTheEnd) TryLock(ctx context.Context, wait time.Duration) (context.Context, rlock.UnlockFunc, error) {
	defer r.end()
	return r.Mutex.TryLock(ctx, wait)
}

// The error names the cancellation and the lock's holder, whenever ctx ended.
func TestAllCancelledBetweenTwoAttempts(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		hold := locked(t, b.Mutex(b.name))
		ctx, cancel := context.WithCancel(context.Background())
		_, _, err := rlock.All(refusedAtTheEnd{newClient(t, b.rdb).Mutex(b.name), cancel}).Lock(ctx)
		var refused *rlock.NotAcquiredError
		require.ErrorAs(t, err, &refused)
		require.NotEmpty(t, refused.Holder)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, hold.unlock())
	})
}

// Each call returns a one-line error that names the member that cannot be locked.
func TestAllOfNothing(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		good := b.Mutex(b.name)
		rw := b.RWMutex(b.name)
		all := fmt.Sprintf("rlock: %q: ", "All("+b.name+", nil, x)")
		for want, m := range map[string]*rlock.MultiMutex{
			`rlock: "All()": no locks were given`:                      rlock.All(),
			all + "lock 2 of 3 is nil or empty":                        rlock.All(good, nil, b.Mutex("x")),
			all + "lock 1 of 3 is nil or empty":                        rlock.All((*rlock.Mutex)(nil), b.Mutex("x"), good),
			"lock 1 of 2 is nil or empty":                              rlock.All((*rlock.MultiMutex)(nil), good),
			"lock 2 of 4 is nil or empty":                              rlock.All(good, (*rlock.Upgradeable)(nil), nil, nil),
			"lock 2 of 5 is nil or empty":                              rlock.All(good, (*rlock.QuorumMutex)(nil), nil, nil, nil),
			"lock 1 of 4 is nil or empty":                              rlock.All((*fakeLocker)(nil), nil, nil, nil),
			"lock 1 of 3 is nil or empty":                              rlock.All(new(rlock.Mutex), good, good),
			"lock 2 of 6 is nil or empty":                              rlock.All(good, new(rlock.MultiMutex), nil, nil, nil, nil),
			"lock 1 of 5 is nil or empty":                              rlock.All(new(rlock.Upgradeable), nil, nil, nil, nil),
			"lock 1 of 6 is nil or empty":                              rlock.All(new(rlock.QuorumMutex), nil, nil, nil, nil, nil),
			"lock 1 of 1 is nil or empty":                              rlock.All(good, rlock.All(nil)),
			"the name is empty":                                        rlock.All(good, b.Mutex("")),
			`"": the name is empty`:                                    rlock.All(good, b.RWMutex("").Upgradeable()),
			"a quorum of 1":                                            rlock.All(good, rlock.Quorum(good)),
			`"` + b.name + `": WithLease is 0s, want at least 1ms`:     rlock.All(good, b.Mutex(b.name, rlock.WithLease(0))),
			"is given as a read/write lock and as one of another kind": rlock.All(good, rw.Read()),
			`"` + b.name + `" is given as a read/write lock`:           rlock.All(rw.Write(), b.FairMutex(b.name), rw.Read()),
			`"` + b.name + `" is given as a read/write lock and`:       rlock.All(rw.Upgradeable(), b.Mutex(b.name)),
		} {
			err := m.Do(context.Background(), func(context.Context) error { panic("not held") })
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "\n")
			_, _, again := m.TryLock(context.Background(), 0)
			require.EqualError(t, again, err.Error())
		}
		require.False(t, b.exists(t, b.name))
		require.Panics(t, func() { _ = new(rlock.MultiMutex).Name() })
		require.Panics(t, func() { _, _, _ = rlock.All(good).Lock(nil) }) //nolint:staticcheck // the mistake in question
	})
}

// A key with other data is an error that names its lock. The other locks are released.
func TestAllWithABadMember(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		names := numbered(b.name, 3)
		m := rlock.All(mutexes(b.Client, names...)...)
		for want, cmd := range map[string][]string{
			"not a lock":        {"HSET", names[1], "customer", "7"},
			"holds another typ": {"SET", names[1], "7"},
		} {
			b.do(t, cmd...)
			err := m.Do(context.Background(), func(context.Context) error { panic("not held") })
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, fmt.Sprintf("rlock: %q: ", names[1]))
			require.False(t, b.exists(t, names[0]))
			require.False(t, b.exists(t, names[2]))
			b.do(t, "DEL", names[1])
		}
	})
}
