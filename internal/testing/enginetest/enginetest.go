// Package enginetest starts engines for tests of the packages that observe them or use their parts.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Errors of an engine satisfy these.
var (
	ErrLost   = errors.New("lost")
	ErrClosed = errors.New("closed")
)

// Start starts an engine with default options, whose errors only satisfy errors.Is. The test's clean-up closes it.
func Start(t testing.TB, rdb rueidis.Client) *tenure.Client {
	t.Helper()
	return StartTelling(t, rdb, Silent{})
}

// StartTelling is Start with a teller.
func StartTelling(t testing.TB, rdb rueidis.Client, tell tenure.Teller) *tenure.Client {
	t.Helper()
	c := tenure.New(rdb, uuid.NewString(), tenure.Options{
		Errors: tenure.Errors{
			Closed: ErrClosed, Lost: ErrLost, Pending: errors.New("pending"), NotHeld: errors.New("not held"),
			NotReplicated: errors.New("not replicated"), Reentry: errors.New("re-entry"), Upgrade: errors.New("upgrade"),
			NotExported: errors.New("not exported"), Ticket: errors.New("no lock"),
			Loss: func(l tenure.Loss) error {
				if l.Reason == tenure.LostClosed {
					return ErrClosed
				}
				return fmt.Errorf("%w: %s", ErrLost, l.Text)
			},
			NotAcquired: func(tenure.NotAcquired) error { return errors.New("not acquired") },
			Unreachable: func(err error) error { return err },
			Failed:      func(_ string, causes ...error) error { return errors.Join(causes...) },
		},
		Tell: tell, WatchdogTimeout: 30 * time.Second, UnlockTimeout: calls.Timeout,
		HandOff: tenure.RunBound{Most: 64, For: 10 * time.Millisecond},
	})
	t.Cleanup(c.Close)
	return c
}

// Silent is a teller that discards everything.
type Silent struct{}

// Warn does nothing.
func (Silent) Warn(string, ...any) {}

// Lost does nothing.
func (Silent) Lost(context.Context, string, error) {}

// Panicked panics again.
func (Silent) Panicked(v any, _ []byte) { panic(v) }

// Flush does nothing.
func (Silent) Flush() {}
