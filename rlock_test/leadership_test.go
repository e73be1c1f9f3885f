package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// awaitState waits for a state by its changes alone.
func awaitState(t *testing.T, s *rlock.Leadership, is func(rlock.LeadState) bool) rlock.LeadState {
	t.Helper()
	over := time.After(testTimeout)
	for {
		changed := s.Changed()
		if now := s.State(); is(now) {
			return now
		}
		select {
		case <-changed:
		case <-over:
			require.FailNow(t, "no such state", "%+v", s.State())
		}
	}
}

func leads(s rlock.LeadState) bool { return s.Leading }
func rests(s rlock.LeadState) bool { return !s.Leading }

// A Leadership tells of each term: its beginning, its number, and its end, by a loss, by fn, and with the ctx.
func TestLeadership(t *testing.T) {
	for name, kind := range map[string]func(b fixture) *rlock.Mutex{
		"fenced": func(b fixture) *rlock.Mutex { return b.FencedMutex(b.name) },
		"plain":  func(b fixture) *rlock.Mutex { return b.Mutex(b.name) },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: time.Second})
			lock := kind(b)
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			if name == "fenced" { // terms of others
				for range 3 {
					require.NoError(t, lock.Do(ctx, nothingToDo))
				}
			}
			before := time.Now()
			var s rlock.Leadership
			require.Zero(t, s.State())
			ends := make(chan error)
			tokens := make(chan int64, 10)
			ended := async(func() error {
				return rlock.Lead(ctx, lock, func(ctx context.Context) error {
					token, _ := lock.FencingToken(ctx)
					tokens <- token
					select {
					case err := <-ends:
						return err
					case <-ctx.Done():
						<-ends // it takes its time
						return ctx.Err()
					}
				}, rlock.ReportTo(&s))
			})
			first := awaitState(t, &s, leads)
			if token := <-tokens; name == "fenced" {
				require.Equal(t, token, first.Term)
				require.Equal(t, int64(4), token)
			} else {
				require.Equal(t, int64(1), first.Term)
			}
			require.WithinRange(t, first.Since, before, time.Now())
			require.Equal(t, first, s.State(), "nothing changes")

			require.NoError(t, b.do(t, "DEL", lock.Name()).Error())
			lost := awaitState(t, &s, rests) // though fn goes on
			require.Equal(t, first.Term, lost.Term)
			require.False(t, lost.Since.Before(first.Since))
			ends <- nil
			second := awaitState(t, &s, leads)
			require.Greater(t, second.Term, first.Term)

			stop()
			require.Equal(t, second.Term, awaitState(t, &s, rests).Term)
			ends <- nil
			require.ErrorIs(t, within(t, ended, testTimeout), context.Canceled)
			require.False(t, s.State().Leading)
		})
	}
}

// A term ends with its function, whatever that returns, also by a panic.
func TestLeadershipEndsWithItsFunction(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var s rlock.Leadership
		mine := errors.New("mine")
		require.ErrorIs(t, rlock.Lead(context.Background(), new(fakeLock), func(context.Context) error {
			require.True(t, s.State().Leading)
			return mine
		}, rlock.ReportTo(&s)), mine)
		changed := s.Changed()
		require.Equal(t, int64(1), s.State().Term)
		require.False(t, s.State().Leading)
		require.PanicsWithValue(t, "boom", func() {
			_ = rlock.Lead(context.Background(), new(fakeLock), func(context.Context) error { panic("boom") }, rlock.ReportTo(&s))
		})
		<-changed
		require.Equal(t, int64(2), s.State().Term)
		require.False(t, s.State().Leading)
		require.Panics(t, func() { rlock.ReportTo(nil) })

		// Whoever asks sees the end at once, not only when it is told.
		ctx, stop := context.WithCancel(context.Background())
		_ = rlock.Lead(ctx, new(fakeLock), func(context.Context) error {
			stop()
			require.False(t, s.State().Leading)
			return nil
		}, rlock.ReportTo(&s))
	})
}
