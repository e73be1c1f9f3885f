package main

import (
	"context"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/pubsub"
	"github.com/go-rlock/rlock/rlock"
)

// standsStill makes another process's Client hold one lock, and wait for the next until the test ends.
func standsStill(t *testing.T, redis rueidis.Client, has, wants string, both <-chan struct{}) {
	t.Helper()
	rdb := deadlock.Apart{Client: redis, Graph: deadlock.New()}
	c, err := rlock.New(rdb, rlock.Options{Deadlock: rlock.Deadlock{After: 10 * time.Millisecond}})
	require.NoError(t, err)
	holds, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the test
		defer close(ended)
		_ = c.Mutex(has).Do(ctx, func(ctx context.Context) error {
			close(holds)
			<-both
			return c.Mutex(wants).Do(ctx, func(context.Context) error { return nil })
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		c.Close()
	})
	<-holds
}

// If a Client without the option, Redisson, or an idle Client blocks a Lock, it shows where the chain ends, without delay: a Client with an
// ear answers.
func TestDeadlocksSayWhereAChainEnds(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		rdb := s.Client(t)
		const java = "285475da-9152-4c83-822a-67ee2f116a79:12"
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Hset().Key("java").FieldValue().FieldValue(java, "1").Build()).Error())
		older := newLocks(t, s.Client(t)) // has an ear, but not the option
		theirs, _ := lock(t.Context(), t, older.Mutex("theirs", rlock.WithAsked()))
		both := make(chan struct{})
		standsStill(t, s.Client(t), "a", "java", both)
		standsStill(t, s.Client(t), "b", "theirs", both)
		standsStill(t, s.Client(t), "c", "works", both)
		idle := newLocks(t, deadlock.Apart{Client: s.Client(t), Graph: deadlock.New()}, rlock.Options{Deadlock: rlock.Deadlock{After: time.Hour}})
		works, _ := lock(t.Context(), t, idle.Mutex("works", rlock.WithAsked()))
		close(both)
		var r result
		redistest.Eventually(t, patience, func() bool {
			r = call(t, s.Addr(), "deadlocks")
			return strings.Count(r.out, ", waits for \"") == 3 && strings.Count(r.out, "behind") == 3
		}, "all are seen")
		require.Zero(t, r.code)
		require.Empty(t, r.err, "all that listen have answered")
		require.Contains(t, r.out, "behind "+java+", which says nothing\n")
		require.Contains(t, r.out, "behind "+rlock.Owner(theirs)+", which says nothing\n")
		require.Contains(t, r.out, "behind "+rlock.Owner(works)+", which waits for nothing\n")
		require.True(t, strings.HasSuffix(r.out, whyUnknown+"\n"))

		unknown := make(map[string][]string)
		for line := range strings.Lines(call(t, s.Addr(), "deadlocks", "-json").out) {
			var w standstill
			require.NoError(t, json.Unmarshal([]byte(line), &w))
			unknown[w.Lock] = w.Unknown
		}
		require.Equal(t, map[string][]string{"java": {java}, "theirs": {rlock.Owner(theirs)}, "works": nil}, unknown)
	})
}

// On a cluster the questions use sharded channels.
func TestDeadlocksOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	both := make(chan struct{})
	standsStill(t, cluster.Client(t), "a", "b", both)
	standsStill(t, cluster.Client(t), "b", "a", both)
	close(both)
	redistest.Eventually(t, patience, func() bool {
		return strings.Contains(call(t, cluster.Addrs()[0], "deadlocks").out, "deadlock 1\n")
	}, "it is seen")
}

// Each look, as of "rlock top", listens anew: a broken subscription does not end it, and no channel stays behind.
func TestDeadlocksLookAgain(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"", "?protocol=2"} {
		s := redistest.Start(t)
		both := make(chan struct{})
		standsStill(t, s.Client(t), "a", "b", both)
		standsStill(t, s.Client(t), "b", "a", both)
		close(both)
		admin := s.Client(t)
		ears := func() int {
			names, err := admin.Do(t.Context(), admin.B().PubsubChannels().Pattern(pubsub.EarChannel("*")).Build()).AsStrSlice()
			require.NoError(t, err)
			return len(names)
		}
		redistest.Eventually(t, patience, func() bool { return ears() == 2 }, "both have an ear")
		v := newViewer(t, "redis://"+s.Addr()+protocol)
		for i := range 3 {
			w, err := v.standstills(t.Context(), patience)
			require.NoError(t, err)
			require.Empty(t, w.silent)
			if i == 0 {
				redistest.Eventually(t, patience, func() bool { return ears() == 2 }, "it listens no more")
				continue
			}
			killListening(t, admin)
		}
	}
}

// newViewer returns a viewer as of the commands, whose connections have its name.
func newViewer(t *testing.T, addr string) *viewer {
	t.Helper()
	options, err := options(addr)
	require.NoError(t, err)
	options.DisableRetry, options.ClientName = true, viewerName
	redistest.Connects(t, &options)
	return &viewer{rdb: redistest.Dial(t, "", func(o *rueidis.ClientOption) { *o = options })}
}

const viewerName = "viewer"

var viewerSubscribed = regexp.MustCompile(`(?m)^id=([0-9]+) .* name=` + viewerName + ` `)

// killListening kills a viewer's connections with subscriptions, and returns how many.
func killListening(t *testing.T, admin rueidis.Client) (killed int) {
	t.Helper()
	list, err := admin.Do(t.Context(), admin.B().ClientList().TypePubsub().Build()).ToString()
	require.NoError(t, err)
	for _, found := range viewerSubscribed.FindAllStringSubmatch(list, -1) {
		id, err := strconv.ParseInt(found[1], 10, 64)
		require.NoError(t, err)
		if admin.Do(t.Context(), admin.B().ClientKill().Id(id).Build()).Error() == nil { // otherwise it has gone
			killed++
		}
	}
	return killed
}

// unconfirmed is a client that has its answers to questions confirmed only at the end.
type unconfirmed struct {
	rueidis.Client
	end <-chan struct{}
}

func (u unconfirmed) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands() // before the client recycles it
	answers := words[0] == "PUBLISH" && strings.Contains(words[2], " "+deadlock.SeenKind+" ")
	reply := u.Client.Do(ctx, cmd)
	if answers {
		<-u.end
	}
	return reply
}

// A Client answers a question although Redis has not yet confirmed its answer to the last one: the asker has that already.
func TestDeadlocksAskedAgainAtOnce(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		both, end := make(chan struct{}), make(chan struct{})
		standsStill(t, unconfirmed{s.Client(t), end}, "a", "b", both)
		t.Cleanup(func() { close(end) })
		standsStill(t, s.Client(t), "b", "a", both)
		close(both)
		v := newViewer(t, "redis://"+s.Addr())
		redistest.Eventually(t, patience, func() bool {
			ears, _, err := v.ears(t.Context())
			require.NoError(t, err)
			return len(ears) == 2
		}, "both have an ear")
		for range 3 {
			w, err := v.standstills(t.Context(), patience)
			require.NoError(t, err)
			require.Empty(t, w.silent)
		}
	})
}

// Somebody else who asks is no Client that does not answer.
func TestDeadlocksBesideAnotherViewer(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		other := newViewer(t, "redis://"+s.Addr())
		_, _, err := other.hear(t.Context(), pubsub.EarChannel(newAsker()), nil)
		require.NoError(t, err)
		require.Equal(t, result{}, call(t, s.Addr(), "deadlocks"))
		w, err := other.standstills(t.Context(), patience)
		require.NoError(t, err)
		require.Zero(t, w.asked)
	})
}

// A look whose own subscription breaks says so: it is not the Clients that did not answer.
func TestDeadlocksSubscriptionBreaks(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"", "?protocol=2"} {
		s := redistest.Start(t)
		admin := s.Client(t)
		v := newViewer(t, "redis://"+s.Addr()+protocol)
		silent, err := rlock.New(s.Client(t), rlock.Options{})
		require.NoError(t, err)
		mute := pubsub.EarChannel(silent.ID()) // of a Client that does not answer
		silent.Close()
		_, _, err = (&viewer{rdb: s.Client(t)}).hear(t.Context(), mute, nil)
		require.NoError(t, err)
		failed := make(chan error, 1)
		go func() { // ends with the look
			_, err := v.standstills(t.Context(), patience)
			failed <- err
		}()
		redistest.Eventually(t, patience, func() bool { return killListening(t, admin) == 1 }, "it listens")
		require.ErrorContains(t, <-failed, "SUBSCRIBE: EOF")
	}
}

func TestDeadlocksMisuse(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for _, args := range [][]string{{"deadlocks", "x"}, {"deadlocks", "-n", "0"}} {
			require.Equal(t, exitUsage, call(t, "127.0.0.1:1", args...).code)
		}
		require.Equal(t, exitInternal, call(t, "127.0.0.1:1", "deadlocks").code)
	})
}
