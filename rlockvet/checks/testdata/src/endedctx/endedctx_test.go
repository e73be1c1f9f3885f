package endedctx

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/rlock"
)

func TestWork(t *testing.T) {
	var m *rlock.Mutex
	ctx, unlock, err := m.Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
	_ = work(ctx) // want `ctx was cancelled by the unlock`
}
