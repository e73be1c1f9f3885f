package ended

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }
func bounded(ctx context.Context, m *rlock.Mutex) error {
	wait, cancel := context.WithTimeout(rlock.WaitOnly(ctx), time.Second)
	held, unlock, err := m.Lock(wait)
	cancel()
	if err != nil {
		return err
	}
	defer unlock()
	return work(held)
}
