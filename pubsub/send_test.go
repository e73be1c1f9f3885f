package pubsub

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// keepBusy occupies the server with a script, calls running, and returns when the server refuses all other commands. free ends the script.
func (s site) keepBusy(server *redistest.Server, running func()) (free func()) {
	s.t.Helper()
	blocker := server.Client(s.t)
	ended := make(chan error, 1)
	go func() { // ends with the script
		ended <- blocker.Do(context.Background(), blocker.B().Eval().Script("while true do end").Numkeys(0).Build()).Error()
	}()
	redistest.Eventually(s.t, soon, func() bool { return !server.Answers() }, "the script runs")
	running()
	redistest.Eventually(s.t, soon, func() bool {
		err := s.do(s.rdb.B().Ping().Build()).Error()
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	}, "the server is busy")
	return func() {
		s.t.Helper()
		require.NoError(s.t, s.do(s.rdb.B().ScriptKill().Build()).Error())
		require.ErrorContains(s.t, <-ended, "SCRIPT KILL")
	}
}

// A server busy with a long script refuses to end a subscription. The link retries until it accepts.
func TestUnsubscribeFromABusyServer(t *testing.T) {
	t.Parallel()
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--lua-time-limit", "10")
			proxy, tries := redistest.StartProxy(t, server.Addr()), make(chan struct{}, 1000)
			proxy.OnRequest(func(cmd []string) redistest.Action {
				if cmd[0] == "PING" {
					tries <- struct{}{}
				}
				return redistest.Pass
			})
			s := newSite(t, redistest.Dial(t, proxy.Addr(), mod), server.Client(t))
			gone, comes, stays := plain("gone"), plain("comes"), plain("stays")
			ws, others := s.park(gone, 2), s.park(stays, 2)
			free := s.keepBusy(server, func() {})
			leave(ws...)
			late := s.waits(comes)
			for range 4 { // also rueidis' own
				<-tries
			}
			free()

			awaitTurn(t, late, soon)
			s.awaitSubscribers(gone, 0)
			s.awaitSubscribers(comes, 1)
			s.publish(stays, "0")
			awaitTurn(t, others[0], soon)
			late.Leave()
			s.leaveAll(stays, others)
		})
	}
}

// The script begins after the server answered the PING and before it gets the UNSUBSCRIBE. rueidis would panic at a BUSY reply.
func TestUnsubscribeFromAServerThatGetsBusy(t *testing.T) {
	t.Parallel()
	for name, mod := range respVersions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t) // answers BUSY after 5s, as most do: the link has given up by then
			proxy := redistest.StartProxy(t, server.Addr())
			s := newSite(t, redistest.Dial(t, proxy.Addr(), mod), server.Client(t))
			gone, stays := plain("gone"), plain("stays")
			ws, others := s.park(gone, 1), s.park(stays, 2)
			proxy.OnRequest(redistest.Nth(1, "UNSUBSCRIBE", redistest.Hold))
			ws[0].Leave()
			redistest.Eventually(t, soon, func() bool { return proxy.Held() == 1 }, "the PING is answered")
			free := s.keepBusy(server, proxy.Release)
			free()

			awaitTurn(t, others[0], soon) // the connection is a new one: a message may have been missed
			s.awaitSubscribers(gone, 0)
			s.awaitSubscribers(stays, 1)
			s.leaveAll(stays, others)
		})
	}
}

// The link also retries while the server refuses a PING for another reason, unless the user has no right to PING.
func TestUnsubscribeWithoutPing(t *testing.T) {
	t.Parallel()
	t.Run("for a while", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		proxy := redistest.StartProxy(t, server.Addr())
		s := newSite(t, redistest.Dial(t, proxy.Addr()), server.Client(t))
		ch := plain("c")
		ws := s.park(ch, 1)
		refused, well := make(chan struct{}, 100), make(chan struct{})
		proxy.OnRequest(func(cmd []string) redistest.Action {
			select {
			case <-well:
				return redistest.Pass
			default:
			}
			if cmd[0] != "PING" {
				return redistest.Pass
			}
			refused <- struct{}{}
			return redistest.Fail("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.")
		})
		ws[0].Leave()
		for range 4 { // also rueidis' own, one a second
			<-refused
		}
		require.EqualValues(t, 1, s.subscribers(ch))
		close(well)
		s.awaitGone(ch)
	})
	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		admin := server.Client(t)
		require.NoError(t, admin.Do(t.Context(), admin.B().AclSetuser().Username("app").
			Rule("on", ">secret", "~*", "&*", "+@all", "-ping").Build()).Error())
		s := newSite(t, server.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" }), admin)
		ch := plain("c")
		s.leaveAll(ch, s.park(ch, 2))
	})
}

// If the server drops a channel while its unsubscription is postponed, for example because the slot moves, the hub forgets the channel.
func TestTakenAwayWhilePutOff(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := newSite(t, redistest.Dial(t, proxy.Addr()), server.Client(t))
	ch := plain("c")
	w := s.park(ch, 1)[0]
	taken := false
	proxy.OnRequest(func(cmd []string) redistest.Action {
		if cmd[0] != "PING" {
			return redistest.Pass
		}
		s.hub.conns.mu.Lock()
		l, sub := s.hub.conns.links[plainLink], s.hub.conns.subs[ch]
		asked := !taken && sub != nil && sub.op == unsubscribing // not rueidis' own PING
		epoch := l.epoch
		s.hub.conns.mu.Unlock()
		if !asked {
			return redistest.Pass
		}
		taken = true
		l.onSubscription(epoch, rueidis.PubSubSubscription{Kind: "unsubscribe", Channel: ch.Name})
		return redistest.Fail("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.")
	})
	w.Leave()
	redistest.Eventually(t, soon, func() bool { return s.hub.isEmpty() }, "the channel is no longer needed")
}

// Close does not wait for the PING reply that an unsubscription waits for.
func closeBeforeUnsubscribing(t *testing.T, mod func(*rueidis.ClientOption)) {
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	s := newSite(t, redistest.Dial(t, proxy.Addr(), mod), redistest.Dial(t, redistest.Shared(t)))
	ch := plain(redistest.Name(t))
	w := s.park(ch, 1)[0]
	asked := make(chan struct{}, 1)
	proxy.OnRequest(func(cmd []string) redistest.Action {
		s.hub.conns.mu.Lock()
		sub := s.hub.conns.subs[ch]
		ends := sub != nil && sub.op == unsubscribing // not rueidis' own PING
		s.hub.conns.mu.Unlock()
		if cmd[0] != "PING" || !ends {
			return redistest.Pass
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		return redistest.Hold
	})
	w.Leave()
	<-asked
	within(t, soon/2, s.hub.Close)
	proxy.Release()
}
