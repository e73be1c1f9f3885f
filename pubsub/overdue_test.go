package pubsub

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// Where the server answers, but takes no subscription, the first waiter of each lock looks once a second, the others sleep, and Deaf is
// called once.
func TestLooksWithoutASubscription(t *testing.T) {
	t.Parallel()
	for name, mod := range respVersions {
		for what, refuse := range map[string]redistest.Hook{
			"cut":     redistest.Each("SUBSCRIBE", redistest.Cut),
			"refused": redistest.Each("SUBSCRIBE", redistest.Fail("ERR not now")),
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				proxy := redistest.StartProxy(t, redistest.Shared(t))
				var open atomic.Bool
				proxy.OnRequest(func(cmd []string) redistest.Action {
					if open.Load() {
						return redistest.Pass
					}
					return refuse(cmd)
				})
				s := newSite(t, redistest.Dial(t, proxy.Addr(), mod), redistest.Dial(t, redistest.Shared(t)))
				var deaf atomic.Int32
				s.hub.WarnDeaf(func(string, error) { deaf.Add(1) })
				queues := make(map[Channel][]*Waiter)
				for _, ch := range []Channel{plain(redistest.Name(t) + "a"), plain(redistest.Name(t) + "b")} {
					first, second := &Waiter{}, &Waiter{}
					require.True(t, s.hub.Join(first, queue(ch)))
					first.Held(-1, false)
					require.False(t, s.hub.Join(second, queue(ch)))
					queues[ch] = []*Waiter{first, second}
				}
				for range 2 {
					for _, ws := range queues {
						awaitTurn(t, ws[0], recovery)
						noTurn(t, ws[0], ws[1])
						ws[0].Held(-1, false)
					}
				}
				require.Equal(t, int32(1), deaf.Load())
				open.Store(true)
				s.afterOutage(queues)
			})
		}
	}
}

// A crowd that waits for a connection costs one look a second, and none while the server does not answer. The look of a waiter that has the
// turn already is not repeated.
func TestLooksOnceASecond(t *testing.T) {
	t.Parallel()
	rdb := newFakeClient(t, "a:1")
	bubble.Test(t, func(t *testing.T) {
		rdb.pool = make(chan struct{})
		h := New(rdb, me)
		defer h.Close()
		told := make(chan string, 10)
		h.WarnDeaf(func(node string, err error) { told <- fmt.Sprint(node, ": ", err) })
		var crowds [][]*Waiter
		for _, ch := range []Channel{plain("c"), plain("d"), h.at("a:1")} {
			crowd := make([]*Waiter, 1000)
			for i := range crowd {
				crowd[i] = &Waiter{}
				if h.Join(crowd[i], queue(ch)) {
					crowd[i].Held(-1, false)
				}
			}
			crowds = append(crowds, crowd)
		}
		looks := func() (n int) {
			synctest.Wait()
			for _, crowd := range crowds {
				for i, w := range crowd {
					select {
					case <-w.Turn():
						require.Zero(t, i, "the first one looks")
						n++
					default:
					}
				}
			}
			return n
		}
		held := func() {
			for _, crowd := range crowds {
				crowd[0].Held(-1, false)
			}
		}
		time.Sleep(maxBackoff)
		require.Zero(t, looks(), "they have just asked")
		for range 5 {
			time.Sleep(maxBackoff)
			require.Equal(t, len(crowds), looks())
			held()
		}
		time.Sleep(maxBackoff)
		require.Equal(t, len(crowds), looks())
		time.Sleep(10 * maxBackoff)
		require.Zero(t, looks(), "each asks")
		held()
		require.Zero(t, looks())
		require.Len(t, told, 2, "one for each node")
		all := []string{<-told, <-told}
		slices.Sort(all)
		require.Equal(t, []string{": no connection yet", "a:1: no connection yet"}, all)

		rdb.setDown(errors.New("down"))
		time.Sleep(10 * maxBackoff)
		require.Zero(t, looks(), "an outage")

		rdb.setDown(nil)
		rdb.pool <- struct{}{}
		rdb.pool <- struct{}{}
		require.Equal(t, len(crowds), looks(), "subscribed")
		held()
		time.Sleep(10 * maxBackoff)
		require.Zero(t, looks())
		require.Empty(t, told)
		close(rdb.pool)
	})
}

// A server that does not answer the connection for messages, but others, takes no subscription either: nobody sleeps until that fails.
func TestLooksWhileTheConnectionIsSilent(t *testing.T) {
	t.Parallel()
	for name, dialsLate := range map[string]bool{"SUBSCRIBE": false, "dial": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := newFakeClient(t)
			bubble.Test(t, func(t *testing.T) {
				rdb.silent, rdb.dialsLate = make(chan struct{}), dialsLate
				h := New(rdb, me)
				defer h.Close()
				var deaf atomic.Int32
				h.WarnDeaf(func(string, error) { deaf.Add(1) })
				w := &Waiter{}
				require.True(t, h.Join(w, queue(plain("c"))))
				w.Held(-1, false)
				looks := func() (n int) {
					synctest.Wait()
					select {
					case <-w.Turn():
						require.NoError(t, refusal(w))
						w.Held(-1, false)
						n++
					default:
					}
					return n
				}
				time.Sleep(maxBackoff)
				require.Zero(t, looks(), "it has just asked")
				for range int(2 * subscribeTimeout / (2 * maxBackoff)) { // the link begins anew now and then, which takes a moment
					var n int
					for range 2 {
						time.Sleep(maxBackoff)
						n += looks()
					}
					require.Positive(t, n)
				}
				require.Equal(t, int32(1), deaf.Load())

				rdb.setDown(errors.New("down"))
				time.Sleep(10 * maxBackoff)
				require.Zero(t, looks(), "an outage")

				rdb.setDown(nil)
				close(rdb.silent)
				time.Sleep(dialTimeout)
				require.Equal(t, 1, looks(), "subscribed")
				time.Sleep(10 * maxBackoff)
				require.Zero(t, looks())
			})
		})
	}
}

// A subscription that comes while the server is asked whether it answers is not reported as missing, and its waiters look once, as after any.
func TestSubscribedWhileTheServerIsAsked(t *testing.T) {
	t.Parallel()
	rdb := newFakeClient(t)
	bubble.Test(t, func(t *testing.T) {
		rdb.silent, rdb.pong = make(chan struct{}), make(chan struct{})
		h := New(rdb, me)
		defer h.Close()
		var deaf atomic.Int32
		h.WarnDeaf(func(string, error) { deaf.Add(1) })
		w := &Waiter{}
		require.True(t, h.Join(w, queue(plain("c"))))
		w.Held(-1, false)
		for rdb.questions() == 0 {
			time.Sleep(maxBackoff)
			synctest.Wait()
		}
		close(rdb.silent)
		synctest.Wait()
		require.Len(t, w.turn, 1, "subscribed")
		<-w.Turn()
		require.NoError(t, refusal(w))
		w.Held(-1, false)
		close(rdb.pong)
		synctest.Wait()
		require.Zero(t, deaf.Load())
		require.Empty(t, w.turn)
	})
}

// A ticker comes a little sooner or later than a second after it came last. That does not cost a look.
func TestOverdueOnceASecond(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		s := &subscription{shares: []*share{{needed: true}}}
		require.False(t, s.overdue(), "it has just failed")
		for range 3 {
			time.Sleep(maxBackoff - 10*time.Millisecond)
			require.True(t, s.overdue())
			require.False(t, s.overdue())
		}
	})
}
