package rlock_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// keepsGets is a client whose answers to GET are kept.
type keepsGets struct {
	rueidis.Client

	asked, goOn chan struct{}
}

func (c keepsGets) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[0] == "GET" {
		c.asked <- struct{}{}
		<-c.goOn
	}
	return c.Client.Do(ctx, cmd)
}

// A TryLock that does not wait returns in time though the label is not answered, with its ctx at once; and a Lock that does is not kept.
func TestLabelUnanswered(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{Label: "pod-7"})
		_, unlock, err := b.Mutex(b.name).Lock(t.Context())
		require.NoError(t, err)
		b.awaitLabel(t, b.Client, "pod-7")
		keeps := keepsGets{b.rdb, make(chan struct{}, 10), make(chan struct{})}
		goOn := sync.OnceFunc(func() { close(keeps.goOn) })
		t.Cleanup(goOn)

		first := newClient(t, keeps)
		began := time.Now()
		require.Empty(t, refusalOf(t, first.Mutex(b.name), 0).HolderLabel)
		require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
		require.Len(t, keeps.asked, 1)
		require.Empty(t, refusalOf(t, first.Mutex(b.name), 0).HolderLabel)
		require.Len(t, keeps.asked, 1, "which is not asked for again")

		leaves := newClient(t, keeps)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, _, err := leaves.Mutex(b.name).TryLock(ctx, 0)
			left <- err
		}()
		<-keeps.asked
		<-keeps.asked
		cancel()
		require.ErrorIs(t, <-left, rlock.ErrNotAcquired)

		waiter := lockAsync(t, newClient(t, keeps).Mutex(b.name))
		<-keeps.asked
		require.NoError(t, unlock())
		waiter.getAndUnlock(t, testTimeout)
		goOn()
	})
}

// Users without the right to the keys lock as before, and their Clients say so once.
func TestLabelForbidden(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	admin := fixture{rdb: s.Client(t)}
	for what, keys := range map[string]string{"write": "%R~rlock_client:*", "read or write": "~other"} {
		t.Run(what, func(t *testing.T) {
			redistest.Parallel(t)
			name := strings.ReplaceAll(what, " ", "-")
			require.NoError(t, admin.do(t, "ACL", "SETUSER", name, "reset", "on", ">secret", "&*", "+@all", "~"+name, "~rlock_queue:*", keys).Error())
			j := new(logRecords)
			rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = name, "secret" })
			o := rlock.Options{Label: "pod-7", Logger: slog.New(slog.NewTextHandler(j, nil))}
			c, other := newClient(t, rdb, o), newClient(t, s.Client(t), rlock.Options{Label: "pod-8"})
			lockAndUnlock(t, c.Mutex(name))
			redistest.Eventually(t, testTimeout, func() bool { return j.count("labels do not work for this Client") == 1 }, "logged")
			require.Equal(t, 1, j.count("label=pod-7"))
			ctx, unlock, err := c.Mutex(name).Lock(t.Context())
			require.NoError(t, err)
			require.Less(t, len(rlock.Owner(ctx)), 36+1+20, "no mark")
			require.Empty(t, refusalOf(t, other.Mutex(name), 0).HolderLabel)
			require.NoError(t, unlock())

			_, unlock, err = other.Mutex(name).Lock(t.Context())
			require.NoError(t, err)
			admin.awaitLabel(t, other, "pod-8")
			want := ""
			if what == "write" {
				want = "pod-8"
			}
			knowsLabel(t, c.Mutex(name), 0, want)
			require.Equal(t, want, refusalOf(t, c.Mutex(name), 0).HolderLabel)
			require.NoError(t, unlock())
			require.Equal(t, 1, j.count("labels do not work"))
		})
	}
}
