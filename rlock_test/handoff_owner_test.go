package rlock_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// I-retire: the waiter's owner ends its last hold while the lock is on its way to it. It gets the lock as
// another owner, and nothing is left of the first; nor is anything if it has gone by then.
func TestHandOffToARetiredOwner(t *testing.T) {
	redistest.Parallel(t)
	for _, goes := range []bool{false, true} {
		t.Run(map[bool]string{false: "waits", true: "goes"}[goes], func(t *testing.T) {
			redistest.Parallel(t)
			r := newRelay(t, rlock.Options{HandOff: never})
			m := r.Mutex(r.name)
			out, unlockOut, err := r.other.Mutex(r.name + ":outer").Lock(context.Background())
			require.NoError(t, err)
			a, line := r.line(t, heir{m, out})
			r.proxy.OnReply(redistest.Nth(1, r.handOff, redistest.Hold))
			unlocked := r.flying(t, a)
			require.NoError(t, unlockOut())
			if goes {
				line[0].cancel()
				require.ErrorIs(t, line[0].get(t, soon).err, context.Canceled)
			}
			r.proxy.Release()
			require.NoError(t, within(t, unlocked, atMost))
			if !goes {
				got := r.gets(t, line[0])
				require.NotContains(t, rlock.Owner(got.ctx), tag(rlock.Owner(out)))
				require.NoError(t, got.unlock())
			}
			r.clear(t)
		})
	}
}

// tag is what an owner has in the fields of all Clients.
func tag(owner string) string { return owner[strings.LastIndex(owner, ":"):] }

// Siblings, goroutines of one owner, wait for the lock: one in line, the others behind it. It is handed to
// all of them; if the one in line goes meanwhile, another one stands in line.
func TestHandOffToSiblings(t *testing.T) {
	redistest.Parallel(t)
	for _, goes := range []bool{false, true} {
		for leg, on := range legs {
			t.Run(leg+"/"+map[bool]string{false: "wait", true: "one goes"}[goes], func(t *testing.T) {
				redistest.Parallel(t)
				r := newRelay(t, rlock.Options{HandOff: never})
				m := r.Mutex(r.name)
				out, unlockOut, err := r.other.Mutex(r.name + ":outer").Lock(context.Background())
				require.NoError(t, err)
				a, line := r.line(t, heir{m, out})
				siblings := []pending{lockAsync(t, heir{m, out}), lockAsync(t, heir{m, out})}
				redistest.Eventually(t, atMost, func() bool { return behind() == len(siblings) }, "they are behind it")
				stranger := r.queue(t, m)[0]
				on(r.proxy, redistest.Nth(1, r.handOff, redistest.Hold))
				unlocked := r.flying(t, a)
				_, _, err = heir{tryFor{m, 0}, out}.Lock(context.Background())
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				if goes {
					line[0].cancel()
					require.ErrorIs(t, line[0].get(t, soon).err, context.Canceled)
				}
				r.proxy.Release()
				require.NoError(t, within(t, unlocked, atMost))
				if goes { // they lost its place
					require.NoError(t, r.gets(t, stranger).unlock())
				} else {
					siblings = append(siblings, line[0])
				}
				var got []attempt
				for _, p := range siblings {
					a := p.get(t, atMost)
					require.NoError(t, a.err)
					got = append(got, a)
				}
				r.held(t, got[0], int64(len(siblings)))
				if !goes {
					stranger.stillWaits(t)
				}
				for i, a := range got {
					require.Equal(t, rlock.Owner(got[0].ctx), rlock.Owner(a.ctx))
					require.NoError(t, a.unlock())
					if i < len(got)-1 {
						require.Equal(t, map[string]int64{rlock.Owner(a.ctx): int64(len(got) - i - 1)}, r.fields(t, r.name))
					}
				}
				if !goes {
					require.NoError(t, r.gets(t, stranger).unlock())
				}
				require.NoError(t, unlockOut())
				r.clear(t)
			})
		}
	}
}

// G9: Close comes while a hand-off is under way, which is answered a little later, much later, or never. The
// waiter returns at once, Close soon, no goroutine is left, and what was handed over is given back if Redis
// can be reached.
func TestCloseDuringAHandOff(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	for leg, on := range legs {
		for name, late := range map[string]time.Duration{"at once": 0, "late": 1200 * time.Millisecond, "never": -1, "black hole": -1} {
			t.Run(leg+"/"+name, func(t *testing.T) {
				redistest.Parallel(t)
				before := ours()
				r := newRelayOn(t, s, rlock.Options{WatchdogTimeout: 10 * time.Second})
				on(r.proxy, redistest.Nth(1, r.handOff, redistest.Hold))
				a, line := r.line(t, same(r.Mutex(r.name), 3)...)
				unlocked := r.flying(t, a)
				r.proxy.BlackHole(name == "black hole")
				began := time.Now()
				closed := async(func() error { r.Close(); return nil })
				for _, p := range line {
					require.ErrorIs(t, p.get(t, soon).err, rlock.ErrClosed)
				}
				if late >= 0 {
					pass(late)
					r.proxy.Release()
				}
				const bound = 5*time.Second + soon // as without a hand-off
				err := within(t, unlocked, bound)
				require.NoError(t, within(t, closed, bound))
				require.Less(t, time.Since(began), bound)
				awaitGone(t, before+2)
				if name == "black hole" {
					require.Error(t, err)
				} else {
					require.NoError(t, err)
					require.False(t, r.exists(t, r.name), "given back before Close returned")
				}
				r.proxy.BlackHole(false)
				r.proxy.Release()
				redistest.Eventually(t, atMost, func() bool { return !r.exists(t, r.name) }, "free")
			})
		}
	}
}

// G9: Close at any moment of many hand-offs.
func TestCloseAmongHandOffs(t *testing.T) {
	before := ours()
	r := newRelay(t)
	r.Close()
	for range 30 {
		c, err := rlock.New(redistest.Dial(t, r.proxy.Addr()), rlock.Options{HandOff: never})
		require.NoError(t, err)
		m := c.Mutex(r.name)
		var wg sync.WaitGroup
		inside := 0
		for range 8 {
			wg.Go(func() {
				for {
					_, unlock, err := m.Lock(context.Background())
					if err != nil {
						assert.ErrorIs(t, err, rlock.ErrClosed)
						return
					}
					inside++
					assert.NoError(t, unlock())
				}
			})
		}
		pass(rand.N(20 * time.Millisecond))
		c.Close()
		wg.Wait()
		redistest.Eventually(t, atMost, func() bool { return !r.exists(t, r.name) }, "free")
	}
	awaitGone(t, before+1)
}

// heir locks with the owner of ctx, but with the end of the ctx that it is given.
type heir struct {
	locker
	owner context.Context
}

func (h heir) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return h.locker.Lock(borrowed{ctx, h.owner})
}

type borrowed struct {
	context.Context
	owner context.Context
}

func (b borrowed) Value(key any) any { return b.owner.Value(key) }
