package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// These errors only satisfy errors.Is.
var (
	errTestClosed      = errors.New("closed")
	errTestLost        = errors.New("lost")
	errTestNotAcquired = errors.New("not acquired")
)

func testErrors() Errors {
	return Errors{
		Pending: errors.New("pending"),
		Closed:  errTestClosed, Lost: errTestLost,
		NotHeld: errors.New("not held"), NotReplicated: errors.New("not replicated"),
		Reentry: errors.New("re-entry"), Upgrade: errors.New("upgrade"),
		NotExported: errors.New("not exported"), Ticket: errors.New("no lock"),
		Loss: func(l Loss) error {
			if l.Reason == LostClosed {
				return errTestClosed
			}
			return fmt.Errorf("%w: %s", errTestLost, l.Text)
		},
		NotAcquired: func(NotAcquired) error { return errTestNotAcquired },
		Unreachable: func(err error) error { return err },
		Failed:      func(_ string, causes ...error) error { return errors.Join(causes...) },
	}
}

// silent is a teller that discards everything.
type silent struct{}

func (silent) Warn(string, ...any)                 {}
func (silent) Lost(context.Context, string, error) {}
func (silent) Panicked(v any, _ []byte)            { panic(v) }
func (silent) Flush()                              {}

// startEngine starts an engine with default options. The test's clean-up closes it.
func startEngine(t testing.TB, rdb rueidis.Client, to Teller) *Engine {
	t.Helper()
	c := New(rdb, uuid.NewString(), Options{
		Errors: testErrors(), Tell: to,
		WatchdogTimeout: 30 * time.Second, UnlockTimeout: calls.Timeout, HandOff: RunBound{Most: 64, For: 10 * time.Millisecond},
	})
	t.Cleanup(c.Close)
	return c
}
