package rlock_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Each hold of the write side has its own token, shared by all its levels and by readers in its section, through
// whichever handle they ask. The counter is that of a FencedMutex. Readers draw no token, and a writer loses its token
// when it downgrades.
func TestFencingTokenOfAWriter(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		bg := context.Background()
		rw, other := b.FencedRWMutex(b.name), newClient(t, b.rdb).FencedRWMutex(b.name)
		has := func(ctx context.Context, want int64) {
			t.Helper()
			for how, token := range map[string]func(context.Context) (int64, bool){
				"by name": func(ctx context.Context) (int64, bool) { return rlock.FencingToken(ctx, b.name) },
				"write":   rw.Write().FencingToken, "read": rw.Read().FencingToken,
			} {
				got, ok := token(ctx)
				require.Equal(t, want, got, how)
				require.Equal(t, want != 0, ok, how)
			}
		}
		require.NoError(t, rw.Read().Do(bg, func(ctx context.Context) error {
			has(ctx, 0)
			return nil
		}))
		require.False(t, b.exists(t, "redisson_lock_token:{"+b.name+"}"), "readers draw no token")
		require.NoError(t, b.FencedMutex(b.name).Do(bg, nothing)) // draws token 1

		writer, unlock := enter(t, bg, rw.Write())
		has(writer, 2)
		again, unlockAgain := enter(t, writer, rw.Write())
		has(again, 2)
		reader, leave := enter(t, again, rw.Read())
		has(reader, 2)
		inside, unlockInside := enter(t, reader, b.Mutex(b.name+":2"))
		has(inside, 2)
		require.NoError(t, unlockInside())
		require.NoError(t, leave())
		require.NoError(t, unlockAgain())

		downgraded, leave, err := rw.Downgrade(writer)
		require.NoError(t, err)
		has(downgraded, 0)
		inside, unlockInside = enter(t, downgraded, b.Mutex(b.name+":2"))
		has(inside, 0)
		require.NoError(t, unlockInside())
		require.NoError(t, unlock())
		require.NoError(t, leave())

		require.NoError(t, other.Write().Do(bg, func(ctx context.Context) error {
			token, _ := other.Read().FencingToken(ctx)
			require.EqualValues(t, 3, token)
			_, ok := rw.Write().FencingToken(ctx)
			require.False(t, ok, "the hold belongs to another Client")
			has(rlock.Detach(ctx), 0)
			return nil
		}))
		u := rw.Upgradeable()
		require.NoError(t, u.Do(bg, func(ctx context.Context) error {
			has(ctx, 0)
			for want := int64(4); want < 6; want++ {
				require.NoError(t, u.UpgradeDo(ctx, func(ctx context.Context) error {
					has(ctx, want)
					return u.Do(ctx, func(ctx context.Context) error {
						has(ctx, want)
						return nil
					})
				}))
				has(ctx, 0)
			}
			return nil
		}))
		require.NoError(t, rlock.All(rw.Write(), b.Mutex(b.name+":2")).Do(bg, func(ctx context.Context) error {
			has(ctx, 6)
			return nil
		}))
		b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}")
		rwNothing(t, b.rdb, b.name)
	})
}

// Writers of a plain RWMutex with that name draw no tokens. A fenced level inside has Redis draw a token for the hold.
func TestFencedLevelOfAnUnfencedWriter(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		plain, fenced := b.RWMutex(b.name), b.FencedRWMutex(b.name)
		require.NoError(t, plain.Write().Do(context.Background(), func(outer context.Context) error {
			_, ok := rlock.FencingToken(outer, b.name)
			require.False(t, ok)
			require.False(t, b.exists(t, "redisson_lock_token:{"+b.name+"}"))
			require.NoError(t, fenced.Write().Do(outer, func(ctx context.Context) error {
				token, ok := rlock.FencingToken(ctx, b.name)
				require.True(t, ok)
				require.EqualValues(t, 1, token)
				return nil
			}))
			token, _ := rlock.FencingToken(outer, b.name)
			require.EqualValues(t, 1, token, "the token belongs to the hold")
			ticket := answer(rlock.Export(outer)).ok(t)
			ctx, unlock, err := b.Adopt(context.Background(), ticket)
			require.NoError(t, err)
			token, _ = rlock.FencingToken(ctx, b.name)
			require.EqualValues(t, 2, token, "the ticket carries a token, too")
			return unlock()
		}))
		b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}")
	})
}

// G6: the request or the reply of a writer's acquire is lost, with or without its connection: this writer draws one
// token, and so does the next.
func TestTokenOfALostReply(t *testing.T) {
	for leg, on := range legs {
		for _, action := range []redistest.Action{redistest.Cut, redistest.Drop} {
			for _, how := range []string{"free", "upgrade"} {
				redistest.RunVirtual(t, leg+"/"+string(action)+"/"+how, func(t *testing.T) {
					c, proxy, past := behindProxy(t, anyWay)
					bg := context.Background()
					warm := c.FencedRWMutex(past.name + "warm").Upgradeable() // loads the scripts
					require.NoError(t, warm.Do(bg, func(ctx context.Context) error { return warm.UpgradeDo(ctx, nothing) }))
					rw := c.FencedRWMutex(past.name)
					u := rw.Upgradeable()
					lock := func(ctx context.Context) error {
						return rw.Write().Do(ctx, func(ctx context.Context) error {
							token, _ := rlock.FencingToken(ctx, past.name)
							require.EqualValues(t, 1, token)
							return nil
						})
					}
					lost := redistest.Nth(1, "EVALSHA", action)
					if how == "upgrade" {
						require.NoError(t, u.Do(bg, func(ctx context.Context) error {
							on(proxy, lost)
							return u.UpgradeDo(ctx, lock)
						}))
					} else {
						on(proxy, lost)
						require.NoError(t, lock(bg))
					}
					require.NoError(t, past.FencedRWMutex(past.name).Write().Do(bg, func(ctx context.Context) error {
						token, _ := rlock.FencingToken(ctx, past.name)
						require.EqualValues(t, 2, token)
						return nil
					}))
				})
			}
		}
	}
}
