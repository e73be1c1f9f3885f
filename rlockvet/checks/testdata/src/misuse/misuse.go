package misuse

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func compared(ctx context.Context, m *rlock.Mutex) error {
	err := m.Do(ctx, work)
	if err == rlock.ErrNotAcquired { // want `^no error is equal to rlock\.ErrNotAcquired, since errors of rlock wrap it: use errors\.Is$`
		return nil
	}
	if err != nil && rlock.ErrLost != err { // want `^no error is equal to rlock\.ErrLost`
		return err
	}
	switch err {
	case nil, rlock.ErrLost: // want `no error is equal to rlock\.ErrLost`
		return nil
	}
	return err
}

func unitless(ctx context.Context, client *rlock.Client) {
	m := client.Mutex("a", rlock.WithLease(30)) // want `^30 has no unit, so this is 30 ns: write 30\*time\.Second, say$`
	_ = m.TryDo(ctx, 5, work)                   // want `5 has no unit`
}

// Correct code, without findings.

const second = time.Second

func fine(ctx context.Context, client *rlock.Client) bool {
	m := client.Mutex("a", rlock.WithLease(30*time.Second))
	err := errors.Join(m.TryDo(ctx, 0, work), m.TryDo(ctx, second, work))
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		return false
	}
	return err == nil
}
