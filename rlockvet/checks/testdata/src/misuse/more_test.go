package misuse

import (
	"context"

	"github.com/go-rlock/rlock/rlock"
)

// Tests try wrong options.

func wrongOptions(ctx context.Context, m *rlock.Mutex) (*rlock.Client, error) {
	_ = m.TryDo(ctx, 1, work) // want `1 has no unit`
	o := rlock.Options{WatchdogTimeout: 1}
	o.HandOff.For = 1
	token, _ := m.FencingToken(ctx)
	_ = put(ctx, "", token)
	return rlock.Open("", o)
}
