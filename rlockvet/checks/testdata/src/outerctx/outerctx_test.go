package outerctx

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/rlock"
)

func TestBusy(t *testing.T) {
	ctx := context.Background()
	var m *rlock.Mutex
	_ = m.Do(ctx, func(context.Context) error {
		if err := work(ctx); err == nil {
			t.Error("worked, though another one has the lock")
		}
		return nil
	})
}
