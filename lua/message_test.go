package lua_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Each message from a script to one process is parsed as intended.
func TestMessagesAreRead(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	grantTo := func(owner string, lease time.Duration, token int64) pubsub.Message {
		return pubsub.Message{Granted: true, Owner: owner, Lease: lease, Token: token}
	}
	fairGrant := grantTo(fairOwner(1), 2*time.Second, -1)
	for name, row := range map[string]struct {
		do   func(l lab)
		want []pubsub.Message // to the first process
		next []pubsub.Message // to the second one
	}{
		"release": {
			func(l lab) { l.join(1); l.releases(l.ends()) }, []pubsub.Message{grantTo(waiter(1), grantLease, -1)}, nil,
		},
		"release, a token": {func(l lab) {
			l.must("SET", l.fence, "9007199254740989")
			require.True(l.t, l.acquire(l.asksForToken(waiter(1))).Joined)
			ends := l.ends()
			ends.Fence = l.fence
			l.releases(ends)
		}, []pubsub.Message{grantTo(waiter(1), grantLease, 1<<53-2)}, nil},
		"release, a short lease": {func(l lab) {
			asks := l.asks(waiter(1))
			asks.Short = true
			require.True(l.t, l.acquire(asks).Joined)
			l.releases(l.ends())
		}, []pubsub.Message{grantTo(waiter(1), grantLease, -1)}, nil},
		"release, outsiders": {
			func(l lab) { l.outsider(false); l.join(1); l.releases(l.ends()) }, []pubsub.Message{{}}, nil,
		},
		"release, one that sleeps for long": {
			func(l lab) { l.hold(me, "1", 6*grantLease); l.join(1, 2); l.releases(l.ends()) },
			[]pubsub.Message{grantTo(waiter(1), grantLease, -1)}, []pubsub.Message{{After: grantLease}},
		},
		"release of one that gave up": {func(l lab) {
			l.join(3, 1)
			l.must("DEL", l.name)
			ends := l.ends()
			ends.Owner = waiter(3)
			require.Equal(l.t, notHeld, l.releases(ends))
		}, []pubsub.Message{{}}, nil},
		"release_each": {func(l lab) {
			l.join(1)
			got, err := lua.ReleaseEach(l.t.Context(), l.rdb, []lua.ReleaseArgs{l.ends()})
			require.NoError(l.t, err)
			require.Equal(l.t, []lua.ReleaseResult{{ReleaseReply: granted}}, got)
		}, []pubsub.Message{grantTo(waiter(1), grantLease, -1)}, nil},
		"fair_release": {func(l lab) {
			l.queueFair(2)
			l.releases(l.endsFair(0))
		}, []pubsub.Message{fairGrant}, nil},
		"fair_release, which only tells": {func(l lab) {
			l.queueFair(2)
			ends := l.endsFair(0)
			ends.Fair.GrantLease = 0
			l.releases(ends)
		}, []pubsub.Message{{Owner: fairOwner(1)}}, nil},
		"fair_acquire": {func(l lab) {
			l.queueFair(2)
			l.must("DEL", l.name)
			_, err := l.acquiresFair(2)
			require.NoError(l.t, err)
		}, []pubsub.Message{{Owner: fairOwner(1)}}, nil},
		"fair_refresh": {func(l lab) {
			l.queueFair(2)
			l.must("DEL", l.name)
			l.refreshes(1)
		}, []pubsub.Message{{Owner: fairOwner(1)}}, nil},
		"fair_force": {func(l lab) {
			l.queueFair(2)
			forced, err := lua.ForceFair(l.t.Context(), l.rdb, l.name, l.fair(), lua.Publish{Name: l.channel})
			require.NoError(l.t, err)
			require.True(l.t, forced)
		}, []pubsub.Message{fairGrant}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			first, second, fair := l.process(1), l.process(2), l.listenTo(l.channel+":"+fairOwner(1)[:36], false)
			if !strings.HasPrefix(name, "fair_") {
				l.hold(me, "1", brief)
			}
			row.do(l)
			require.Equal(t, row.want, messages(t, append(first.said(), fair.said()...)))
			require.Equal(t, row.next, messages(t, second.said()))
		})
	}
}

func messages(t *testing.T, texts []string) (all []pubsub.Message) {
	t.Helper()
	for _, text := range texts {
		m, known := pubsub.ReadMessage(text)
		require.True(t, known, "%q", text)
		require.Equal(t, text, m.String())
		all = append(all, m)
	}
	return all
}

// Scripts build messages and queue entries only with shared functions.
func TestMessagesAreWrittenInOnePlace(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		_, body := split(string(source))
		at := func(literal, home string) {
			require.Equal(t, file == home, strings.Contains(body, literal), "%s: %s", file, literal)
		}
		at("' 0 '", "message.lua")
		at("'? ", "message.lua")
		at(".. (short and", "queue_entry.lua")
		require.NotContains(t, body, ".. ' f'")
		require.NotContains(t, body, ".. ' s'")
	}
}
